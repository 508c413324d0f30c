// The controlled scheduler: fibers that go on one at a time.
#include "sluice/engine/explore/scheduler.h"

#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "sluice/engine/detail/thread_object.h"
#include "sluice/engine/explore/guests.h"
#include "sluice/engine/explore/strand.h"

namespace sluice::detail {

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
  race_.clear();
  loosely_ = false;
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
  ThreadObject<ScopeState>::drop();
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
  running_sight = nullptr;
  if (hung_) {
    // Their stacks hold what others may still name.
    static auto* const left = new std::vector<std::unique_ptr<Strand>>;
    std::move(strands_.begin(), strands_.end(), std::back_inserter(*left));
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
  running_sight = to.sight.strand < 0 ? nullptr : &to.sight;
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

}  // namespace sluice::detail
