// The lock of an array: small, quick where nobody else wants it, and recursive.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

/// A recursive mutex in sixteen bytes. Recursive, because serial mode runs a body inside its push. Where two threads
/// want it, one sleeps. (std::recursive_mutex is 40 bytes.)
class SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void lock() {
    std::uint32_t state = kFree;
    if (!state_.compare_exchange_strong(state, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
      if (owner_.load(std::memory_order_relaxed) == self()) {
        ++depth_;
        return;
      }
      wait();
    }
    owner_.store(self(), std::memory_order_relaxed);
  }
  void unlock() {
    if (depth_ != 0) {
      --depth_;
      return;
    }
    owner_.store(nullptr, std::memory_order_relaxed);
    if (state_.exchange(kFree, std::memory_order_release) == kWanted) state_.notify_one();
  }

 private:
  enum : std::uint32_t { kFree, kHeld, kWanted };

  /// An address that no other living thread has.
  static const void* self() {
    static thread_local const char here = 0;
    return &here;
  }
  [[gnu::noinline]] void wait() {
    while (state_.exchange(kWanted, std::memory_order_acquire) != kFree) {
      state_.wait(kWanted, std::memory_order_relaxed);
    }
  }

  std::atomic<const void*> owner_{nullptr};  ///< a thread finds itself here only if it wrote this
  std::atomic<std::uint32_t> state_{kFree};
  std::uint32_t depth_ = 0;  ///< the owner's
};

}  // namespace sluice
