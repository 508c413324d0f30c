// Where variables lie: side by side, a cache line each. malloc would put them up to three lines apart, and a program
// with many of them would wait for page tables too.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/detail/sanitizers.h"

#ifdef SLUICE_ASAN  // or who uses a variable after its end would not be seen
#include <sanitizer/asan_interface.h>
#define SLUICE_IN_USE(place, size) ASAN_UNPOISON_MEMORY_REGION(place, size)
#define SLUICE_NOT_IN_USE(place, size) ASAN_POISON_MEMORY_REGION(place, size)
#else
#define SLUICE_IN_USE(place, size)
#define SLUICE_NOT_IN_USE(place, size)
#endif

namespace sluice::detail {

/// Thread-safe. Gives no memory back before it ends: what the most variables at a time needed.
template <class P>
class Nodes {
 public:
  using Node = VariableNode<P>;

  /// Throws bad_alloc.
  Node* make() {
    static_assert(sizeof(Node) == 64 || !std::is_same_v<typename P::template Plain<int>, int>);
    std::lock_guard lock(mutex_);
    if (!free_) add_slab();
    Place* const place = free_;
    SLUICE_IN_USE(place, sizeof(Node));
    free_ = place->next;
    return new (place) Node;
  }

  /// May end the engine that this is a part of: its last variable went. In a child `forked` off while others used it
  /// the memory stays, because one of them may have had the lock.
  void end(Node* node, bool forked) noexcept {
    const std::shared_ptr<CoreBase> keep = std::move(node->keep);
    node->~Node();
    if (forked) return;
    std::lock_guard lock(mutex_);
    free_ = new (node) Place{free_};
    SLUICE_NOT_IN_USE(node, sizeof(Node));
  }

 private:
  static constexpr std::size_t kSlab = 64;
  struct Place {
    Place* next;
  };
  struct alignas(Node) Slab {
    std::byte places[kSlab][sizeof(Node)];
  };
  void add_slab() {
    slabs_.push_back(std::make_unique<Slab>());
    for (std::size_t i = kSlab; i > 0; --i) free_ = new (slabs_.back()->places[i - 1]) Place{free_};
  }

  std::mutex mutex_;
  Place* free_ = nullptr;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

}  // namespace sluice::detail
