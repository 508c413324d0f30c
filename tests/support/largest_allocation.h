// Counts what this thread asks of operator new, and refuses it on demand. Exactly one source of an executable defines
// SLUICE_DEFINE_COUNTING_NEW before it includes this.
#pragma once

#include <cstddef>

#include "sluice/engine/detail/sanitizers.h"

namespace sluice::test {

inline thread_local std::size_t largest_allocation_of_thread = 0;

inline void reset_largest_allocation() { largest_allocation_of_thread = 0; }
/// Bytes of the largest single allocation since the reset; 0 under sanitizers, whose own operator new stays in place.
inline std::size_t largest_allocation() { return largest_allocation_of_thread; }

inline thread_local long allocations_left_of_thread = -1;

/// While it lives, the n-th allocation of this thread fails, and no other. Under sanitizers none does.
class RefusedAllocation {
 public:
  explicit RefusedAllocation(long n) { allocations_left_of_thread = n - 1; }
  ~RefusedAllocation() { allocations_left_of_thread = -1; }
  RefusedAllocation(const RefusedAllocation&) = delete;
  RefusedAllocation& operator=(const RefusedAllocation&) = delete;
};

}  // namespace sluice::test

#if defined(SLUICE_DEFINE_COUNTING_NEW) && !defined(SLUICE_ASAN) && !defined(SLUICE_TSAN)

#include <cstdlib>
#include <new>

// Not inlined, so that the compiler does not mistake malloc and free for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  auto& largest = sluice::test::largest_allocation_of_thread;
  if (bytes > largest) largest = bytes;
  auto& left = sluice::test::allocations_left_of_thread;
  if (left >= 0 && left-- == 0) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = ::operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

#endif
