// Core<P>, waiting: for variables, tickets and everything; deadlocks found; stop.
#pragma once

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

/// True while some thread, queue or device could still free an op. Looked at by one who waits: `moving` states are
/// entered before and left after whatever they cover, so two looks with nothing between them are proof (progress()).
template <class P>
bool Core<P>::anything_moves(bool for_deadlock) {
  for (auto& lane : lanes_)
    if (lane->queued.load(std::memory_order_seq_cst) != 0) return true;
  {
    std::lock_guard lock(slots_mutex_);
    for (auto& slot : slots_) {
      const Activity a = slot->activity.load(std::memory_order_seq_cst);
      if (a == Activity::running || (for_deadlock && a == Activity::pushing)) return true;
    }
  }
  if (!for_deadlock) return on_device_.load(std::memory_order_seq_cst) > 0;
  if (open_.load(std::memory_order_seq_cst) > thread_state().borrows) return true;
  std::lock_guard lock(blocked_mutex_);
  for (Wait* w : blocked_waits_)
    if (w->state.load(std::memory_order_seq_cst) != Wait::waiting) return true;
  return false;
}

template <class P>
std::uint64_t Core<P>::progress() {
  std::uint64_t sum = 0;
  std::lock_guard lock(slots_mutex_);
  for (auto& slot : slots_) sum += slot->pushed.load(std::memory_order_acquire) + slot->completed.load(std::memory_order_acquire);
  return sum;
}

/// Blocks until the wait is told. Inside an op the lane gets a substitute meanwhile, and a wait that can never end throws.
template <class P>
auto Core<P>::block(Wait& wait, std::chrono::nanoseconds limit, const char* what) -> Blocked {
  const auto told = [&] { return wait.state.load(std::memory_order_acquire) == Wait::done; };
  const bool bounded = limit != std::chrono::nanoseconds::max();
  const std::int64_t deadline = bounded ? P::now() + std::max<std::int64_t>(limit.count(), 0) : 0;
  Slot<P>& slot = my_slot();
  flush(slot);
  const bool inside = in_op();
  if (options_.serial) {
    if (inside) {
      while (!told() && run_one_serial()) {
      }
    } else if (!told()) {
      drain_serial();
    }
  }
  if (!inside || !options_.serial)
    for (int i = 0; i < P::kWaitSpins && !told(); ++i) P::pause();
  if (told()) return Blocked::done;
  if (bounded && P::now() >= deadline) {
    std::uint32_t expected = Wait::waiting;
    return wait.state.compare_exchange_strong(expected, Wait::left) ? Blocked::timed_out : Blocked::done;
  }

  Lane<P>* lane = inside ? static_cast<Lane<P>*>(thread_state().lane) : nullptr;
  if (inside) {
    {
      std::lock_guard lock(blocked_mutex_);
      blocked_waits_.push_back(&wait);
    }
    slot.activity.store(Activity::blocked, std::memory_order_seq_cst);
    if (lane && !options_.serial) {
      lane->blocked.fetch_add(1, std::memory_order_seq_cst);
      if (lane->queued.load(std::memory_order_seq_cst) > 0) wake(*lane);
    }
  }
  const bool can_deadlock = inside || thread_state().borrows > 0 || options_.serial;
  Blocked result = Blocked::done;
  bool stuck = false;
  std::uint64_t seen = 0;
  int quiet = 0;
  while (!told()) {
    std::chrono::nanoseconds slice = can_deadlock ? std::chrono::nanoseconds(P::kTick) : std::chrono::nanoseconds(std::chrono::seconds(1));
    if (bounded) {
      const std::int64_t left = deadline - P::now();
      if (left <= 0) {
        std::uint32_t expected = Wait::waiting;
        if (wait.state.compare_exchange_strong(expected, Wait::left)) result = Blocked::timed_out;
        break;
      }
      slice = std::min(slice, std::chrono::nanoseconds(left));
    }
    wait.parker.wait(slice);
    if (!can_deadlock || bounded || told()) continue;
    const std::uint64_t now = progress();
    quiet = !anything_moves(true) && (quiet == 0 || now == seen) ? quiet + 1 : 0;
    seen = now;
    if (quiet < 3) continue;
    std::uint32_t expected = Wait::waiting;
    if (wait.state.compare_exchange_strong(expected, Wait::left)) {
      stuck = true;
      break;
    }
  }
  if (inside) {
    slot.activity.store(Activity::running, std::memory_order_seq_cst);
    if (lane && !options_.serial) lane->blocked.fetch_sub(1, std::memory_order_seq_cst);
    std::lock_guard lock(blocked_mutex_);
    std::erase(blocked_waits_, &wait);
  }
  if (stuck) deadlock(std::string(what) + " can never end: nothing else in the engine can move");
  return result;
}

