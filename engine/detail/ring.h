// Ring: passes pointers from one thread to any others, in order. The producers of a ready queue put their ops into
// rings.
//
// There is no index that the producer writes and the consumers read: a place that holds a pointer is full. So handing
// over a single pointer moves one cache line and not two. Consumers claim places by moving the head on, and empty them
// afterwards. The lowest bit of a pointer says in which lap it was put there; without it a place that is claimed and
// not yet emptied could be taken for one of the next lap.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::detail {

template <class P, class T, std::uint32_t kSize = 512>
class Ring {
 public:
  static_assert((kSize & (kSize - 1)) == 0);

  /// Called by the producer. Returns false if the ring is full.
  bool put(T* item) {
    auto& place = items_[tail_ % kSize];
    if (place.load(std::memory_order_acquire) != 0) return false;
    place.store(reinterpret_cast<std::uintptr_t>(item) | lap(tail_), std::memory_order_release);
    ++tail_;
    return true;
  }

  /// Takes up to `most` pointers, and at most one of `share` that are there, but one if there is any.
  std::size_t take(T** out, std::size_t most, std::size_t share) {
    std::uint32_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      out[0] = at(head);
      if (!out[0]) {
        const std::uint32_t now = head_.load(std::memory_order_acquire);
        if (now == head) return 0;
        head = now;
        continue;
      }
      std::size_t want = most, n = 1;
      while (want > 1 && share > 1 && !at(head + static_cast<std::uint32_t>(want * share) - 1)) want /= 4;
      while (n < want && (out[n] = at(head + static_cast<std::uint32_t>(n)))) ++n;
      const std::uint32_t end = head + static_cast<std::uint32_t>(n);
      if (!head_.compare_exchange_weak(head, end, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      for (; head != end; ++head) items_[head % kSize].store(0, std::memory_order_release);
      return n;
    }
  }

  bool empty() const {
    for (std::uint32_t head = head_.load(std::memory_order_acquire);;) {
      if (at(head)) return false;
      const std::uint32_t now = head_.load(std::memory_order_acquire);
      if (now == head) return true;
      head = now;
    }
  }

 private:
  static std::uintptr_t lap(std::uint32_t index) { return index / kSize & 1; }
  T* at(std::uint32_t index) const {
    const std::uintptr_t item = items_[index % kSize].load(std::memory_order_acquire);
    return item && (item & 1) == lap(index) ? reinterpret_cast<T*>(item & ~std::uintptr_t{1}) : nullptr;
  }

  alignas(64) std::uint32_t tail_ = 0;  ///< used by the producer only
  alignas(64) typename P::template Atomic<std::uint32_t> head_{0};
  alignas(64) std::array<typename P::template Atomic<std::uintptr_t>, kSize> items_{};
};

}  // namespace sluice::detail
