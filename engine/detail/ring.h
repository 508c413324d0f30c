// Ring: pointers from one thread to any, in order. What a ready queue's producers put their ops in.
//
// There is no index that the producer writes and the consumers read: that a place holds a pointer says that it is full,
// so a pointer that is handed over alone costs one cache line's way and not two. Consumers claim places by moving the
// head on, and empty them after. A pointer's lowest bit says which lap it was put in, or one that is claimed and not
// yet emptied would be taken for the next lap's.
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

  /// The producer's. False where it is full.
  bool put(T* item) {
    auto& place = items_[tail_ % kSize];
    if (place.load(std::memory_order_acquire) != 0) return false;
    place.store(reinterpret_cast<std::uintptr_t>(item) | lap(tail_), std::memory_order_release);
    ++tail_;
    return true;
  }

  /// Up to `most`, and no more than one of `share` that are there, but one if there is one.
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

  alignas(64) std::uint32_t tail_ = 0;  ///< the producer's own
  alignas(64) typename P::template Atomic<std::uint32_t> head_{0};
  alignas(64) std::array<typename P::template Atomic<std::uintptr_t>, kSize> items_{};
};

}  // namespace sluice::detail
