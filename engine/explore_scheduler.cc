// The controlled scheduler: fibers that go on one at a time.
#include "sluice/engine/detail/explore_scheduler.h"

#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "sluice/engine/detail/core_records.h"
#include "sluice/engine/detail/explore_guests.h"
#include "sluice/engine/detail/fiber.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

/// What the engine and the language keep for a thread, while the strand is not running.
struct Explorer::Locals {
  SlotHint hint;
  ThreadState state;
  SlotCache* slots = nullptr;
  ScopeState* scope = nullptr;
  std::array<void*, 2> exceptions{};  // __cxa_eh_globals: what is caught, how many are on their way
};

struct Explorer::Strand {
  enum State : std::uint8_t { able, paused, parked, locked, ended } state = able;
  Sight sight;
  Fiber fiber;
  Locals locals;
  std::function<void()> body;
  const void* waits_for = nullptr;  // a mutex's or a parker's flag
  std::int64_t deadline = 0;
  // The last loads since it paused: where, and which store they saw.
  struct Look {
    std::uint32_t location, change;
  };
  static constexpr std::uint32_t kLooks = 16;
  std::array<Look, kLooks> looks;
  std::uint32_t look_count = 0;

  Strand() = default;
  void saw(std::uint32_t location, const StoreRecord& store) {
    std::uint32_t i = 0;
    while (i < look_count && looks[i].location != location) ++i;
    if (i == kLooks) return;
    looks[i] = {location, store.change};
    if (i == look_count) ++look_count;
  }
  /// What it stores itself is no news to it, where the store before was none.
  void stored(std::uint32_t location, std::uint32_t before, std::uint32_t change) {
    for (std::uint32_t i = 0; i < look_count; ++i)
      if (looks[i].location == location && looks[i].change == before) looks[i].change = change;
  }
  explicit Strand(std::function<void()> run) : fiber(&Explorer::enter, this), body(std::move(run)) {}
};

namespace {
std::uint32_t bit(int strand) { return std::uint32_t{1} << strand; }
}  // namespace

Explorer& Explorer::get() {
  static Explorer* const explorer = new Explorer;
  return *explorer;
}

void Explorer::reset(std::uint64_t seed) {
  seed_ = seed;
  hash_ = points_ = stalls_ = 0;
  clock_ = 0;
  own_ = nullptr;
  Guests::get().reset(seed);
}

// ---- strands

void Explorer::enter(void* strand) {
  Strand& me = *static_cast<Strand*>(strand);
  try {
    me.body();
    // Whatever it lets go of, under control.
    me.body = nullptr;
    ThreadObject<SlotCache>::drop();
  } catch (...) {
    std::terminate();
  }
  get().end(me);
}

void Explorer::end(Strand& me) {
  delete ThreadObject<ScopeState>::exchange(nullptr);
  me.state = Strand::ended;
  const std::uint32_t mine = bit(me.sight.strand);
  able_ &= ~mine;
  alive_ &= ~mine;
  if (!alive_) switch_to(*runner_, true);
  switch_to(*strands_[static_cast<std::size_t>(next_able())], true);
  std::abort();
}

void Explorer::make(std::function<void()> body, const Strand* parent) {
  int number = static_cast<int>(strands_.size());
  if (number == kStrands) {
    // Later strands take the clocks of ended ones, and with them some of what those knew.
    number = -1;
    for (int i = 0; i < kStrands && number < 0; ++i)
      if (strands_[static_cast<std::size_t>(i)]->state == Strand::ended && i != current_->sight.strand) number = i;
    if (number < 0) give_up("more threads than the explorer has room for");
  } else {
    strands_.emplace_back();
  }
  auto& place = strands_[static_cast<std::size_t>(number)];
  Sight sight;
  if (place) sight.steps = place->sight.steps;
  sight.strand = number;
  if (parent) {
    sight.view = parent->sight.view;
    if (place)
      sight.view.clock.at[static_cast<std::size_t>(number)] =
          place->sight.view.clock.at[static_cast<std::size_t>(number)];
    decider_->born(parent->sight.strand, number);
  }
  place = std::make_unique<Strand>(std::move(body));
  place->sight = sight;
  able_ |= bit(number);
  alive_ |= bit(number);
}

void Explorer::start(std::function<void()> body) {
  Memory::step(current_->sight);
  make(std::move(body), current_);
  if (print_) print("starts a thread", 0, 0);
}

bool Explorer::run(std::vector<std::function<void()>> bodies, std::uint64_t max_points) {
  if (given_) {
    decider_ = given_;
  } else {
    own_ = make_random_decider(seed_ + points_);  // a second run of a seed goes its own way
    decider_ = own_.get();
  }
  memory_.begin_run();
  strands_.clear();
  able_ = paused_ = alive_ = 0;
  hung_ = false;
  max_points_ = points_ + max_points;
  runner_ = std::make_unique<Strand>();
  for (auto& body : bodies) make(std::move(body), nullptr);
  if (bodies.empty()) return true;
  current_ = runner_.get();
  runner_->sight.strand = -1;
  switch_to(*strands_[static_cast<std::size_t>(decider_->next({able_, 0, -1}))], false);
  current_ = nullptr;
  if (hung_) {
    for (auto& s : strands_)
      if (s->state != Strand::ended) static_cast<void>(s.release());  // its stack holds what others may still name
  }
  strands_.clear();
  return !hung_;
}

