// The lock of an array: small, quick where nobody else wants it, and recursive.
#pragma once

#include <atomic>
#include <cstdint>

#include "sluice/engine/detail/forks.h"

namespace sluice {

/// A recursive mutex in sixteen bytes. Recursive, because serial mode runs a body inside its push. Where two threads
/// want it, one sleeps. (std::recursive_mutex is 40 bytes.) In a forked child lock() throws ForkedError where it was
/// held when the process was forked: the thread that would give it back is not there. Visible, so that in all parts of
/// a process self() gives a thread one address.
class [[gnu::visibility("default")]] SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void lock() {
    const std::uint32_t here = detail::fork_generation.load(std::memory_order_relaxed);
    std::uint32_t state = kFree;
    if (!state_.compare_exchange_strong(state, here | kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
      if (owner_.load(std::memory_order_relaxed) == self() && generation_of(state) == here) {
        ++depth_;
        return;
      }
      wait(here);
    }
    owner_.store(self(), std::memory_order_relaxed);
  }
  void unlock() {
    if (depth_ != 0) {
      --depth_;
      return;
    }
    owner_.store(nullptr, std::memory_order_relaxed);
    if ((state_.exchange(kFree, std::memory_order_release) & kKinds) == kWanted) state_.notify_one();
  }

 private:
  enum : std::uint32_t { kFree, kHeld, kWanted, kKinds };
  static_assert(detail::kForkStep == kKinds + 1);
  static std::uint32_t generation_of(std::uint32_t state) { return state & ~kKinds; }

  /// An address that no other living thread has.
  static const void* self() {
    static thread_local const char here = 0;
    return &here;
  }
  [[gnu::noinline]] void wait(std::uint32_t here) {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    for (;;) {
      if (state != kFree && generation_of(state) != here) detail::refuse_lock_of_parent();
      // Whoever slept takes it as one that is wanted: others may sleep, too.
      const std::uint32_t wanted = here | kWanted;
      if (state != wanted &&
          !state_.compare_exchange_weak(state, wanted, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      if (state == kFree) return;
      state_.wait(wanted, std::memory_order_relaxed);
      state = state_.load(std::memory_order_relaxed);
    }
  }

  std::atomic<const void*> owner_{nullptr};  ///< a thread finds itself here only if it wrote this
  std::atomic<std::uint32_t> state_{kFree};  ///< a held one has the generation of the process that took it, too
  std::uint32_t depth_ = 0;                  ///< the owner's
};

}  // namespace sluice
