// Core<P>, running: bodies, finishing, and what a finished op frees.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

// ---- running

template <class P>
bool Core<P>::should_run(Op* op) {
  ErrorRef error;
  const std::uint64_t old = op->word.fetch_or(kRunning, std::memory_order_acq_rel);
  if (cancel_all_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(error_mutex_);
    if (!stop_root_)
      stop_root_ = new_root(ErrorKind::stopped, nullptr, nullptr, "the engine stopped before this began");
    error = stop_root_;
  } else if (old & kCancelled) {
    std::lock_guard lock(error_mutex_);
    error = new_root(ErrorKind::cancelled, op, nullptr, "cancelled before it began");
  } else if (op->scope.cancel && op->scope.cancel->cancelled.load(std::memory_order_acquire)) {
    CancelState& scope = *op->scope.cancel;
    std::lock_guard scope_lock(scope.mutex);
    if (!scope.root) {
      std::lock_guard lock(error_mutex_);
      scope.root = new_root(ErrorKind::cancelled, op, nullptr, "its scope was cancelled before it began");
    }
    error = scope.root;
  } else if (op->on_poison == OnPoison::skip) {
    error = start_error(op);
  }
  if (error) {
    op->skipped = op->failed = true;
    op->rare->start_error = std::move(error);
  }
  return !op->skipped;
}