void Explorer::give_up(const char* why) {
  if (print_) std::fprintf(print_, "  -- %s\n", why);
  hung_ = true;
  switch_to(*runner_, false);
  std::abort();
}

void Explorer::switch_to(Strand& to, bool for_ever) {
  Strand& from = *current_;
  static thread_local void* const exceptions = abi::__cxa_get_globals();
  std::memcpy(from.locals.exceptions.data(), exceptions, sizeof(from.locals.exceptions));
  std::memcpy(exceptions, to.locals.exceptions.data(), sizeof(to.locals.exceptions));
  from.locals.hint = std::exchange(slot_hint, to.locals.hint);
  from.locals.state = std::exchange(thread_state(), to.locals.state);
  from.locals.slots = ThreadObject<SlotCache>::exchange(to.locals.slots);
  from.locals.scope = ThreadObject<ScopeState>::exchange(to.locals.scope);
  current_ = &to;
  Fiber::switch_to(from.fiber, to.fiber, for_ever);
}

// ---- who goes on

void Explorer::point() {
  if (++points_ > max_points_) give_up("more steps than a run may take: a hang");
  const int me = current_->sight.strand;
  const int next = decider_->next({able_, paused_, me});
  if (next == me) return;
  if (paused_ & bit(next)) paused_ &= ~bit(next), able_ |= bit(next);
  strands_[static_cast<std::size_t>(next)]->state = Strand::able;
  switch_to(*strands_[static_cast<std::size_t>(next)], false);
}

/// Who goes on now that the caller cannot. With nobody able or polling, time jumps to the first deadline.
int Explorer::next_able() {
  if (++points_ > max_points_) give_up("more steps than a run may take: a hang");
  if (!able_ && !paused_) {
    Strand* first = nullptr;
    for (auto& s : strands_)
      if (s->state == Strand::parked && (!first || s->deadline < first->deadline)) first = s.get();
    if (!first) give_up("nobody can go on: a hang");
    ++stalls_;
    clock_ = std::max(clock_, first->deadline);
    first->state = Strand::able;
    able_ |= bit(first->sight.strand);
    if (print_) std::fprintf(print_, "  -- nobody can go on; a time limit of strand %d passes\n", first->sight.strand);
  }
  const int next = decider_->next({able_, paused_, current_->sight.strand});
  if (paused_ & bit(next)) paused_ &= ~bit(next), able_ |= bit(next);
  strands_[static_cast<std::size_t>(next)]->state = Strand::able;
  return next;
}

/// The caller cannot go on until its bit is set again and it is chosen.
void Explorer::leave() {
  const std::uint32_t mine = bit(current_->sight.strand);
  able_ &= ~mine;
  const int next = next_able();
  if (next != current_->sight.strand) switch_to(*strands_[static_cast<std::size_t>(next)], false);
}

void Explorer::pause() {
  Strand& me = *current_;
  decider_->polled(me.sight.strand);
  bool news = me.look_count == 0 || me.look_count == Strand::kLooks;  // no spin loop, or one that reads much
  for (std::uint32_t i = 0; i < me.look_count && !news; ++i)
    news = memory_.numbered(me.looks[i].location).last().change != me.looks[i].change;
  if (news) {
    me.look_count = 0;
    return point();
  }
  for (std::uint32_t i = 0; i < me.look_count; ++i)
    memory_.numbered(me.looks[i].location).watchers |= bit(me.sight.strand);
  me.look_count = 0;
  me.state = Strand::paused;
  paused_ |= bit(me.sight.strand);
  if (print_) print("pauses", 0, 0);
  leave();
}

void Explorer::wake_watchers(Location& x) {
  if (x.newest > 0 && x.last().change == x.record(x.newest - 1).change) return;
  for (std::uint32_t rest = std::exchange(x.watchers, 0) & paused_; rest; rest &= rest - 1) {
    const int s = std::countr_zero(rest);
    strands_[static_cast<std::size_t>(s)]->state = Strand::able;
    paused_ &= ~bit(s);
    able_ |= bit(s);
  }
}

// ---- steps

std::uint64_t Explorer::stamp() const {
  return static_cast<std::uint64_t>(current_->sight.strand + 1) << 56 | std::uint64_t{current_->sight.steps} << 32;
}

void Explorer::print(const char* what, std::uint32_t location, std::uint64_t value) {
  std::fprintf(print_, "  %5llu strand %2d: %-16s @%-4u %llx\n", static_cast<unsigned long long>(points_),
               current_->sight.strand, what, location, static_cast<unsigned long long>(value));
}

/// A step of the calling strand, after a point().
Location& Explorer::begin(const Trail& trail, std::uint64_t value, bool shared, const char* what) {
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

void Explorer::fence() {
  point();
  Memory::step(current_->sight);
  decider_->event(current_->sight.strand, 0, false);
  memory_.fence(current_->sight);
  if (print_) print("fence", 0, 0);
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

void Explorer::try_lock(const Trail& trail, bool held) {
  point();
  Location& x = begin(trail, 0, false, "try_lock");
  decider_->event(current_->sight.strand, place_of(x) + 1, false);
  note(x.last().origin);
  if (held) return current_->saw(x.number, x.last());
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
      able_ |= bit(s->sight.strand);
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
      able_ |= bit(s->sight.strand);
    }
}

void Explorer::park(const Trail& trail, bool* signalled, std::chrono::nanoseconds limit) {
  Strand& me = *current_;
  point();
  begin(trail, 0, false, "park");
  if (!*signalled) {
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