template <class P>
bool Core<P>::wait_variable(VariableBase* variable, std::chrono::nanoseconds limit) {
  if (!variable) throw UsageError("[wait] no variable");
  if (variable->core != this) throw UsageError("[wait] the variable belongs to another engine");
  Node& node = *static_cast<Node*>(variable);
  if (!options_.log_order && node.tail.load(std::memory_order_acquire) == nullptr &&
      node.poison.load(std::memory_order_acquire) == Poison::none)
    return true;
  if (in_op()) {
    const Op* op = static_cast<const Op*>(thread_state().operation);
    for (int i = 0; i < op->token_count; ++i)
      if (op->tokens[i].variable == &node && op->tokens[i].exclusive)
        deadlock("wait can never end: the op itself has the variable '" + std::string(node.name ? node.name : "") + "' alone");
  }
  const Access access{variable, AccessMode::read};
  Op* op = internal_op(OpKind::wait, {&access, 1}, std::source_location::current());
  auto wait = std::make_shared<Wait>();
  op->waiter = wait;
  ReadyList<P> ready;
  Slot<P>& slot = my_slot();
  const Activity before = slot.activity.load(std::memory_order_relaxed);
  slot.activity.store(Activity::pushing, std::memory_order_seq_cst);
  link(op, ready);
  process(ready, nullptr, nullptr);
  slot.activity.store(before, std::memory_order_release);
  if (block(*wait, limit, "wait") == Blocked::timed_out) return false;
  if (wait->error) raise(wait->error);
  return true;
}

template <class P>
bool Core<P>::ticket_done(std::uint32_t index, std::uint64_t generation) {
  const std::uint64_t word = record_at(index)->word.load(std::memory_order_acquire);
  return (generation_of(word) & 0xffffffffu) != generation || !(word & kLive);
}

template <class P>
bool Core<P>::ticket_wait(std::uint32_t index, std::uint64_t generation, std::chrono::nanoseconds limit) {
  Op* op = record_at(index);
  if (!ticket_done(index, generation)) {
    if (in_op() && thread_state().operation == op) deadlock("a wait of an op for itself can never end");
    auto wait = std::make_shared<Wait>();
    const std::uint64_t id = generation << 32 | index;
    bool registered = false;
    {
      std::lock_guard lock(ticket_mutex_);
      std::uint64_t word = op->word.load(std::memory_order_acquire);
      while ((generation_of(word) & 0xffffffffu) == generation && (word & kLive)) {
        if (op->word.compare_exchange_weak(word, word | kWaited, std::memory_order_acq_rel)) {
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
        if (block(*wait, limit, "wait for a ticket") == Blocked::timed_out) {
          forget();
          return false;
        }
      } catch (...) {
        forget();
        throw;
      }
    }
  }
  if (const ErrorRef root = failure_of(index, generation)) raise(root);
  return true;
}

template <class P>
bool Core<P>::ticket_cancel(std::uint32_t index, std::uint64_t generation) {
  Op* op = record_at(index);
  std::uint64_t word = op->word.load(std::memory_order_acquire);
  while ((generation_of(word) & 0xffffffffu) == generation && (word & kLive) && !(word & kRunning))
    if (op->word.compare_exchange_weak(word, word | kCancelled, std::memory_order_acq_rel)) return true;
  return false;
}

/// Waits for every op that is live now. False when the time was over first.
template <class P>
bool Core<P>::wait_live(std::chrono::nanoseconds limit) {
  const bool bounded = limit != std::chrono::nanoseconds::max();
  const std::int64_t deadline = bounded ? P::now() + limit.count() : 0;
  flush(my_slot());
  if (options_.serial && !in_op()) drain_serial();
  if (in_flight() == 0) return true;
  struct Live {
    std::uint32_t index;
    std::uint64_t generation;
  };
  std::vector<Live> live;
  const std::uint32_t slabs = slab_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < slabs; ++s) {
    const Slab& slab = *slabs_[s].load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < kSlabOps; ++i) {
      const std::uint64_t word = slab.ops[i].word.load(std::memory_order_seq_cst);
      if ((word & kLive) && !(word & kInternal)) live.push_back({s * kSlabOps + i, generation_of(word) & 0xffffffffu});
    }
  }
  for (const Live& op : live) {
    const auto left = bounded ? std::chrono::nanoseconds(std::max<std::int64_t>(deadline - P::now(), 0)) : limit;
    try {
      if (!ticket_wait(op.index, op.generation, left)) return false;
    } catch (const Error& e) {
      if (e.root().kind == ErrorKind::deadlock && e.root().sequence == 0) throw;
    }
  }
  return true;
}

