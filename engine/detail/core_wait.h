// Core<P>, waiting: for variables, tickets and borrows; deadlocks found.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
void Core<P>::deadlock(const std::string& what) {
  auto root = std::make_shared<ErrorRoot>();
  const Operation* op = in_op() ? thread_state().operation : nullptr;
  root->kind = ErrorKind::deadlock;
  root->operation = op ? op->name : "wait";
  if (op) root->file = op->where.file_name(), root->line = op->where.line();
  root->message = what;
  throw Error(std::move(root));
}

/// The instant that a time limit of now on ends at; never past what the clock can hold.
template <class P>
std::int64_t Core<P>::deadline_of(std::chrono::nanoseconds limit) {
  const std::int64_t now = P::now();
  return limit.count() > std::numeric_limits<std::int64_t>::max() - now
             ? std::numeric_limits<std::int64_t>::max()
             : now + std::max<std::int64_t>(limit.count(), 0);
}

/// True while some thread, queue or device could still free an op. What a look must not miss is announced before it is
/// done and withdrawn after (Activity, Slot::pushes, the queues, open_), so that several looks with no progress()
/// between them are proof: who sees what was done, or waits behind it in a chain, has seen the announcement too.
/// Without `for_deadlock`: whether some op is ready or running (the caps ask, and may miss a push that has just begun).
/// Without `queues`: whether some thread or device does.
template <class P>
bool Core<P>::anything_moves(bool for_deadlock, bool queues) {
  std::int64_t held = 0;
  for (const bool fenced : {false, true}) {
    if (fenced) P::heavy_fence();  // what was seen before it proves movement only
    if (queues && anything_queued()) return true;
    held = 0;
    std::lock_guard lock(slots_mutex_);
    for (auto& slot : slots_) {
      if (slot->pushes.load(std::memory_order_acquire) & 1) return true;
      const Activity a = slot->activity.load(std::memory_order_acquire);
      if (a == Activity::running) return true;
      if (a == Activity::blocked) held += slot->borrows.load(std::memory_order_acquire);
    }
  }
  if (!for_deadlock) return on_device_.load(std::memory_order_acquire) > 0;
  if (open_.load(std::memory_order_acquire) > held) return true;
  std::lock_guard lock(blocked_mutex_);
  for (Wait* w = blocked_waits_; w; w = w->next_blocked)
    if (!w->covered && w->state.load(std::memory_order_acquire) != Wait::waiting) return true;
  return false;
}

template <class P>
std::uint64_t Core<P>::progress() {
  std::uint64_t sum = 0;
  std::lock_guard lock(slots_mutex_);
  for (auto& slot : slots_)
    sum += slot->pushes.load(std::memory_order_acquire) + slot->completed.load(std::memory_order_acquire);
  return sum;
}

/// Says what a thread is blocked for, while it is.
template <class P>
class Core<P>::Announced {
 public:
  Announced(Slot<P>& slot, std::uint64_t target, std::uint64_t inside)
      : slot_(slot), waits_for_(slot.waits_for.load()), waits_in_(slot.waits_in.load()) {
    say(target, inside);
  }
  ~Announced() { say(waits_for_, waits_in_); }
  Announced(const Announced&) = delete;
  Announced& operator=(const Announced&) = delete;

 private:
  void say(std::uint64_t target, std::uint64_t inside) {
    slot_.waits_for.store(0, std::memory_order_release);
    slot_.waits_in.store(inside, std::memory_order_release);
    slot_.waits_for.store(target, std::memory_order_release);
  }
  Slot<P>& slot_;
  const std::uint64_t waits_for_, waits_in_;  ///< in serial mode a wait may run an op that waits
};

/// Most waits are over sooner than a thread can be put to sleep and woken: looks for so long.
template <class P>
template <class Over>
bool Core<P>::soon(Over&& over) {
  for (int i = 0; i < P::kWaitSpins + P::kWaitYields; ++i) {
    if (over()) return true;
    i < P::kWaitSpins ? P::pause() : P::yield();
  }
  return false;
}

