// Where variables lie: side by side, a cache line each, and many of them in huge pages. malloc would put them up to
// three lines apart, and a program with many variables would wait for page tables too.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/detail/sanitizers.h"

#ifdef SLUICE_ASAN  // so that a use of a variable after its end is found
#include <sanitizer/asan_interface.h>
#define SLUICE_IN_USE(place, size) ASAN_UNPOISON_MEMORY_REGION(place, size)
#define SLUICE_NOT_IN_USE(place, size) ASAN_POISON_MEMORY_REGION(place, size)
#else
#define SLUICE_IN_USE(place, size)
#define SLUICE_NOT_IN_USE(place, size)
#endif

namespace sluice::detail {

/// Thread-safe. Gives no memory back before it is destroyed: it keeps what the largest number of variables at a time
/// needed.
template <class P>
class Nodes {
  struct Place {
    Place* next;
    VariableRare<P>* rare;  ///< of the variable that was here, for the next one
  };

 public:
  using Node = VariableNode<P>;

  /// Free places that a thread keeps for its next variables, so that it seldom needs the lock.
  class Cache {
   public:
    Cache() = default;
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

   private:
    friend Nodes;
    Place* head_ = nullptr;
    int count_ = 0;
  };

  Nodes() = default;
  ~Nodes() {
    for (Place* place = free_; place;) {
      SLUICE_IN_USE(place, sizeof(Node));
      delete place->rare;
      place = place->next;
    }
    for (const Slab& slab : slabs_) ::operator delete(slab.nodes, slab.alignment());
  }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  /// `cache`: the calling thread's, or null. Throws bad_alloc.
  Node* make(Cache* cache) {
    static_assert(sizeof(Node) == 64 || !std::is_same_v<typename P::template Plain<int>, int>);
    void* place = nullptr;
    VariableRare<P>* rare = nullptr;
    if (cache && cache->head_) {
      place = cache->head_;
      SLUICE_IN_USE(place, sizeof(Node));
      rare = cache->head_->rare;
      cache->head_ = cache->head_->next;
      --cache->count_;
    } else {
      place = take(cache, rare);
    }
    Node* const node = new (place) Node;  // its members are the policy's, where the explorer may change threads
    if (rare) node->rare.store(rare, std::memory_order_relaxed);
    return node;
  }

  /// In a forked child where other threads used it at the fork (`forked`) the memory stays, because one of them may
  /// have had the lock.
  void end(Node* node, bool forked, Cache* cache) noexcept {
    VariableRare<P>* const rare = node->rare.load(std::memory_order_acquire);
    if (rare) {
      rare->uses.clear();
      rare->error.reset();
    }
    node->~Node();
    if (forked) return;
    // But for the pointers of the list: LeakSanitizer follows none in poisoned memory.
    SLUICE_NOT_IN_USE(reinterpret_cast<std::byte*>(node) + sizeof(Place), sizeof(Node) - sizeof(Place));
    if (!cache) {
      std::lock_guard lock(mutex_);
      free_ = new (node) Place{free_, rare};
      return;
    }
    cache->head_ = new (node) Place{cache->head_, rare};
    if (++cache->count_ == 2 * kBatch) give_back(*cache, kBatch);
  }

  /// Takes so many free places of a thread back.
  void give_back(Cache& cache, int count) noexcept {
    if (count == 0) return;
    Place* const first = cache.head_;
    Place* last = first;
    for (int i = 1; i < count; ++i) last = last->next;
    cache.head_ = last->next;
    cache.count_ -= count;
    std::lock_guard lock(mutex_);
    last->next = free_;
    free_ = first;
  }
  void give_back(Cache& cache) noexcept { give_back(cache, cache.count_); }

 private:
  static constexpr std::size_t kHugePage = 2u << 20;
  static constexpr std::size_t kFew = 64, kMany = kHugePage / 64;  ///< nodes of the first slab, and of the largest
  static constexpr int kBatch = 32;                                ///< how many a thread takes or gives back
  struct Slab {
    Node* nodes;
    std::size_t count;
    std::size_t used;
    std::size_t size() const { return count * sizeof(Node); }
    std::align_val_t alignment() const { return std::align_val_t{count < kMany ? alignof(Node) : kHugePage}; }
  };
  /// A place; and some more for the cache, of those that are free.
  [[gnu::noinline]] void* take(Cache* cache, VariableRare<P>*& rare) {
    std::lock_guard lock(mutex_);
    if (!free_) {
      if (slabs_.empty() || slabs_.back().used == slabs_.back().count) add_slab();
      Node* const place = slabs_.back().nodes + slabs_.back().used++;
      SLUICE_IN_USE(place, sizeof(Node));
      return place;
    }
    Place* const place = free_;
    SLUICE_IN_USE(place, sizeof(Node));
    rare = place->rare;
    free_ = place->next;
    for (int i = 0; cache && free_ && i < kBatch; ++i) {
      Place* const more = std::exchange(free_, free_->next);
      more->next = cache->head_;
      cache->head_ = more;
      ++cache->count_;
    }
    return place;
  }
  /// Each slab is twice as large as the last, up to a huge page, for which it asks the system.
  void add_slab() {
    Slab slab{nullptr, slabs_.empty() ? kFew : std::min(kMany, std::size_t{2} * slabs_.back().count), 0};
    slabs_.reserve(slabs_.size() + 1);
    slab.nodes = static_cast<Node*>(::operator new(slab.size(), slab.alignment()));
    if (slab.count == kMany) madvise(slab.nodes, slab.size(), MADV_HUGEPAGE);  // where there is none: as before
    SLUICE_NOT_IN_USE(slab.nodes, slab.size());
    slabs_.push_back(slab);
  }

  std::mutex mutex_;
  Place* free_ = nullptr;
  std::vector<Slab> slabs_;
};

}  // namespace sluice::detail
