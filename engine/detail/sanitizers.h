// Which sanitizer this is built with: SLUICE_ASAN, SLUICE_TSAN. GCC and clang each have a way of their own to say so.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define SLUICE_TSAN 1
#endif
#else
#ifdef __SANITIZE_ADDRESS__
#define SLUICE_ASAN 1
#endif
#ifdef __SANITIZE_THREAD__
#define SLUICE_TSAN 1
#endif
#endif