/// Blocks until the wait is told. Inside an op the lane gets a substitute meanwhile, and a wait that can never end
/// throws. `target`: the id of what it waits for, for those who look. `holds`: it has a Borrow when it is told, and
/// must not run an op that waits for the Borrow's end.
template <class P>
auto Core<P>::block(Wait& wait, std::uint64_t target, std::chrono::nanoseconds limit, const char* what, bool holds)
    -> Blocked {
  const auto told = [&] { return wait.state.load(std::memory_order_acquire) == Wait::done; };
  const auto leave = [&] {
    std::uint32_t expected = Wait::waiting;
    return wait.state.compare_exchange_strong(expected, Wait::left, std::memory_order_acquire);
  };
  const bool bounded = limit != std::chrono::nanoseconds::max(), inside = in_op();
  const std::int64_t deadline = bounded ? deadline_of(limit) : 0;
  Slot<P>& slot = my_slot();
  flush(slot);
  const auto run_serial = [&] {
    if (inside) {
      while (!told() && run_one_serial()) {
      }
    } else if (!told()) {
      drain_serial([&] { return holds && told(); });
    }
  };
  if (options_.serial) {
    run_serial();
  } else {
    soon(told);
  }
  if (told()) return Blocked::done;
  if (bounded && P::now() >= deadline) return leave() ? Blocked::timed_out : Blocked::done;

  const Announced announced(slot, target, inside ? id_seen(thread_state().operation) : 0);
  Lane<P>* lane = inside && !options_.serial ? static_cast<Lane<P>*>(thread_state().lane) : nullptr;
  // A wait with a time limit ends by itself: it moves, for all who look.
  const bool can_deadlock = !bounded && (inside || options_.serial || slot.borrows.load(std::memory_order_relaxed) > 0);
  Wait* covered = nullptr;
  std::optional<Doing<P>> doing;
  if (can_deadlock) {
    {
      std::lock_guard lock(blocked_mutex_);
      wait.next_blocked = std::exchange(blocked_waits_, &wait);
      covered = std::exchange(slot.blocked_wait, &wait);
      if (covered) covered->covered = true;
    }
    doing.emplace(slot, Activity::blocked);
  }
  if (lane) lane->blocked.fetch_add(1, std::memory_order_relaxed);
  if (lane) P::heavy_fence();  // a pusher sees the substitute's place, or the look below its op
  Blocked result = Blocked::done;
  bool stuck = false;
  std::uint64_t seen = 0;
  int quiet = 0, starved = 0, rounds = 0;
  const bool may_help = !inside && !bounded && !can_deadlock;
  while (!told()) {
    // The substitute; and threads that could not be started before.
    rescue(may_help, told);
    if (told()) break;
    std::chrono::nanoseconds slice =
        options_.serial ? std::chrono::milliseconds(1) : std::chrono::nanoseconds(P::kTick);
    // Who looks for no deadlock only looks whether a thread could not be started: less and less often.
    if (!can_deadlock && !options_.serial) slice *= 1 + std::min(rounds++, 9);
    if (bounded) {
      const std::int64_t left = deadline - P::now();
      if (left <= 0) {
        if (leave()) result = Blocked::timed_out;
        break;
      }
      slice = std::min(slice, std::chrono::nanoseconds(left));
    }
    wait.parker.wait(slice);
    if (options_.serial) run_serial();
    if (!can_deadlock || told()) continue;
    const std::uint64_t now = progress();
    // No thread can be had for what it waits for, and no op may run on this one's stack.
    starved = starts_fail() && now == seen && !anything_moves(true, false) && anything_queued() ? starved + 1 : 0;
    if (starved >= kStarvedTicks && leave()) {
      stuck = true;
      break;
    }
    quiet = !anything_moves(true) && (quiet == 0 || now == seen) ? quiet + 1 : 0;
    seen = now;
    if (quiet < 3) continue;
    // One at a time: who gives up moves, and may free the others.
    std::lock_guard lock(deadlock_mutex_);
    if (!anything_moves(true) && progress() == seen && leave()) {
      stuck = true;
      break;
    }
  }
  if (lane) lane->blocked.fetch_sub(1, std::memory_order_relaxed);
  if (can_deadlock) {
    doing.reset();
    std::lock_guard lock(blocked_mutex_);
    Wait** at = &blocked_waits_;
    while (*at != &wait) at = &(*at)->next_blocked;
    *at = wait.next_blocked;
    slot.blocked_wait = covered;
    if (covered) covered->covered = false;
  }
  if (stuck && starved >= kStarvedTicks) deadlock(std::string(what) + ": no thread can be started to end it");
  if (stuck) deadlock(std::string(what) + " can never end: nothing else in the engine can move");
  return result;
}

