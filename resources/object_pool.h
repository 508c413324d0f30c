// ObjectPool: blocks of one size for objects that one thread makes and another destroys, as every operation does.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

namespace sluice {

/// Blocks of `size` bytes. Each has its cache lines to itself, because neighbours may be in use on different cores.
/// Each thread keeps up to two batches; more go to a list of batches that all share, and what a thread lacks it takes
/// from there, a batch at a time. A block freed on another thread costs no lock and no return to its maker. Memory is
/// kept for the next object. Under sanitizers this is plain new and delete, so that they see each object's life.
template <std::size_t size>
class ObjectPool {
 public:
  static void* allocate() {
#if defined(SLUICE_SANITIZED)
    return ::operator new(size);
#else
    Cache& mine = cache();
    if (!mine.head && !mine.refill()) return ::operator new (lines, std::align_val_t{kLine});
    Block* block = mine.head;
    mine.head = block->next;
    --mine.count;
    if (mine.head) {  // for the next call: it may be in the cache of the core where it was freed
      for (std::size_t at = 0; at < lines; at += kLine) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(mine.head) + at, 1);
      }
    }
    return block;
#endif
  }
  static void deallocate(void* memory) noexcept {
#if defined(SLUICE_SANITIZED)
    ::operator delete(memory);
#else
    Cache& mine = cache();
    auto* block = static_cast<Block*>(memory);
    if (mine.count == kBatch) mine.put_aside();
    block->next = mine.head;
    mine.head = block;
    ++mine.count;
    if (mine.ended) mine.give_all();
#endif
  }

 private:
  static constexpr int kBatch = 64;
  static constexpr std::size_t kLine = 64, lines = (size + kLine - 1) / kLine * kLine;
  struct Block {
    Block* next;  ///< in its batch
    // Of a batch's first block, in the shared list:
    Block* next_batch;
    int count;  ///< of the batch: kBatch, or less where a thread ended
  };
  struct Cache {
    Block* head = nullptr;
    int count = 0;           ///< from head
    Block* spare = nullptr;  ///< a whole batch
    bool ended = false;
    /// True if there is a block now.
    bool refill() noexcept {
      if (ended) return false;
      if (spare) {
        head = std::exchange(spare, nullptr);
        count = kBatch;
      } else if ((head = take_batch())) {
        count = head->count;
      }
      return head != nullptr;
    }
    void put_aside() noexcept {
      if (spare) give(spare, kBatch);
      spare = std::exchange(head, nullptr);
      count = 0;
    }
    void give_all() noexcept {
      if (spare) give(std::exchange(spare, nullptr), kBatch);
      if (head) give(std::exchange(head, nullptr), std::exchange(count, 0));
    }
    ~Cache() {
      give_all();
      ended = true;
    }
  };
  // The list is pushed to, and taken from whole, so that there is no ABA. Who wants one batch puts the rest back.
  static std::atomic<Block*>& shared() {
    static std::atomic<Block*> list{nullptr};
    return list;
  }
  /// How many threads have the whole list in their hands.
  static std::atomic<int>& takers() {
    static std::atomic<int> number{0};
    return number;
  }
  static void give(Block* batch, int count) noexcept {
    batch->count = count;
    give_list(batch, batch);
  }
  static void give_list(Block* first, Block* last) noexcept {
    last->next_batch = shared().load(std::memory_order_relaxed);
    while (!shared().compare_exchange_weak(last->next_batch, first, std::memory_order_release,
                                           std::memory_order_relaxed)) {
    }
  }
  /// Null if there is none, or if others have them in their hands for long.
  static Block* take_batch() noexcept {
    Block* batch = nullptr;
    for (int tries = 0; !batch && tries < 100; ++tries) {
      if (!shared().load(std::memory_order_relaxed)) {
        if (takers().load(std::memory_order_relaxed) == 0) return nullptr;
        continue;
      }
      takers().fetch_add(1, std::memory_order_relaxed);
      batch = shared().exchange(nullptr, std::memory_order_acquire);
      // What came meanwhile is exchanged for the rest, and given again: it is short, where the rest may be long.
      if (batch && batch->next_batch) {
        Block* const newer = shared().exchange(batch->next_batch, std::memory_order_acq_rel);
        if (newer) {
          Block* last = newer;
          while (last->next_batch) last = last->next_batch;
          give_list(newer, last);
        }
      }
      takers().fetch_sub(1, std::memory_order_relaxed);
    }
    return batch;
  }
  static Cache& cache() {
    thread_local Cache mine;
    return mine;
  }
};

/// Gives a class its own pool: class X : public Pooled<X>. For classes that are not derived from.
template <class T>
class Pooled {
 public:
  static void* operator new(std::size_t) { return ObjectPool<sizeof(T)>::allocate(); }
  static void operator delete(void* memory) noexcept { ObjectPool<sizeof(T)>::deallocate(memory); }
};

}  // namespace sluice
