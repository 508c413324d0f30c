// What streams do with a block of memory: up to which point of which stream it is in use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/engine/device.h"
#include "sluice/engine/stream.h"

namespace sluice {

/// How far a stream is known to be. Shared by those who issue to it and the blocks that it uses, so that it lives as
/// long as either. Thread-safe.
struct StreamProgress {
  StreamProgress(Stream* s, Device d) : stream(s), device(d) {}
  Stream* const stream;  ///< compared; asked for a use that is not over, and may be gone when all are
  const Device device;   ///< the stream's
  /// What was issued before this point is over (Context::issued_point).
  std::atomic<std::uint64_t> over{0};

  void passed(std::uint64_t point) noexcept {
    std::uint64_t before = over.load(std::memory_order_relaxed);
    while (before < point && !over.compare_exchange_weak(before, point, std::memory_order_acq_rel)) {
    }
  }
};

/// A use of a block: work that was issued to the stream before that point.
struct BlockUse {
  std::shared_ptr<StreamProgress> by;
  std::uint64_t point = 0;
  bool over() const { return by->over.load(std::memory_order_acquire) >= point; }
  StreamEvent event() const { return {by->stream, point}; }
};

/// The uses of one block, the last of each stream. Most have one or two.
class BlockUses {
 public:
  /// Throws std::bad_alloc, and has changed nothing then.
  void add(const std::shared_ptr<StreamProgress>& stream, std::uint64_t point) {
    BlockUse* known = nullptr;
    each([&](BlockUse& use) { known = use.by == stream ? &use : known; });
    if (known) {
      known->point = std::max(known->point, point);
    } else if (!first_.by) {
      first_ = {stream, point};
    } else {
      more_.push_back({stream, point});
    }
  }
  /// Calls f(use) for each.
  template <class F>
  void each(F&& f) {
    if (first_.by) f(first_);
    for (BlockUse& use : more_) f(use);
  }
  /// Whether all that others than the stream do with the block is over.
  bool over_but_for(const Stream* stream) const {
    const auto done = [&](const BlockUse& use) { return !use.by || use.by->stream == stream || use.over(); };
    return done(first_) && std::all_of(more_.begin(), more_.end(), done);
  }
  bool over() const { return over_but_for(nullptr); }
  /// Whether a stream other than this one has used it.
  bool others_than(const Stream* stream) const {
    const auto other = [&](const BlockUse& use) { return use.by && use.by->stream != stream; };
    return other(first_) || std::any_of(more_.begin(), more_.end(), other);
  }

 private:
  BlockUse first_;
  std::vector<BlockUse> more_;
};

}  // namespace sluice