template <class P>
bool Core<P>::wait_variable(VariableBase* variable, std::chrono::nanoseconds limit, bool help,
                            const std::source_location& where) {
  if (!variable) throw UsageError("[wait] no variable");
  if (variable->core != this) throw UsageError("[wait] the variable belongs to another engine");
  refuse_forked("wait");
  refuse_capture("wait");
  Node& node = *static_cast<Node*>(variable);
  const auto idle = [&] {
    return is_idle<P>(node.tail.load(std::memory_order_acquire)) &&
           !poisoned(node.mark.load(std::memory_order_relaxed));  // which came with the tail
  };
  if (!options_.log_order && idle()) return true;
  if (in_op()) {
    if (has_alone(thread_state().operation, &node))
      deadlock("wait can never end: the op itself has the variable '" + std::string(node.name ? node.name : "") +
               "' alone");
  }
  // Most waits are over soon: then nothing has to be told to anybody.
  if (!options_.log_order && !options_.serial) {
    flush(my_slot());
    if (Lane<P>* const lane = lane_to_help(help)) this->help(*lane, false, false, idle);
    if (soon(idle)) return true;
  }
  auto wait = std::make_shared<Wait>();
  Op* op = internal_op(OpKind::wait, {variable, AccessMode::read}, where);
  rare(op).waiter = wait;
  const std::uint64_t target = id_of(op);
  push_internal(op);
  if (block(*wait, target, limit, "wait") == Blocked::timed_out) return false;
  if (wait->error) raise(wait->error);
  return true;
}

/// Links an internal op; whatever that makes ready goes its way.
template <class P>
void Core<P>::push_internal(Op* op) {
  Slot<P>& slot = my_slot();
  begin_link(slot);
  ReadyList<P> ready;
  if (link(op, ready)) ready.start.push(op);
  process(ready, nullptr, nullptr);
  end_link(slot);
}

template <class P>
bool Core<P>::ticket_done(std::uint32_t index, std::uint64_t generation) {
  const std::uint64_t word = record_at(index)->word.load(std::memory_order_acquire);
  return (generation_of(word) & 0xffffffffu) != generation || !(word & kLive);
}

template <class P>
bool Core<P>::ticket_wait(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit) {
  refuse_capture("wait for a ticket");
  refuse_forked("wait for a ticket");
  if (!await_ticket(index, generation, limit)) return false;
  if (const ErrorRef root = failure_of(index, generation)) raise(root);
  return true;
}

