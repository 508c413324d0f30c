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

#include "sluice/engine/detail/prefetch.h"
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
    Place* next_list;       ///< of the first of a list: the next list
  };

 public:
  using Node = VariableNode<P>;

  /// Free places that a thread keeps for its next variables, so that it seldom needs the lock. It has up to two lists,
  /// the second of which goes to other threads, or comes from them, as a whole.
  class Cache {
   public:
    Cache() = default;
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

   private:
    friend Nodes;
    Place* head_ = nullptr;
    Place* full_ = nullptr;  ///< a list of kList places
    int count_ = 0;          ///< of the first list
  };

  Nodes() = default;
  ~Nodes() {
    for (Place* list = lists_; list;) {
      Place* const next = list->next_list;
      for (Place* place = list; place;) {
        SLUICE_IN_USE(place, sizeof(Node));
        delete place->rare;
        place = place->next;
      }
      list = next;
    }
    for (const Slab& slab : slabs_) ::operator delete(slab.nodes, slab.alignment());
  }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  /// `cache`: the calling thread's, or null. Throws bad_alloc.
  Node* make(Cache* cache) {
    static_assert(sizeof(Node) == 64 || !std::is_same_v<typename P::template Plain<int>, int>);
    Cache none;
    Cache& from = cache ? *cache : none;
    void* place = from.head_;
    VariableRare<P>* rare = nullptr;
    if (!place) [[unlikely]]
      place = refill(from);
    if (from.head_) {
      SLUICE_IN_USE(place, sizeof(Node));
      rare = from.head_->rare;
      from.head_ = from.head_->next;
      --from.count_;
      if (from.head_) prefetch_to_write(from.head_);  // it may be in the cache of the core where it was freed
    }
    if (!cache) give_back(none);
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
      rare->host.reset();
    }
    node->~Node();
    if (forked) return;
    // But for the pointers of the list: LeakSanitizer follows none in poisoned memory.
    SLUICE_NOT_IN_USE(reinterpret_cast<std::byte*>(node) + sizeof(Place), sizeof(Node) - sizeof(Place));
    Cache none;
    Cache& to = cache ? *cache : none;
    to.head_ = new (node) Place{to.head_, rare, nullptr};
    if (++to.count_ == kList) {
      if (to.full_) give_back(to.full_);
      to.full_ = to.head_;
      to.head_ = nullptr;
      to.count_ = 0;
    }
    if (!cache) give_back(none);
  }

  /// Takes all free places of a thread back.
  void give_back(Cache& cache) noexcept {
    if (cache.head_) give_back(cache.head_);
    if (cache.full_) give_back(cache.full_);
    cache.head_ = cache.full_ = nullptr;
    cache.count_ = 0;
  }

 private:
  static constexpr std::size_t kHugePage = 2u << 20;
  static constexpr std::size_t kFew = 64, kMany = kHugePage / 64;  ///< nodes of the first slab, and of the largest
  static constexpr int kList = 32;                                 ///< places that go from thread to thread at a time
  struct Slab {
    Node* nodes;
    std::size_t count;
    std::size_t used;
    std::size_t size() const { return count * sizeof(Node); }
    std::align_val_t alignment() const { return std::align_val_t{count < kMany ? alignof(Node) : kHugePage}; }
  };
  void give_back(Place* list) noexcept {
    std::lock_guard lock(mutex_);
    list->next_list = lists_;
    lists_ = list;
  }
  /// Gives the cache a list, and returns its first place; or returns a place that was never used.
  [[gnu::noinline]] void* refill(Cache& cache) {
    cache.head_ = std::exchange(cache.full_, nullptr);
    if (!cache.head_) {
      std::lock_guard lock(mutex_);
      if (!lists_) {
        if (slabs_.empty() || slabs_.back().used == slabs_.back().count) add_slab();
        Node* const place = slabs_.back().nodes + slabs_.back().used++;
        SLUICE_IN_USE(place, sizeof(Node));
        return place;
      }
      cache.head_ = std::exchange(lists_, lists_->next_list);
    }
    cache.count_ = kList;  // or fewer: then it is given back a little later
    return cache.head_;
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
  Place* lists_ = nullptr;
  std::vector<Slab> slabs_;
};

}  // namespace sluice::detail
