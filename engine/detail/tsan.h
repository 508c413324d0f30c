// oneTBB hands tasks over in code that ThreadSanitizer does not see. What is told to it here is what really happens.
#pragma once

#include "sluice/engine/detail/sanitizers.h"

#ifdef SLUICE_TSAN
#include <sanitizer/tsan_interface.h>
#define SLUICE_HANDS_OVER(address) __tsan_release(address)
#define SLUICE_TAKES_OVER(address) __tsan_acquire(address)
#define SLUICE_UNSEEN __attribute__((no_sanitize("thread")))  // reads only what the task object carries
#else
#define SLUICE_HANDS_OVER(address)
#define SLUICE_TAKES_OVER(address)
#define SLUICE_UNSEEN
#endif