/// Blocks until the op is over, however it ended. False when the time was over first.
template <class P>
bool Core<P>::await_ticket(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit,
                           Lane<P>* helped) {
  Op* op = record_at(index);
  bool done = ticket_done(index, generation);
  if (!options_.serial && !done) flush(my_slot());
  if (helped && !done) help(*helped, false, true, [&] { return ticket_done(index, generation); });
  if (!options_.serial && !done) done = soon([&] { return ticket_done(index, generation); });
  if (!done) {
    if (in_op() && thread_state().operation == op) deadlock("a wait of an op for itself can never end");
    auto wait = std::make_shared<Wait>();
    const std::uint64_t id = generation << 32 | index;
    bool registered = false;
    {
      const Outsider outsider(*this);
      std::lock_guard lock(ticket_mutex_);
      std::uint64_t word = op->word.load(std::memory_order_acquire);
      for (int spins = 0; (generation_of(word) & 0xffffffffu) == generation && (word & kLive);) {
        if (op->phase.load(std::memory_order_relaxed) == Phase::ending) {
          if (++spins > 100) P::yield();
          P::pause();
          word = op->word.load(std::memory_order_acquire);
        } else if (op->word.compare_exchange_weak(word, word | kWaited, std::memory_order_acquire)) {
          ticket_waiters_.emplace(id, wait);
          registered = true;
          break;
        }
      }
    }
    if (registered) {
      const auto forget = [&] {
        std::lock_guard lock(ticket_mutex_);
        const auto [first, last] = ticket_waiters_.equal_range(id);
        for (auto it = first; it != last; ++it)
          if (it->second == wait) {
            ticket_waiters_.erase(it);
            break;
          }
      };
      try {
        if (block(*wait, id, limit, "wait for a ticket") == Blocked::timed_out) {
          forget();
          return false;
        }
      } catch (...) {
        forget();
        throw;
      }
    }
  }
  return true;
}

template <class P>
bool Core<P>::ticket_cancel(std::uint32_t index, std::uint64_t generation) {
  Op* op = record_at(index);
  const Outsider outsider(*this);
  std::uint64_t word = op->word.load(std::memory_order_relaxed);
  // The phase is that of this op if the exchange finds the word as it was before.
  while ((generation_of(word) & 0xffffffffu) == generation && (word & kLive) && !(word & kRunning) &&
         op->phase.load(std::memory_order_relaxed) == Phase::queued)
    if (op->word.compare_exchange_weak(word, word | kCancelled, std::memory_order_relaxed)) return true;
  return false;
}

template <class P>
Ticket Core<P>::push_recover(VariableBase* variable, const std::source_location& where) {
  const Access access{variable, AccessMode::update};
  const PushOptions options{.name = "recover"};
  check({&access, 1}, options, where);
  refuse_capture("recover");
  if (stopped_.load(std::memory_order_relaxed) && !in_op()) refuse_stopped(options, where);
  Op* op = internal_op(OpKind::recover, access, where);
  const Ticket ticket(this, op->index, generation_of(op->word.load(std::memory_order_relaxed)) & 0xffffffffu);
  Slot<P>& slot = my_slot();
  slot.pushes.store(slot.pushes.load(std::memory_order_relaxed) + 2, std::memory_order_relaxed);
  push_internal(op);
  return ticket;
}

template <class P>
Borrow Core<P>::borrow(Access access, const std::source_location& where) {
  refuse_forked("borrow");
  if (access.mode == AccessMode::write) access.mode = AccessMode::update;
  check({&access, 1}, PushOptions{.name = "borrow"}, where);
  refuse_capture("borrow");
  if (in_op()) {
    if (has_alone(thread_state().operation, static_cast<const Node*>(access.variable)))
      deadlock("borrow can never be granted: the op itself has the variable alone");
  }
  auto wait = std::make_shared<Wait>();
  Op* op = internal_op(OpKind::borrow, access, where);
  rare(op).waiter = wait;
  rare(op).borrower.store(&my_slot(), std::memory_order_relaxed);
  const std::uint64_t target = id_of(op);
  push_internal(op);
  block(*wait, target, std::chrono::nanoseconds::max(), "borrow", true);
  Borrow held(Completion(shared_from_this(), op));
  if (wait->error) raise(wait->error);
  return held;
}

}  // namespace sluice::detail
