// The steps of a strand: what the operations of the policy do. Each may first let others go, is then told to the
// Decider, takes effect in the memory, and is noted in the trace's hash.
#include <algorithm>

#include "sluice/engine/explore/strand.h"

namespace sluice::detail {

std::uint64_t Explorer::stamp() const {
  return static_cast<std::uint64_t>(current_->sight.strand + 1) << 56 | std::uint64_t{current_->sight.steps} << 32;
}

void Explorer::print(const char* what, std::uint32_t location, std::uint64_t value) {
  std::fprintf(print_, "  %5llu strand %2d: %-16s @%-4u %llx\n", static_cast<unsigned long long>(points_),
               current_->sight.strand, what, location, static_cast<unsigned long long>(value));
}

void Explorer::race(const char* what) {
  // Of a compiler's name for Plain<T> only the T.
  std::string name = what;
  if (const auto at = name.find("T = "); at != std::string::npos)
    name = "a " + name.substr(at + 4, name.size() - at - 5);
  if (print_) std::fprintf(print_, "  -- a race on %s\n", name.c_str());
  if (race_.empty()) race_ = name;
}

/// A step of the calling strand, after a point().
Location& Explorer::begin(const Trail& trail, std::uint64_t value, bool shared, const char* what) {
  use_made(trail);
  Location& x = memory_.at(trail, value);
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, place_of(x), shared);
  if (print_) print(what, x.number, value);
  return x;
}

/// A seq_cst access depends on fences; and where it is the first to see a store that is not seq_cst, later seq_cst
/// loads depend on it.
void Explorer::seen_in_order(Location& x, std::uint32_t store) {
  decider_->event(current_->sight.strand, 0, true);
  decider_->event(current_->sight.strand, place_of(x) + 1, !Memory::enters_order(x, store));
}

std::uint64_t Explorer::load(const Trail& trail, std::uint64_t value, std::memory_order order) {
  Strand& me = *current_;
  point();
  Location& x = begin(trail, value, true, "load");
  const std::uint32_t lowest = memory_.lowest(x, me.sight, order);
  const std::uint32_t n = x.newest - static_cast<std::uint32_t>(this->value(static_cast<int>(x.newest - lowest + 1)));
  me.saw(x.number, x.record(n));
  if (order == std::memory_order_seq_cst) seen_in_order(x, n);
  note(x.record(n).origin);
  if (print_ && n != x.newest) print("  sees an old", x.number, x.record(n).value);
  return memory_.see(x, n, me.sight, order);
}

void Explorer::store(const Trail& trail, std::uint64_t before, std::uint64_t value, std::memory_order order) {
  point();
  begin(trail, before, false, "store");
  if (print_) print("  the value", trail.index, value);
  note(memory_.numbered(trail.index).last().origin);
  if (order == std::memory_order_seq_cst) decider_->event(current_->sight.strand, 0, true);
  Location& x = memory_.numbered(trail.index);
  const std::uint32_t before_it = x.last().change;
  memory_.store(x, value, current_->sight, order, false);
  current_->stored(x.number, before_it, x.last().change);
  wake_watchers(x);
}

void Explorer::read_last(const Trail& trail, std::uint64_t value, std::memory_order order) {
  point();
  Location& x = begin(trail, value, false, "read-modify");
  if (order == std::memory_order_seq_cst) decider_->event(current_->sight.strand, 0, true);
  note(x.last().origin);
  memory_.see(x, x.newest, current_->sight, order);
}

void Explorer::write(const Trail& trail, std::uint64_t value, std::memory_order order) {
  Location& x = memory_.numbered(trail.index);
  if (print_) print("  the value", x.number, value);
  memory_.store(x, value, current_->sight, order, true);
  current_->saw(x.number, x.last());
  wake_watchers(x);
}

bool Explorer::compare(const Trail& trail, std::uint64_t value, std::uint64_t* expected, std::memory_order success,
                       std::memory_order failure, bool weak) {
  Strand& me = *current_;
  // One that fails is only a load, which is known when it has run.
  point();
  use_made(trail);
  Location& x = memory_.at(trail, value);
  Memory::step(me.sight);
  const bool would = x.last().value == *expected;
  // A load that fails may see what a load may see, as long as it differs; a weak one may fail without.
  const std::uint32_t lowest = memory_.lowest(x, me.sight, failure);
  std::array<std::uint32_t, kHistory + 1> ways;
  int count = 1;
  ways[0] = x.newest;
  for (std::uint32_t n = x.newest; n-- > lowest;)
    if (x.record(n).value != *expected) ways[static_cast<std::size_t>(count++)] = n;
  if (would && weak) ways[static_cast<std::size_t>(count++)] = x.newest;
  // Its choice belongs to the step, which must be known before: as a write if it can be one.
  decider_->event(me.sight.strand, place_of(x), !would);
  const int way = this->value(count);
  const std::uint32_t n = ways[static_cast<std::size_t>(way)];
  const bool succeeds = would && way == 0;
  const std::memory_order order = succeeds ? success : failure;
  if (order == std::memory_order_seq_cst) seen_in_order(x, n);
  if (print_) print(succeeds ? "exchange" : "exchange fails", x.number, x.record(n).value);
  note(x.record(n).origin + (succeeds ? 0 : 0x80000000u));
  if (!succeeds) {
    me.saw(x.number, x.record(n));
  }
  *expected = memory_.see(x, n, me.sight, order);
  return succeeds;
}

