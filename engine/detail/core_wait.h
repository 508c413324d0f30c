// Core<P>, waiting for variables, tickets and borrows, and finding deadlocks.
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
  if (op) {
    root->file = op->where.file_name(), root->line = op->where.line();
    root->layer = path_of(layer_of(op));
    root->device = device_of(op);
  }
  root->message = what;
  throw Error(std::move(root));
}

/// The time at which a limit that begins now ends; never later than the clock can hold.
template <class P>
std::int64_t Core<P>::deadline_of(std::chrono::nanoseconds limit) {
  const std::int64_t now = P::now();
  return limit.count() > std::numeric_limits<std::int64_t>::max() - now
             ? std::numeric_limits<std::int64_t>::max()
             : now + std::max<std::int64_t>(limit.count(), 0);
}

/// True if some thread runs an op or is in the middle of a push. Everything that a look must not miss is announced
/// before it is done, and withdrawn after (Activity, Slot::pushes): a thread that sees what was done, or waits behind
/// it in a chain, has seen the announcement too. So several looks with no progress() between them are proof. `held`:
/// the Borrows of blocked threads.
template <class P>
bool Core<P>::any_thread_moves(bool queues, std::int64_t& held) {
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
  return false;
}

/// True if some op is ready or running. For the caps; it may miss a push that has just begun.
template <class P>
bool Core<P>::anything_moves() {
  std::int64_t held = 0;
  return any_thread_moves(true, held) || devices_move();
}

/// True if no thread, device or Completion moves, and no thread can be had for what is queued. The Completion of an op
/// whose body is blocked does not count, because it cannot end that op. `confirmed`: null, or the Watch for which the
/// calling thread confirms ops, so that its devices do not count; then what is queued counts as moving.
template <class P>
bool Core<P>::all_stand(const void* confirmed) {
  std::int64_t held = 0;
  if (any_thread_moves(confirmed, held) || devices_move(confirmed) || !(confirmed || anything_queued())) return false;
  std::lock_guard lock(waits_.blocked_mutex);
  ++waits_.looks;
  for (Wait* w = waits_.blocked; w; w = w->next_blocked) {
    if (w->slot->blocked_wait == w && w->state.load(std::memory_order_acquire) != Wait::waiting) return false;
    if (!w->answers || std::exchange(w->answers->looked, waits_.looks) == waits_.looks)
      continue;  // there may be several in one body
    const bool captured = w->answers != &rare(w->inside);
    held += (captured ? w->answers->finish_pending.load(std::memory_order_acquire)
                      : w->inside->finish_pending.load(std::memory_order_acquire)) > 1;
  }
  return open_.load(std::memory_order_acquire) <= held;
}

template <class P>
std::uint64_t Core<P>::progress() const {
  std::uint64_t sum = 0;
  std::lock_guard lock(slots_mutex_);
  for (auto& slot : slots_)
    sum += slot->pushes.load(std::memory_order_acquire) + slot->completed.load(std::memory_order_acquire);
  return sum;
}

/// While it lives, it says what its thread waits for.
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