template <class P>
void Core<P>::run_body(Op* op) {
  ThreadState& state = thread_state();
  const ThreadState saved = state;
  ScopeState& scope = current_scope();
  ScopeState saved_scope = std::exchange(scope, op->scope);
  state.core = this;
  state.operation = op;
  std::exception_ptr thrown;
  {
    Completion completion;
    if (op->async) {
      open_.fetch_add(1, std::memory_order_seq_cst);
      completion = Completion(shared_from_this(), op);
    }
    Context context(op, this, op->lane ? op->lane->stream.get() : nullptr);
    try {
      op->table->invoke(op->closure, context, &completion);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  op->table->destroy(op->closure);
  op->table = nullptr;
  if (thrown) {
    op->failed = true;
    op->rare->thrown = std::move(thrown);
  }
  state = saved;
  scope = std::move(saved_scope);
}

/// Runs one op on this thread and hands on what it frees. Returns an op of this lane to run next, if it freed one.
template <class P>
auto Core<P>::execute(Op* op, Slot<P>& slot, Lane<P>* here) -> Op* {
  if (op->traced) {
    op->rare->thread = slot.number;
    op->rare->started_at = P::now();
  }
  ReadyList<P> ready;
  const bool run = should_run(op);
  if (op->on_stream) {
    issue(op, ready);
  } else {
    const bool async = run && op->async;
    if (run) {
      run_body(op);
    } else if (op->table) {
      op->table->destroy(op->closure);
      op->table = nullptr;
    }
    if (op->traced) op->rare->ended_at = P::now();
    if (!async || op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(op, ready);
  }
  Op* next = nullptr;
  process(ready, here, here ? &next : nullptr);
  return next;
}

/// Handles a list of ready ops until nothing is left to do on this thread. At most one op of the lane `here` is handed
/// to the caller instead of the queue.
template <class P>
void Core<P>::process(ReadyList<P>& ready, Lane<P>* here, Op** hand_off) {
  while (Op* op = ready.pop()) {
    if (op->finishing || op->kind != OpKind::body) {
      if (op->kind == OpKind::body) {
        finish(op, ready);
      } else {
        finish_internal(op, ready);
      }
      continue;
    }
    if (op->traced) op->rare->ready_at = P::now();
    if (hand_off && !*hand_off && op->lane == here) {
      *hand_off = op;
    } else {
      enqueue(op);
    }
  }
}

// ---- streams

/// A stream op: waits are put on its stream, the body issues its work, and it counts as issued; the device completes
/// it.
template <class P>
void Core<P>::issue(Op* op, ReadyList<P>& ready) {
  Stream& stream = *op->lane->stream;
  const bool run = !op->skipped;
  if (run) {
    for (int i = 0; i < op->token_count; ++i) {
      Token<P>& t = op->tokens[i];
      if (!t.variable->uses) continue;
      std::lock_guard lock(t.variable->uses->mutex);
      const StreamUses& uses = *t.variable->uses;
      if (uses.last_write.stream && uses.last_write.stream != &stream) stream.wait(uses.last_write);
      if (!t.exclusive()) continue;
      for (const StreamEvent& e : uses.reads)
        if (e.stream != &stream) stream.wait(e);
    }
    run_body(op);
    const StreamEvent event = stream.record();
    for (int i = 0; i < op->token_count; ++i) {
      Token<P>& t = op->tokens[i];
      std::lock_guard lock(t.variable->uses->mutex);
      StreamUses& uses = *t.variable->uses;
      if (t.exclusive()) {
        uses.last_write = event;
        uses.reads.clear();
        continue;
      }
      bool known = false;
      for (StreamEvent& e : uses.reads)
        if (e.stream == event.stream) e = event, known = true;
      if (!known) uses.reads.push_back(event);
    }
  } else if (op->table) {
    op->table->destroy(op->closure);
    op->table = nullptr;
  }
  // The device's part of finish_pending is still held, so the op stays while its tokens are marked.
  for (int i = 0; i < op->token_count; ++i)
    Chain<P>::advance(&op->tokens[i], kIssued, ready, [this](Token<P>* t, bool idle) { retire(t, idle); });
  // Not the last count: the device's part is still held.
  op->finish_pending.fetch_sub(!run && op->async ? 2 : 1, std::memory_order_acq_rel);
  open_.fetch_add(1, std::memory_order_seq_cst);
  on_device_.fetch_add(1, std::memory_order_seq_cst);
  if (run) {
    auto self = shared_from_this();
    stream.notify([this, self, op](std::exception_ptr error) { device_done(op, std::move(error)); });
  } else {
    device_done(op, nullptr);
  }
}

template <class P>
void Core<P>::device_done(Op* op, std::exception_ptr error) {
  Slot<P>& slot = my_slot();
  const Activity before = slot.activity.load(std::memory_order_relaxed);
  slot.activity.store(Activity::running, std::memory_order_seq_cst);
  if (error) {
    op->device_failed = true;
    op->rare->device_error = std::move(error);
  }
  if (op->traced) op->rare->ended_at = P::now();
  ReadyList<P> ready;
  if (op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(op, ready);
  open_.fetch_sub(1, std::memory_order_seq_cst);
  on_device_.fetch_sub(1, std::memory_order_seq_cst);
  process(ready, nullptr, nullptr);
  flush(slot);
  slot.activity.store(before, std::memory_order_release);
}

// ---- completion

template <class P>
void Core<P>::complete(Operation* operation, std::exception_ptr error, ErrorKind kind) noexcept {
  Op* op = static_cast<Op*>(operation);
  Slot<P>& slot = my_slot();
  const Activity before = slot.activity.load(std::memory_order_relaxed);
  slot.activity.store(Activity::running, std::memory_order_seq_cst);
  if (op->kind == OpKind::borrow) op->owner->borrows.fetch_sub(1, std::memory_order_seq_cst);
  if (error || kind != ErrorKind::failed) {
    op->answered = true;
    op->rare->exception = error;
    op->rare->exception_kind = kind;
  }
  ReadyList<P> ready;
  if (op->kind == OpKind::borrow || op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(op, ready);
  open_.fetch_sub(1, std::memory_order_seq_cst);
  process(ready, nullptr, nullptr);
  if (before != Activity::running) flush(slot);
  slot.activity.store(before, std::memory_order_release);
  if (options_.serial && !in_op()) drain_serial();
}

/// The op is over: its poison is set, its variables pass on, its waiters are told, its record goes home.
template <class P>
void Core<P>::finish(Op* op, ReadyList<P>& ready) {
  const ErrorRef error = decide_error(op);
  apply_poison(op, error);
  if (error && op->kind == OpKind::body) remember_failure(op, error);
  std::size_t bytes = 0;
  if (op->has_rare) {
    if (op->traced && op->kind == OpKind::body) record_trace(op, error != nullptr);
    op->rare->attributes.reset();
    bytes = op->rare->bytes;
  }
  for (int i = 0; i < op->token_count; ++i)
    Chain<P>::advance(&op->tokens[i], kIssued | kDone, ready, [this](Token<P>* t, bool idle) { retire(t, idle); });
  Slot<P>& slot = my_slot();
  if (op->kind == OpKind::body || op->kind == OpKind::recover)
    slot.completed.store(slot.completed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  if (op->kind == OpKind::body) {
    if (bytes) {
      bytes_.fetch_sub(bytes, std::memory_order_seq_cst);
      if (cap_waiters_.load(std::memory_order_seq_cst)) wake_cap_waiters();
    }
    if (++slot.returned_credits >= credit_batch_ || cap_waiters_.load(std::memory_order_relaxed))
      return_credits(slot, std::exchange(slot.returned_credits, 0));
  }
  const std::uint64_t id = id_of(op);
  const std::uint64_t old = op->word.fetch_and(~std::uint64_t{kStateBits}, std::memory_order_seq_cst);
  if (old & kWaited) {
    std::vector<std::shared_ptr<Wait>> told;
    {
      std::lock_guard lock(ticket_mutex_);
      const auto [first, last] = ticket_waiters_.equal_range(id);
      for (auto it = first; it != last; ++it) told.push_back(it->second);
      ticket_waiters_.erase(first, last);
    }
    for (auto& w : told) {
      w->state.store(Wait::done, std::memory_order_release);
      w->parker.signal();
    }
  }
  release(op);
}

template <class P>
void Core<P>::finish_internal(Op* op, ReadyList<P>& ready) {
  const std::shared_ptr<Wait> waiter = op->rare->waiter;
  const bool borrow = op->kind == OpKind::borrow;
  if (waiter) waiter->error = start_error(op);
  if (borrow) {
    open_.fetch_add(1, std::memory_order_seq_cst);
    std::uint32_t expected = Wait::waiting;
    if (waiter->state.compare_exchange_strong(expected, Wait::done, std::memory_order_acq_rel)) {
      waiter->parker.signal();
      return;  // held until its Completion is answered
    }
    open_.fetch_sub(1, std::memory_order_seq_cst);  // nobody is there any more
  }
  finish(op, ready);  // and the record may be another op's from here on
  if (waiter && !borrow) {
    std::uint32_t expected = Wait::waiting;
    waiter->state.compare_exchange_strong(expected, Wait::done, std::memory_order_acq_rel);
    waiter->parker.signal();
  }
}

/// Nobody touches the token again. `idle`: it was the last of its variable.
template <class P>
void Core<P>::retire(Token<P>* token, bool idle) {
  Op* op = token->op;
  if (idle) Variable drop(token->variable);  // adopts the chain's reference
  release(op);
}

template <class P>
void Core<P>::release(Op* op) {
  if (op->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) recycle(op);
}

template <class P>
void Core<P>::record_trace(Op* op, bool failed) {
  Slot<P>& slot = my_slot();
  const std::int64_t now = P::now();
  TraceEvent e{op->name,
               op->place.device,
               op->place.lane,
               op->rare->thread,
               id_of(op),
               op->scope.tag,
               op->where.file_name(),
               op->where.line(),
               op->rare->pushed_at,
               op->rare->ready_at,
               op->rare->started_at ? op->rare->started_at : now,
               op->rare->ended_at ? op->rare->ended_at : now,
               failed};
  std::lock_guard lock(slot.trace_mutex);
  slot.trace.push_back(e);
}

}  // namespace sluice::detail