void Explorer::tell(Told& told) {
  if (told.run != memory_.run()) told = {memory_.run(), {}};
  told.view.join(current_->sight.view);
}

void Explorer::learn(const Told& told) {
  if (told.run == memory_.run()) current_->sight.view.join(told.view);
}

void Explorer::fence() {
  point();
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, 0, false);
  memory_.fence(current_->sight);
  if (print_) print("fence", 0, 0);
}

/// Nothing by itself: no more than a place where a heavy one matters.
void Explorer::light_fence() {
  point();
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, 0, true);
  if (print_) print("light fence", 0, 0);
}

/// As if every strand had a fence where it stands, between two of the caller's; one that has ended had it then.
void Explorer::heavy_fence() {
  point();
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, 0, false);
  memory_.fence(current_->sight);
  for (auto& s : strands_) memory_.fence(s->sight);
  memory_.fence(current_->sight);
  if (print_) print("heavy fence", 0, 0);
}

Sight& Explorer::change(const Trail& trail) {
  Location& x = begin(trail, 0, false, "queue");
  // Not a store to see, but news for who polls: the number of the newest says so.
  note(x.last().origin);
  memory_.store(x, x.newest + 1, current_->sight, std::memory_order_relaxed, true);
  wake_watchers(x);
  return current_->sight;
}

Sight& Explorer::look(const Trail& trail) {
  Strand& me = *current_;
  Location& x = begin(trail, 0, true, "queue looked at");
  me.saw(x.number, x.last());
  note(x.last().origin);
  return me.sight;
}

// ---- blocking

void Explorer::lock(const Trail& trail, const std::atomic<bool>* held) {
  Strand& me = *current_;
  point();
  while (held->load()) {
    me.state = Strand::locked;
    me.waits_for = held;
    leave();
  }
  Location& x = memory_.at(trail, 0);
  Memory::step(me.sight);
  // First with who locked it before, then with who unlocked it.
  decider_->event(me.sight.strand, place_of(x), false);
  decider_->event(me.sight.strand, place_of(x) + 1, false);
  if (print_) print("lock", x.number, 0);
  note(x.last().origin);
  memory_.store(x, x.newest + 1, me.sight, std::memory_order_relaxed, true);
  Memory::acquire(x, me.sight);
}

void Explorer::try_lock(const Trail& trail, const std::atomic<bool>* held) {
  point();
  Location& x = begin(trail, 0, false, "try_lock");
  decider_->event(current_->sight.strand, place_of(x) + 1, false);
  note(x.last().origin);
  if (held->load()) return current_->saw(x.number, x.last());  // as it is now, after others had their steps
  memory_.store(x, x.newest + 1, current_->sight, std::memory_order_relaxed, true);
  Memory::acquire(x, current_->sight);
}

void Explorer::unlock(const Trail& trail, std::atomic<bool>* held) {
  // A step of its own: who is preempted just before makes others block, and who blocks gives way at no cost.
  point();
  Location& x = memory_.at(trail, 0);
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, place_of(x) + 1, false);
  if (print_) print("unlock", x.number, 0);
  held->store(false);
  Memory::release(x, current_->sight);
  memory_.store(x, x.newest + 1, current_->sight, std::memory_order_relaxed, true);
  wake_watchers(x);
  for (auto& s : strands_)
    if (s->state == Strand::locked && s->waits_for == held) {
      s->state = Strand::able;
      able_ |= s->bit();
    }
}

void Explorer::signal(const Trail& trail, bool* signalled) {
  point();
  Location& x = begin(trail, 0, false, "signal");
  note(x.last().origin);
  memory_.store(x, x.newest + 1, current_->sight, std::memory_order_relaxed, true);
  Memory::release(x, current_->sight);
  *signalled = true;
  for (auto& s : strands_)
    if (s->state == Strand::parked && s->waits_for == signalled) {
      s->state = Strand::able;
      able_ |= s->bit();
    }
}

void Explorer::park(const Trail& trail, bool* signalled, std::chrono::nanoseconds limit) {
  Strand& me = *current_;
  point();
  begin(trail, 0, false, "park");
  const bool early = !*signalled && loosely_ && value(2) != 0;
  if (!*signalled && !early) {
    const auto longest = std::chrono::nanoseconds(std::chrono::milliseconds(200));
    me.state = Strand::parked;
    me.waits_for = signalled;
    me.deadline = clock_ + std::min(limit, longest).count();
    leave();
    Memory::step(me.sight);
    decider_->event(me.sight.strand, place_of(memory_.at(trail, 0)), false);
  }
  Location& x = memory_.at(trail, 0);
  note(x.last().origin + *signalled);
  memory_.store(x, x.newest + 1, me.sight, std::memory_order_relaxed, true);
  if (*signalled) Memory::acquire(x, me.sight);
  *signalled = false;
  me.look_count = 0;
}

}  // namespace sluice::detail
