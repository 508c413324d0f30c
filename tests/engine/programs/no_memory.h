// Memory that can be refused to one thread: every allocation of the program, oneTBB's and the C library's among them;
// and threads that can be refused to all. With a sanitizer, whose own functions this would replace, operator new alone.
// For a program of one source file.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace no_memory {

/// What the calling thread is refused.
struct Refusals {
  long seen = 0;             ///< allocations since this was set
  long at = 0;               ///< the number of the one that fails; 0 for none
  bool stays = false;        ///< as do all after it
  std::uint64_t random = 0;  ///< else, where this is not 0, half of them fail: the generator's state
  bool next() {
    ++seen;
    if (random != 0) {  // xorshift64
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      return (random >> 40) % 2 != 0;
    }
    return at != 0 && (seen == at || (seen > at && stays));
  }
};
inline constinit thread_local Refusals refusals{};

inline bool refused() {
  if (!refusals.next()) return false;
  errno = ENOMEM;
  return true;
}

/// Starts of threads, by all: how many there were, and the number of the one that fails, and of the last that does.
inline std::atomic<long> starts{0}, first_refused{0}, last_refused{0};

}  // namespace no_memory

#ifndef SLUICE_SANITIZED
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) noexcept { return no_memory::refused() ? nullptr : __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t of) noexcept { return no_memory::refused() ? nullptr : __libc_calloc(n, of); }
void* realloc(void* p, std::size_t n) noexcept { return no_memory::refused() ? nullptr : __libc_realloc(p, n); }
void* memalign(std::size_t align, std::size_t n) noexcept {
  return no_memory::refused() ? nullptr : __libc_memalign(align, n);
}
void* aligned_alloc(std::size_t align, std::size_t n) noexcept { return memalign(align, n); }
int posix_memalign(void** p, std::size_t align, std::size_t n) noexcept {
  return (*p = memalign(align, n)) ? 0 : ENOMEM;
}
// oneTBB has an allocator of its own where that is installed; without it, it takes what the program calls so. Zeroed:
// where it has no memory for an arena it destroys queues that it has not made, which as zeros does no harm.
void* dlopen(const char* name, int how) noexcept {
  using Open = void* (*)(const char*, int);
  static const auto open = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "dlopen"));
  return name && std::strstr(name, "libtbbmalloc") ? nullptr : open(name, how);
}
[[gnu::visibility("default")]] void* scalable_malloc(std::size_t n) { return malloc(n); }
[[gnu::visibility("default")]] void scalable_free(void* p) { std::free(p); }
[[gnu::visibility("default")]] void* scalable_aligned_malloc(std::size_t n, std::size_t align) {
  void* const p = memalign(align, n);
  return p ? std::memset(p, 0, n) : nullptr;
}
[[gnu::visibility("default")]] void scalable_aligned_free(void* p) { std::free(p); }

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*body)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  const long n = no_memory::starts.fetch_add(1) + 1;
  if (n >= no_memory::first_refused.load() && n <= no_memory::last_refused.load()) return EAGAIN;
  return create(thread, how, body, argument);
}
}
#else
namespace no_memory {
inline void* take(std::size_t n, std::size_t align) noexcept {
  if (refused()) return nullptr;
  return align > alignof(std::max_align_t) ? std::aligned_alloc(align, (n + align - 1) / align * align)
                                           : std::malloc(n ? n : 1);
}
inline void* take_or_throw(std::size_t n, std::size_t align) {
  if (void* const p = take(n, align)) return p;
  throw std::bad_alloc();
}
}  // namespace no_memory
void* operator new(std::size_t n) { return no_memory::take_or_throw(n, 0); }
void* operator new[](std::size_t n) { return no_memory::take_or_throw(n, 0); }
void* operator new(std::size_t n, std::align_val_t a) { return no_memory::take_or_throw(n, std::size_t(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return no_memory::take_or_throw(n, std::size_t(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return no_memory::take(n, 0); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return no_memory::take(n, 0); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return no_memory::take(n, std::size_t(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return no_memory::take(n, std::size_t(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
#endif
