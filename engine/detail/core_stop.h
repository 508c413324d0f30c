// Core<P>, everything at once: how much is in flight, wait_all, stop, and the end of the process.
#pragma once

#include <algorithm>
#include <limits>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
std::size_t Core<P>::in_flight() const {
  refuse_forked("in_flight");
  // An op that is pushed while the counts are read may be counted as pushed and not as completed. If this thread loses
  // its core between the two reads these can be any number. No look finds too few, so the least of several looks is the
  // best.
  std::int64_t twice = std::numeric_limits<std::int64_t>::max();
  for (int looks = 0; looks < 16; ++looks) {
    const std::uint64_t before = progress();
    twice = std::min(twice, twice_in_flight(1));
    if (progress() == before) break;
  }
  return twice > 0 ? static_cast<std::size_t>(twice / 2) : 0;
}

/// True if no op is in flight, and no ticket says that one is.
template <class P>
bool Core<P>::all_over() const {
  return twice_in_flight(0) <= 0;
}

/// With `ending` 1 an op counts as completed a moment before its ticket says so.
template <class P>
std::int64_t Core<P>::twice_in_flight(std::uint64_t ending) const {
  std::lock_guard lock(slots_mutex_);
  // The completed ops are read first: an op that completes meanwhile then counts as in flight, never the other way
  // round; and a thread that sees that an op is over sees its push. The counts may come round; their difference does
  // not.
  std::uint64_t twice = 0;
  for (auto& slot : slots_) {
    const std::uint64_t completed = slot->completed.load(std::memory_order_acquire);
    twice -= completed + (completed & ending);
  }
  for (auto& slot : slots_) twice += slot->pushes.load(std::memory_order_relaxed) & ~std::uint64_t{1};
  return static_cast<std::int64_t>(twice);
}

/// Waits for every op that is live now, and ignores errors. Returns false when the time was over first.
template <class P>
bool Core<P>::wait_live(std::chrono::nanoseconds limit, Lane<P>* helped) {
  const bool bounded = limit != std::chrono::nanoseconds::max();
  const std::int64_t deadline = bounded ? deadline_of(limit) : 0;
  flush(my_slot());
  if (options_.serial && !in_op()) drain_serial();
  if (all_over()) return true;
  struct Live {
    std::uint32_t index;
    std::uint64_t generation;
  };
  const auto await = [&](const Live& op) {
    const auto left = bounded ? std::chrono::nanoseconds(std::max<std::int64_t>(deadline - P::now(), 0)) : limit;
    return await_ticket(op.index, op.generation, left, helped);
  };
  const auto is_live = [](std::uint64_t word) { return (word & kLive) && !(word & kInternal); };
  // The last op that this thread pushed comes first: when it is over most often all are, and no other record has to be
  // read.
  if (const Op* last = last_record(my_slot())) {
    const std::uint64_t word =
        last->word.load(std::memory_order_relaxed);  // this thread's own, or over: then all_over() counts it
    if (is_live(word) && !await({last->index, generation_of(word) & 0xffffffffu})) return false;
    if (options_.serial ? all_over() : soon([&] { return all_over(); })) return true;
  }
  std::vector<Live> live;
  const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < slabs; ++s) {
    const Slab& slab = *slabs_[s].load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < kSlabOps; ++i) {
      const std::uint64_t word = slab.ops[i].word.load(std::memory_order_acquire);
      if (is_live(word)) live.push_back({s * kSlabOps + i, generation_of(word) & 0xffffffffu});
    }
  }
  // Goes backwards, because records are given out in order: when the last op is over most of the others are.
  std::reverse(live.begin(), live.end());
  for (const Live& op : live) {
    if (is_over(op.index, op.generation)) continue;
    if (!await(op)) return false;
    if (all_over()) return true;
  }
  return true;
}

template <class P>
void Core<P>::wait_all(bool help) {
  refuse_capture("wait_all");
  refuse_forked("wait_all");
  if (in_op()) deadlock("wait_all inside an op can never end: the op itself is part of it");
  wait_live(std::chrono::nanoseconds::max(), lane_to_help(help));
  if (order_) tell_passed(false);
  std::vector<ErrorRef> roots;
  {
    std::lock_guard lock(errors_.mutex);
    for (auto& [sequence, entry] : errors_.roots)
      if (entry.live_variables > 0 || entry.wrote_nothing) roots.push_back(entry.root);
    prune_roots();
  }
  if (roots.empty()) return;
  AggregateError error(std::move(roots));
  for (const ErrorRef& root : error.roots()) observe(root);
  throw error;
}

/// Waits a little for live ops; the caller looks again afterwards. Works without memory too.
template <class P>
void Core<P>::wait_a_little(std::int64_t end) {
  const auto left = std::chrono::nanoseconds(std::max<std::int64_t>(end - P::now(), 0));
  try {
    if (starts_fail()) rescue(true, [&] { return P::now() >= end; });
    wait_live(std::min<std::chrono::nanoseconds>(5 * P::kTick, left));
    P::yield();
  } catch (const std::bad_alloc&) {
    typename P::Parker().wait(std::chrono::milliseconds(1));
  }
}

template <class P>
void Core<P>::forked() noexcept {
  forked_.store(true, std::memory_order_relaxed);
  stopped_.store(true, std::memory_order_relaxed);  // what a push looks at
  if (in_op()) thread_state().core = nullptr;
}

template <class P>
bool Core<P>::settle(std::chrono::nanoseconds limit) {
  if (in_op() || forked_.load(std::memory_order_relaxed)) return true;
  const std::int64_t end = deadline_of(limit);
  std::uint64_t seen = 0;
  for (int quiet = 0; quiet < 3;) {
    if (P::now() >= end) return false;
    const std::uint64_t now = progress();
    const bool moves = anything_moves();
    quiet = !moves && (quiet == 0 || now == seen) ? quiet + 1 : 0;
    seen = now;
    if (moves) wait_a_little(end);
  }
  return true;
}

template <class P>
bool Core<P>::stop(StopMode mode, std::chrono::nanoseconds deadline) {
  refuse_forked("stop");
  if (in_op()) deadlock("stop inside an op can never end: the op itself is in flight");
  stopped_.store(true, std::memory_order_relaxed);
  if (mode == StopMode::cancel) cancel_all_.store(true, std::memory_order_relaxed);
  P::heavy_fence();  // begin_push
  const std::int64_t end = deadline_of(deadline);
  bool drained = false;
  while (!(drained = all_over()) && P::now() < end) wait_a_little(end);
  if (drained && order_) tell_passed(false);
  report_unobserved();
  return drained;
}

}  // namespace sluice::detail
