// The functions that a compiler calls for loads and stores with -fsanitize=thread: here they check what kernels do, and
// do nothing elsewhere. This file is not compiled with that option, nor linked where a sanitizer is.
#include <cstdint>

#include "grid.h"

using cuda_double::Accesses;
using cuda_double::running_here;

namespace {

inline void touch(const void* address, std::size_t bytes, Accesses::Kind kind, bool aligned) {
  if (!running_here) [[likely]]
    return;
  running_here->accesses.touch(address, bytes, kind, aligned);
}

inline void touch_atomic(const volatile void* address, std::size_t bytes) {
  touch(const_cast<const void*>(address), bytes, Accesses::Kind::atomic, true);
}

}  // namespace

namespace cuda_double {
namespace {

template <class T, class F>
T change(T* at, F f) {
  touch_atomic(at, sizeof(T));
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  for (T next = f(old); !__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);) {
    next = f(old);
  }
  return old;
}

template <class T>
T add(T* at, T value) {
  return change(at, [=](T old) { return static_cast<T>(old + value); });
}

template <class T>
T compare_exchange(T* at, T expected, T value) {
  touch_atomic(at, sizeof(T));
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

}  // namespace

int atomic_add(int* at, int value) {
  touch_atomic(at, sizeof value);
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);  // which wraps
}
unsigned atomic_add(unsigned* at, unsigned value) { return add(at, value); }
unsigned long long atomic_add(unsigned long long* at, unsigned long long value) { return add(at, value); }
float atomic_add(float* at, float value) { return add(at, value); }
double atomic_add(double* at, double value) { return add(at, value); }
unsigned atomic_max(unsigned* at, unsigned value) {
  return change(at, [=](unsigned old) { return old < value ? value : old; });
}
unsigned atomic_exchange(unsigned* at, unsigned value) {
  return change(at, [=](unsigned) { return value; });
}
unsigned long long atomic_exchange(unsigned long long* at, unsigned long long value) {
  return change(at, [=](unsigned long long) { return value; });
}
unsigned atomic_compare_exchange(unsigned* at, unsigned expected, unsigned value) {
  return compare_exchange(at, expected, value);
}
unsigned long long atomic_compare_exchange(unsigned long long* at, unsigned long long expected,
                                           unsigned long long value) {
  return compare_exchange(at, expected, value);
}

}  // namespace cuda_double

#ifndef SLUICE_SANITIZED
#pragma GCC diagnostic ignored "-Wpedantic"

// NOLINTBEGIN: names and types are the compiler's
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define ACCESS(bytes)                                                                            \
  void __tsan_read##bytes(void* at) { touch(at, bytes, Accesses::Kind::read, true); }            \
  void __tsan_write##bytes(void* at) { touch(at, bytes, Accesses::Kind::write, true); }          \
  void __tsan_unaligned_read##bytes(void* at) { touch(at, bytes, Accesses::Kind::read, false); } \
  void __tsan_unaligned_write##bytes(void* at) { touch(at, bytes, Accesses::Kind::write, false); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#undef ACCESS
void __tsan_read_range(void* at, unsigned long bytes) { touch(at, bytes, Accesses::Kind::read, false); }
void __tsan_write_range(void* at, unsigned long bytes) { touch(at, bytes, Accesses::Kind::write, false); }

// Orders are an enumeration of the compiler's; the strongest serves for all.
#define ATOMIC(bits, type)                                                                                     \
  type __tsan_atomic##bits##_load(const volatile type* at, int) {                                              \
    touch(const_cast<const type*>(at), sizeof(type), Accesses::Kind::read, true);                              \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                              \
  }                                                                                                            \
  void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                                       \
    touch_atomic(at, sizeof(type));                                                                            \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                             \
  }                                                                                                            \
  type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {                                    \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type value, int) {                                   \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_sub(volatile type* at, type value, int) {                                   \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_and(volatile type* at, type value, int) {                                   \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_or(volatile type* at, type value, int) {                                    \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_xor(volatile type* at, type value, int) {                                   \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_xor(at, value, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                            \
  type __tsan_atomic##bits##_fetch_nand(volatile type* at, type value, int) {                                  \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_fetch_nand(at, value, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                            \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected, type value, int, int) { \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
  }                                                                                                            \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected, type value, int, int) {   \
    touch_atomic(at, sizeof(type));                                                                            \
    return __atomic_compare_exchange_n(at, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
  }                                                                                                            \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* at, type expected, type value, int, int) {    \
    touch_atomic(at, sizeof(type));                                                                            \
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);              \
    return expected;                                                                                           \
  }
ATOMIC(8, unsigned char)
ATOMIC(16, unsigned short)
ATOMIC(32, unsigned int)
ATOMIC(64, unsigned long)
#undef ATOMIC
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
}
// NOLINTEND
#endif