/// Makes room for a substitute while a thread is blocked: inside an op, in the lane of that op, whichever engine it
/// belongs to. A thread of oneTBB may run a task of any op's body, for which that op waits; so it makes room in every
/// lane.
template <class P>
class Core<P>::Room {
 public:
  Room(Core& core, std::uint64_t target) : core_(core) {
    const ThreadState& state = thread_state();
    if (state.core && state.core != &core) {
      there_ = state.core->shared_from_this();
      elsewhere_.lane = state.lane;
      elsewhere_.operation = state.operation;
      elsewhere_.core = core.shared_from_this();
      elsewhere_.target = target;
      there_->stand_elsewhere(elsewhere_);
    }
    if (core.options_.serial) return;
    if (core.in_op()) {
      lane_ = static_cast<Lane<P>*>(state.lane);
      if (lane_) lane_->blocked.fetch_add(1, std::memory_order_relaxed);
    } else {
      everywhere_ = P::may_be_of_a_body();
      if (everywhere_)
        for (auto& lane : core.lanes_.all) lane->blocked.fetch_add(1, std::memory_order_relaxed);
    }
    // Either a pusher sees the room for the substitute, or the look that follows (rescue) sees the pusher's op.
    if (lane_ || everywhere_) P::heavy_fence();
  }
  ~Room() {
    if (lane_) lane_->blocked.fetch_sub(1, std::memory_order_relaxed);
    if (everywhere_)
      for (auto& lane : core_.lanes_.all) lane->blocked.fetch_sub(1, std::memory_order_relaxed);
    if (there_) there_->go_on(elsewhere_);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

 private:
  Core& core_;
  Lane<P>* lane_ = nullptr;
  bool everywhere_ = false;
  std::shared_ptr<CoreBase> there_;
  Elsewhere elsewhere_;
};

/// Notes that the thread of one of this engine's ops is blocked in another engine.
template <class P>
void Core<P>::stand_elsewhere(Elsewhere& wait) {
  wait.inside = id_seen(wait.operation);
  {
    std::lock_guard lock(waits_.elsewhere_mutex);
    wait.next = waits_.elsewhere;
    if (waits_.elsewhere) waits_.elsewhere->before = &wait;
    waits_.elsewhere = &wait;
  }
  if (options_.serial || !wait.lane) return;
  Lane<P>& lane = *static_cast<Lane<P>*>(wait.lane);
  lane.blocked.fetch_add(1, std::memory_order_relaxed);
  P::heavy_fence();
  if (has_work(lane)) wake(lane);
}

template <class P>
void Core<P>::go_on(Elsewhere& wait) {
  if (!options_.serial && wait.lane) static_cast<Lane<P>*>(wait.lane)->blocked.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard lock(waits_.elsewhere_mutex);
  (wait.before ? wait.before->next : waits_.elsewhere) = wait.next;
  if (wait.next) wait.next->before = wait.before;
}

/// Looks for a while, because most waits are over sooner than a thread can be put to sleep and woken.
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
/// throws. `target`: the id of what it waits for. `holds`: the thread has a Borrow when the wait is told, and so must
/// not run an op that waits for the Borrow's end.
template <class P>
auto Core<P>::block(Wait& wait, std::uint64_t target, std::chrono::nanoseconds limit, const char* what, bool holds,
                    const Node* node) -> Blocked {
  const auto told = [&] { return wait.state.load(std::memory_order_acquire) == Wait::done; };
  const auto leave = [&] {
    std::uint32_t expected = Wait::waiting;
    return wait.state.compare_exchange_strong(expected, Wait::left, std::memory_order_acquire);
  };
  const bool bounded = limit != std::chrono::nanoseconds::max(), inside = in_op();
  const std::int64_t deadline = bounded ? deadline_of(limit) : 0;
  Slot<P>& slot = my_slot();
  flush(slot);
  if (!lanes_.watches.empty()) tend_watches();
  if (!options_.serial) soon(told);
  if (told()) return Blocked::done;
  if (bounded && !options_.serial && P::now() >= deadline) return leave() ? Blocked::timed_out : Blocked::done;

  // Many threads may be blocked here, so each gives its batch of credits back.
  return_credits(slot, std::exchange(slot.credits, 0), true);
  const Announced announced(slot, target, inside ? id_seen(thread_state().operation) : 0);
  const Room room(*this, target);
  // A wait with a time limit ends by itself.
  const bool may_never_end = !bounded && (inside || slot.borrows.load(std::memory_order_relaxed) > 0);
  std::optional<Blockade> blockade;
  if (may_never_end || (inside && options_.serial)) blockade.emplace(*this, wait, target, slot, bounded);
  std::optional<Doing<P>> doing;
  if (may_never_end) doing.emplace(slot, Activity::blocked);
  Blocked result = Blocked::done;
  const void* const confirms = inside ? thread_state().confirms : nullptr;
  bool given_up = false, no_thread = false;
  std::uint64_t seen = 0;
  int starved = 0, rounds = 0;
  const bool may_help = !inside && !bounded && !may_never_end;
  OnDevice where = lanes_.watches.empty() ? OnDevice{} : on_device(target, node);
  while (!told()) {
    if (options_.serial) {
      inside ? run_needed(target, told, rounds++ > 0) : drain_serial([&] { return holds && told(); });
    } else {
      rescue(may_help, told);  // the substitute; and threads that could not be started before
    }
    if (told()) break;
    // Many threads may wait, so each wakes less and less often.
    std::int64_t slice = tick();
    if (!options_.serial && !starts_fail() && !confirms) slice <<= std::min(rounds++, 6);
    if (bounded) {
      const std::int64_t left = deadline - P::now();
      if (left <= 0) {
        if (leave()) result = Blocked::timed_out;
        break;
      }
      slice = std::min(slice, left);
    }
    if (where.queue && where.queue->finished.load(std::memory_order_acquire) < where.at) {
      // The device wakes this thread directly. The watcher, which is awake as well, tells the wait a moment later.
      where.queue->stream->await(where.at,
                                 std::min(std::chrono::nanoseconds(slice), std::chrono::nanoseconds(P::kTick)));
      if (where.queue->stream->reached() >= where.at) {
        where = {};
        if (soon(told)) break;
      }
    } else {
      wait.parker.wait(std::chrono::nanoseconds(slice));
    }
    if (!may_never_end || told()) continue;
    look_for_circles();
    given_up = wait.state.load(std::memory_order_acquire) == Wait::left;
    if (given_up) break;
    // There is no thread for what this wait needs, and no op may run on this thread's stack; or this thread is the one
    // that would confirm what it waits for.
    const bool fails = confirms || starts_fail();
    const std::uint64_t now = fails ? progress() : 0;
    starved = fails && (starved == 0 || now == seen) && all_stand(confirms) ? starved + 1 : 0;
    seen = now;
    no_thread = starved >= kStarvedTicks && leave();
    if (no_thread) break;
  }
  doing.reset();
  blockade.reset();
  if (given_up) deadlock(std::string(what) + " can never end: before it must be over " + wait.circle);
  if (no_thread)
    deadlock(std::string(what) + (confirms
                                      ? " can never end: it is in the destructor of a closure, and what a device has "
                                        "done is not confirmed before that returns"
                                      : ": no thread can be started to end it"));
  return result;
}

/// Where the op that a thread waits for was issued, or the last write of the variable; nothing if on no device.
template <class P>
auto Core<P>::on_device(std::uint64_t target, const Node* node) -> OnDevice {
  OnDevice found;
  if (node) {
    const VariableRare<P>* const rare = node->rare.load(std::memory_order_acquire);
    const std::uint64_t use = rare ? rare->uses.last_write.load(std::memory_order_relaxed) : 0;
    if (use) found = {lanes_.all[StreamUse::lane(use)]->queue.get(), StreamUse::place(use)};
    return found;
  }
  Op& op = *record_at(static_cast<std::uint32_t>(target));
  const Outsider outsider(*this);
  const Pinned pinned(*this, op);
  if (!pinned || (generation_of(pinned.word()) & 0xffffffffu) != target >> 32 || !op.is(kOnStream) ||
      op.phase.load(std::memory_order_acquire) != Phase::issued)
    return found;
  found.queue = lanes_.all[op.lane]->queue.get();
  // The op keeps only the low bits of its place.
  const std::uint64_t finished = found.queue->finished.load(std::memory_order_relaxed);
  found.at = finished + static_cast<std::uint16_t>(op.start_pending.load(std::memory_order_relaxed) -
                                                   static_cast<std::int64_t>(finished));
  if (found.at > found.queue->pointed.load(std::memory_order_acquire)) found.queue = nullptr;
  return found;
}

template <class P>
bool Core<P>::devices_move(const void* but) const {
  for (const auto& watch : lanes_.watches)
    for (const DeviceQueue<P>* queue : watch->queues)
      if (watch.get() != but && queue->in_flight()) return true;
  return false;
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
  if (quick_waits_ && idle()) return true;
  if (in_op()) {
    if (has_alone(thread_state().operation, &node))
      deadlock("wait can never end: the op itself has the variable '" + std::string(node.name ? node.name : "") +
               "' alone");
  }
  // Most waits are over soon, and then no other thread has to be told anything.
  if (quick_waits_ && !options_.serial) {
    flush(my_slot());
    if (Lane<P>* const lane = lane_to_help(help)) this->help(*lane, false, false, idle);
    if (soon(idle)) return true;
  }
  auto wait = std::make_shared<Wait>();
  Op* op = internal_op(OpKind::wait, {variable, AccessMode::read}, where);
  rare(op).waiter = wait;
  const std::uint64_t target = id_of(op);
  push_internal(op);
  if (block(*wait, target, limit, "wait", false, &node) == Blocked::timed_out) return false;
  if (order_) tell_host(false, wait->passed);
  if (wait->error) raise(wait->error);
  return true;
}

/// Links an internal op, and hands on the ops that this makes ready.
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
  const bool done = is_over(index, generation);
  if (done && order_) tell_ticket(generation << 32 | index);
  return done;
}