template <class P>
void Core<P>::wait_all() {
  if (in_op()) deadlock("wait_all inside an op can never end: the op itself is part of it");
  wait_live(std::chrono::nanoseconds::max());
  std::vector<ErrorRef> roots;
  {
    std::lock_guard lock(error_mutex_);
    for (auto& [sequence, entry] : roots_)
      if (entry.live_variables > 0 || entry.wrote_nothing) {
        roots.push_back(entry.root);
        entry.observed = true;
      }
    prune_roots();
  }
  if (!roots.empty()) throw AggregateError(std::move(roots));
}

template <class P>
void Core<P>::push_recover(VariableBase* variable, const std::source_location& where) {
  const Access access{variable, AccessMode::update};
  check({&access, 1}, PushOptions{.name = "recover"}, where);
  Op* op = internal_op(OpKind::recover, {&access, 1}, where);
  ReadyList<P> ready;
  link(op, ready);
  process(ready, nullptr, nullptr);
}

template <class P>
Borrow Core<P>::borrow(Access access, const std::source_location& where) {
  if (access.mode == AccessMode::write) access.mode = AccessMode::update;
  check({&access, 1}, PushOptions{.name = "borrow"}, where);
  if (in_op()) {
    const Op* self = static_cast<const Op*>(thread_state().operation);
    for (int i = 0; i < self->token_count; ++i)
      if (self->tokens[i].variable == access.variable && self->tokens[i].exclusive)
        deadlock("borrow can never be granted: the op itself has the variable alone");
  }
  Op* op = internal_op(OpKind::borrow, {&access, 1}, where);
  auto wait = std::make_shared<Wait>();
  op->waiter = wait;
  ReadyList<P> ready;
  link(op, ready);
  process(ready, nullptr, nullptr);
  block(*wait, std::chrono::nanoseconds::max(), "borrow");
  ++thread_state().borrows;
  Borrow held(Completion(shared_from_this(), op));
  if (wait->error) raise(wait->error);
  return held;
}

template <class P>
bool Core<P>::stop(StopMode mode, std::chrono::nanoseconds deadline) {
  if (in_op()) deadlock("stop inside an op can never end: the op itself is in flight");
  stopped_.store(true, std::memory_order_seq_cst);
  if (mode == StopMode::cancel) cancel_all_.store(true, std::memory_order_seq_cst);
  const std::int64_t end = P::now() + deadline.count();
  bool drained = false;
  while (!(drained = in_flight() == 0)) {
    const std::int64_t left = end - P::now();
    if (left <= 0 || !wait_live(std::chrono::nanoseconds(left))) break;
    P::yield();
  }
  if (!drained) drained = in_flight() == 0;
  report_unobserved();
  return drained;
}

}  // namespace sluice::detail
