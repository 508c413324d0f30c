// ObjectPool: blocks of one size for objects that one thread makes and another destroys, as every operation does.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace sluice {

/// Blocks of `size` bytes. Each has its cache lines to itself, because neighbours may be in use on different cores.
/// Each thread keeps some; more go, in batches, to a list that all share. A block freed on another thread costs no lock
/// and no return to its maker. Memory is kept for the next object. Under sanitizers this is plain new and delete, so
/// that they see each object's life.
template <std::size_t size>
class ObjectPool {
 public:
  static void* allocate() {
#if defined(SLUICE_SANITIZED)
    return ::operator new(size);
#else
    Cache& mine = cache();
    if (!mine.head) {
      mine.head = shared().exchange(nullptr, std::memory_order_acquire);
      mine.count = 0;  // counts what this thread freed, which is what it may have too much of
    }
    if (!mine.head) return ::operator new (lines, std::align_val_t{kLine});
    Block* block = mine.head;
    mine.head = block->next;
    if (mine.head) {  // for the next call: it may be in the cache of the core where it was freed
      for (std::size_t at = 0; at < lines; at += kLine) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(mine.head) + at, 1);
      }
    }
    if (mine.count > 0) --mine.count;
    return block;
#endif
  }
  static void deallocate(void* memory) noexcept {
#if defined(SLUICE_SANITIZED)
    ::operator delete(memory);
#else
    Cache& mine = cache();
    if (mine.ended) return give(static_cast<Block*>(memory), static_cast<Block*>(memory));
    auto* block = static_cast<Block*>(memory);
    block->next = mine.head;
    mine.head = block;
    if (++mine.count >= kBatch) mine.give_all();
#endif
  }

 private:
  static constexpr int kBatch = 64;
  static constexpr std::size_t kLine = 64, lines = (size + kLine - 1) / kLine * kLine;
  struct Block {
    Block* next;
  };
  struct Cache {
    Block* head = nullptr;
    int count = 0;
    bool ended = false;
    void give_all() noexcept {
      if (!head) return;
      Block* last = head;
      while (last->next) last = last->next;
      give(head, last);
      head = nullptr;
      count = 0;
    }
    ~Cache() {
      give_all();
      ended = true;
    }
  };
  // Only pushed to, and taken from whole: no ABA.
  static std::atomic<Block*>& shared() {
    static std::atomic<Block*> list{nullptr};
    return list;
  }
  static void give(Block* first, Block* last) noexcept {
    last->next = shared().load(std::memory_order_relaxed);
    while (!shared().compare_exchange_weak(last->next, first, std::memory_order_release, std::memory_order_relaxed)) {
    }
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