template <class P>
bool Core<P>::is_over(std::uint32_t index, std::uint64_t generation) {
  const std::uint64_t word = record_at(index)->word.load(std::memory_order_acquire);
  return (generation_of(word) & 0xffffffffu) != generation || !(word & kLive);
}

template <class P>
bool Core<P>::ticket_wait(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit) {
  refuse_capture("wait for a ticket");
  refuse_forked("wait for a ticket");
  if (!await_ticket(index, generation, limit)) return false;
  if (order_) tell_ticket(generation << 32 | index);
  if (const ErrorRef root = failure_of(index, generation)) raise(root);
  return true;
}

/// Blocks until the op is over, in whichever way it ended. Returns false when the time was over first.
template <class P>
bool Core<P>::await_ticket(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit,
                           Lane<P>* helped) {
  Op* op = record_at(index);
  bool done = is_over(index, generation);
  if (!options_.serial && !done) flush(my_slot());
  if (helped && !done) help(*helped, false, true, [&] { return is_over(index, generation); });
  if (!options_.serial && !done) done = soon([&] { return is_over(index, generation); });
  if (!done) {
    if (in_op() && thread_state().operation == op) deadlock("a wait of an op for itself can never end");
    auto wait = std::make_shared<Wait>();
    const std::uint64_t id = generation << 32 | index;
    bool registered = false;
    {
      const Outsider outsider(*this);
      std::lock_guard lock(waits_.ticket_mutex);
      std::uint64_t word = op->word.load(std::memory_order_acquire);
      for (int spins = 0; (generation_of(word) & 0xffffffffu) == generation && (word & kLive);) {
        if (op->phase.load(std::memory_order_relaxed) == Phase::ending) {
          if (++spins > 100) P::yield();
          P::pause();
          word = op->word.load(std::memory_order_acquire);
        } else if (op->word.compare_exchange_weak(word, word | kWaited, std::memory_order_acquire)) {
          waits_.tickets.emplace(id, wait);
          registered = true;
          break;
        }
      }
    }
    if (registered) {
      const auto forget = [&] {
        std::lock_guard lock(waits_.ticket_mutex);
        const auto [first, last] = waits_.tickets.equal_range(id);
        for (auto it = first; it != last; ++it)
          if (it->second == wait) {
            waits_.tickets.erase(it);
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
  rare(op).taken_in = in_op() ? seen_op(thread_state().operation) : nullptr;
  const std::uint64_t target = id_of(op);
  push_internal(op);
  block(*wait, target, std::chrono::nanoseconds::max(), "borrow", true);
  if (order_) tell_host(false, wait->passed);
  Borrow held(Completion(shared_from_this(), op));
  if (wait->error) raise(wait->error);
  return held;
}

}  // namespace sluice::detail
