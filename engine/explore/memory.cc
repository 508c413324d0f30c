// The explorer's memory.
#include "sluice/engine/explore/memory.h"

#include <algorithm>

namespace sluice::detail {

void Memory::begin_run() {
  present_run = ++run_;
  used_ = 0;
  s_ = 0;
  fences_ = {};
}

Location& Memory::at(const Trail& trail, std::uint64_t value) {
  if (trail.run == run_) return numbered(trail.index);
  if (used_ / kChunk == chunks_.size()) chunks_.push_back(std::make_unique_for_overwrite<Location[]>(kChunk));
  trail.run = run_;
  trail.index = used_++;
  Location& x = numbered(trail.index);
  x.number = trail.index;
  x.newest = x.oldest = 0;
  x.watchers = 0;
  x.handed = {};
  StoreRecord& first = x.records[0];
  first.value = value;
  first.change = 0;
  first.s = kNotInS;
  first.origin = 0;
  first.released = {};
  first.seen = {};  // by all, before the run
  return x;
}

std::uint32_t Memory::lowest(Location& x, const Sight& me, std::memory_order order) {
  std::uint32_t n = x.newest;
  for (; n > x.oldest; --n) {
    const StoreRecord& r = x.record(n);
    if (r.known(me.view.clock) || r.s < me.view.fence) break;
    if (order == std::memory_order_seq_cst && (r.s != kNotInS || r.known(fences_.clock))) break;
  }
  return n;
}

std::uint64_t Memory::see(Location& x, std::uint32_t n, Sight& me, std::memory_order order) {
  StoreRecord& r = x.record(n);
  r.seen.at[index(me)] = std::min(r.seen.at[index(me)], me.view.clock.at[index(me)]);
  if (order == std::memory_order_seq_cst) r.s = std::min(r.s, s_++);
  (acquires(order) ? me.view : me.pending).join(r.released);
  return r.value;
}

void Memory::store(Location& x, std::uint64_t value, Sight& me, std::memory_order order, bool after_read) {
  const StoreRecord& before = x.last();
  StoreRecord& r = x.record(x.newest + 1);
  if (after_read) {
    r.released = before.released;
    r.released.join(releases(order) ? me.view : me.fenced);
  } else {
    r.released = releases(order) ? me.view : me.fenced;
  }
  ++x.newest;
  x.oldest = std::max(x.oldest, x.newest < kHistory ? 0 : x.newest - kHistory + 1);
  r.value = value;
  r.change = before.change + (value != before.value);
  r.s = order == std::memory_order_seq_cst ? s_++ : kNotInS;
  r.origin = static_cast<std::uint32_t>(me.strand) << 24 | (me.steps & 0xffffff);
  r.seen.at.fill(kNever);
  r.seen.at[index(me)] = me.view.clock.at[index(me)];
}

void Memory::fence(Sight& me) {
  me.view.join(me.pending);
  me.view.join(fences_);
  me.view.fence = ++s_;  // after everything in S so far, which has smaller places
  fences_ = me.view;
  me.fenced = me.view;
}

}  // namespace sluice::detail
