// Core<P>, running: bodies, finishing, and the ops that a finished op makes ready.
#pragma once

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

// ---- running

/// True if the op was ended before it began: by a cancel of it or its scope, or by stop(cancel). `word`: the op's word
/// as it was when the op began.
template <class P>
[[gnu::always_inline]] inline bool Core<P>::ended_before(Op* op, std::uint64_t word) {
  return cancel_all_.load(std::memory_order_relaxed) || (word & kCancelled) ||
         (op->is(kHasRare) && rare(op).cancel && rare(op).cancel->cancelled.load(std::memory_order_relaxed));
}

/// The root of that end.
template <class P>
ErrorRef Core<P>::root_of_end(Op* op, std::uint64_t word) {
  if (cancel_all_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(errors_.mutex);
    if (!errors_.stop_root)
      errors_.stop_root = new_root(ErrorKind::stopped, nullptr, nullptr, "the engine stopped before this began");
    return errors_.stop_root;
  }
  const bool always = op->is(kSeesPoison) && op->is(kHasRare) && rare(op).always;
  if (word & kCancelled) {
    std::lock_guard lock(errors_.mutex);
    ErrorRef root = new_root(ErrorKind::cancelled, op, nullptr, "cancelled before it began");
    if (always) told(root);
    return root;
  }
  CancelState& scope = *rare(op).cancel;
  std::lock_guard lock(errors_.mutex);
  std::lock_guard scope_lock(scope.mutex);  // the inner one: other engines take it too
  if (!scope.root) {
    scope.root = new_root(ErrorKind::cancelled, op, nullptr, "its scope was cancelled before it began");
    if (always) told(scope.root);
  }
  return scope.root;
}

/// Null if the body is to run, as on the common path (execute).
template <class P>
ErrorRef Core<P>::reason_to_skip(Op* op, std::uint64_t word) {
  if (ended_before(op, word)) [[unlikely]] {
    ErrorRef root = root_of_end(op, word);
    if (!op->is(kSeesPoison) || !op->is(kHasRare) || !rare(op).always) return root;
    rare(op).start_error = std::move(root);
    return nullptr;
  }
  if (op->is(kSeesPoison)) return nullptr;
  ErrorRef met = start_error(op);
  if (met && op->is(kOnStream)) rare(op).skipped_for_input = true;
  return met;
}

template <class P>
bool Core<P>::cancelled(const Operation* operation) const {
  if (cancel_all_.load(std::memory_order_relaxed)) return true;
  if (operation->kind == OpKind::captured) return static_cast<const Info*>(operation)->is_cancelled();
  const Op* op = static_cast<const Op*>(operation);
  return op->is(kHasRare) && rare(op).cancel && rare(op).cancel->cancelled.load(std::memory_order_relaxed);
}

template <class P>
ErrorRef Core<P>::skip_reason(const Operation* operation) const {
  if (operation->kind == OpKind::captured) return static_cast<const Info*>(operation)->skip_reason;
  const Op* op = static_cast<const Op*>(operation);
  if (!op->is(kHasRare) || !rare(op).always) return nullptr;
  return rare(op).start_error;
}

/// Calls a body in its scope. Returns the exception of the body, unless its Completion had been answered before.
template <class P>
std::exception_ptr Core<P>::call(const ClosureTable& table, void* closure, Operation& operation, ScopeState scope,
                                 Lane<P>& lane, bool async) {
  ThreadState& state = thread_state();
  const ThreadState saved = state;
  std::swap(current_scope(), scope);
  state.recorder = nullptr;  // a thread that captures may answer a Completion, and run ops by that in serial mode
  state.confirms = nullptr;
  state.core = this;
  state.operation = &operation;
  std::exception_ptr thrown;
  {
    const HostBody body(*this, operation, lane);
    Completion completion;
    if (async) {
      open_.fetch_add(1, std::memory_order_relaxed);
      completion = Completion(shared_from_this(), &operation);
    }
    Context context(&operation, this, lane.stream, lane.device);
    try {
      table.invoke(closure, context, &completion);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (thrown && async) {
    const bool captured = operation.kind == OpKind::captured;
    const RareParts<P>& parts =
        captured ? *static_cast<Info&>(operation).rare : rare(static_cast<const Op*>(&operation));
    if (parts.told.load(std::memory_order_relaxed)) thrown = nullptr;
  }
  current_scope() = std::move(scope);
  state = saved;
  return thrown;
}

/// Undoes what a body set in the thread's scope. Few bodies touch it; for all others this is one comparison.
template <class P>
[[gnu::always_inline]] inline void Core<P>::restore_scope(ThreadState& state, const Lane<P>& here) {
  if (state.scope_touched) [[unlikely]]
    reset_scope(state, here);
}

template <class P>
[[gnu::noinline, gnu::cold]] void Core<P>::reset_scope(ThreadState& state, const Lane<P>& here) {
  ThreadObject<ScopeState>::get() = ScopeState{here.device, 0, 0, nullptr, {}};
  state.scope_touched = false;
}

template <class P>
[[gnu::always_inline]] inline void Core<P>::destroy_closure(Op* op) noexcept {
  if (op->table->destroy) op->table->destroy(op->closure());
  if (op->is(kHeapClosure)) ::operator delete (op->closure(), std::align_val_t{64});
}

/// The same where the thread is not in the op's body any more, or never was: the destructor may push and wait as the
/// body may. `confirms`: the Watch for which the calling thread confirms ops, none of which is before this returns.
template <class P>
void Core<P>::end_closure(Op* op, const void* confirms) noexcept {
  if (!op->table->destroy) return destroy_closure(op);
  ThreadState& state = thread_state();
  const ThreadState saved = state;
  state.core = this;
  state.operation = op;
  state.recorder = nullptr;
  state.confirms = confirms;
  destroy_closure(op);
  const bool touched = state.scope_touched;
  state = saved;
  state.scope_touched = touched;
}

/// The op begins: nobody can cancel it from here on. Returns its word.
template <class P>
[[gnu::always_inline]] inline std::uint64_t Core<P>::begin(Op* op) {
  op->phase.store(Phase::begun, std::memory_order_relaxed);
  P::light_fence();
  if (outsiders_.load(std::memory_order_acquire) != 0) [[unlikely]]
    return op->word.fetch_or(kRunning, std::memory_order_acq_rel);
  return op->word.load(std::memory_order_relaxed);  // what outsiders set came with their count
}

/// Runs one op on this thread, and hands on the ops that it makes ready. Returns one of them that is for this lane, to
/// run next.
template <class P>
auto Core<P>::execute(Run* runnable, Slot<P>& slot, Lane<P>* here) -> Run* {
  if (runnable->is(kCaptured)) return execute_captured(static_cast<Captured*>(runnable), slot, here);
  Op* op = static_cast<Op*>(runnable);
  ReadyList<P> ready;
  const std::uint64_t word = begin(op);
  const std::uint32_t states = prefetch_successors(op);
  slot.last_in_chains = states & kNext ? 0 : slot.last_in_chains + 1;
  const bool marked = states & kMarked;
  const bool cancelled = (word & kCancelled) || cancel_all_.load(std::memory_order_relaxed);
  // A drainer's thread stands in its lane's own scope already.
  const bool plain = here && !(op->path & (kOnStream | kAsync | kOwnScope | kHasRare | kManyTokens));
  if (plain && !marked && !cancelled) [[likely]] {
    tell<P>(Step::start, op);
    const bool returned = call_body(op, *here);
    destroy_closure(op);
    leave_body(*here);
    if (returned) {
      finish_clean(op, slot, ready);
    } else {
      finish(op, ready);
    }
  } else {
    execute_any(op, word, slot, ready);
    if (here) restore_scope(thread_state(), *here);  // the closure's destructor ran outside of the body's
  }
  // Nothing became ready, or one op that can be run at once.
  Run* next = ready.start.head;
  if (!ready.finish.head && (!next || (here && !next->next && next->lane == here->index &&
                                       (next->is(kCaptured) || !(next->path & (kNoBody | kHasRare)))))) {
    if (next && !next->is(kCaptured)) tell<P>(Step::ready, static_cast<Op*>(next));
    return next;
  }
  next = nullptr;
  process(ready, here, here ? &next : nullptr);
  return next;
}

/// Calls the body on a thread of its lane, which stays in the op until leave_body. Returns false if it threw; the
/// exception is in the rare parts.
template <class P>
[[gnu::always_inline]] inline bool Core<P>::call_body(Op* op, Lane<P>& here) {
  ThreadState& state = thread_state();
  state.core = this;
  state.operation = op;
  Context context(op, this, here.stream, here.device);
  bool clean = true;
  try {
    op->table->invoke(op->closure(), context, nullptr);
  } catch (...) {
    rare(op).thrown = std::current_exception();
    clean = false;
  }
  return clean;
}

template <class P>
[[gnu::always_inline]] inline void Core<P>::leave_body(Lane<P>& here) {
  ThreadState& state = thread_state();
  state.core = nullptr;
  state.operation = nullptr;
  restore_scope(state, here);
}

/// The same in the scope of its push, for any op. Returns what the body threw.
template <class P>
std::exception_ptr Core<P>::run_anywhere(Op* op, Lane<P>& lane) {
  std::exception_ptr thrown = call(*op->table, op->closure(), *op,
                                   {.device = op->scope_device,
                                    .flags = op->flags,
                                    .tag = op->tag,
                                    .cancel = op->is(kHasRare) ? rare(op).cancel : nullptr,
                                    .sequence = {},
                                    .layer = layer_of(op)},
                                   lane, op->is(kAsync));
  return thrown;
}

/// Runs an op that has begun and may be skipped, or that differs from the common path.
template <class P>
void Core<P>::execute_any(Op* op, std::uint64_t word, Slot<P>& slot, ReadyList<P>& ready) {
  Lane<P>& lane = *lanes_.all[op->lane];
  if ((op->path & (kOnStream | kAsync | kOwnScope | kHasRare | kManyTokens)) == kOnStream &&
      thread_state().lane == &lane && !(word & kCancelled) && !cancel_all_.load(std::memory_order_relaxed) &&
      issue_plain(op, lane, ready))
    return;
  if (order_ && !op->is(kOnStream)) pass_order(op);
  // Before the op's inputs are looked at.
  const std::uint64_t doubts = op->is(kOnStream) ? lane.queue->doubts.load(std::memory_order_acquire) : 0;
  const bool timed = op->is(kHasRare) && rare(op).traced;
  if (timed) {
    rare(op).thread = slot.number;
    rare(op).started_at = P::now();
  }
  ErrorRef reason = reason_to_skip(op, word);
  bool clean = !reason;
  tell<P>(clean ? Step::start : Step::skip, op);
  if (reason) {
    op->skipped = true;
    rare(op).start_error = std::move(reason);
  }
  if (op->is(kOnStream)) return issue(op, doubts, ready);
  const bool answers_later = clean && op->is(kAsync);
  if (clean) {
    if (std::exception_ptr thrown = run_anywhere(op, lane)) {
      clean = false;
      rare(op).thrown = std::move(thrown);
    }
  }
  end_closure(op);
  if (timed) rare(op).ended_at = P::now();
  if (answers_later) {
    rare(op).returned.store(true, std::memory_order_relaxed);
    if (op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  }
  finish(op, ready, clean && !answers_later);
}

/// Handles a list of ready ops until nothing is left to do on this thread. At most one op of the lane `here` is handed
/// to the caller instead of the queue.
template <class P>
void Core<P>::process(ReadyList<P>& ready, Lane<P>* here, Run** hand_off) {
  for (;;) {
    if (Op* op = ready.finish.pop()) {
      finish(op, ready);
      continue;
    }
    Run* op = ready.start.pop();
    if (!op) return;
    if (op->is(kNoBody)) {
      finish_internal(static_cast<Op*>(op), ready);
      continue;
    }
    if (op->is(kHasRare) && rare(static_cast<Op*>(op)).traced) rare(static_cast<Op*>(op)).ready_at = P::now();
    if (!op->is(kCaptured)) tell<P>(Step::ready, static_cast<Op*>(op));
    if (hand_off && !*hand_off && op->lane == here->index) {
      *hand_off = op;
    } else {
      keep_or_enqueue(op, my_slot(), here);
    }
  }
}

// ---- completion

/// The op is over. This sets its poison, passes its variables on, tells its waiters, and frees its record. With `clean`
/// a body has returned, and everything else that matters is in the record.
template <class P>
void Core<P>::finish(Op* op, ReadyList<P>& ready, bool clean) {
  ErrorRef error;
  std::size_t bytes = 0;
  const bool body = !op->is(kNoBody) || op->kind == OpKind::replay, counted = body || op->kind == OpKind::recover;
  std::shared_ptr<Recorded> program;  // destroyed last, because that may destroy closures
  if (!clean) {
    error = decide_error(op);
    if (error) note_failure(op, error);
  }
  tell<P>(error && !op->skipped ? Step::fail : Step::done, op);
  if (!clean || op->is(kHasRare)) {
    RareParts<P>& parts = rare(op);
    if (parts.traced && body) record_trace(op, error != nullptr);
    bytes = parts.bytes;
    if (parts.answer_left_whole()) op->wrote_nothing = true;
    program = std::move(parts.program);
    if (program && order_) pass_order(op);
    parts.clear();
  }
  std::uint64_t retired = 1;  // the op's own reference
  op->phase.store(Phase::passing, std::memory_order_relaxed);
  for (Token<P>& t : tokens(op)) advance(t, kIssued | kDone | pass_mark(op, t, error), ready, op, retired);
  if (bytes) {
    caps_.bytes.fetch_sub(bytes, std::memory_order_seq_cst);
    if (caps_.waiters.load(std::memory_order_seq_cst)) wake_cap_waiters();
  }
  close(op, my_slot(), retired, counted, body);
}

/// The same for a clean op without marks and rare parts. All that it needs is in the first cache line of the record.
template <class P>
[[gnu::always_inline]] inline void Core<P>::finish_clean(Op* op, Slot<P>& slot, ReadyList<P>& ready) {
  tell<P>(Step::done, op);
  std::uint64_t retired = 1;
  op->phase.store(Phase::passing, std::memory_order_relaxed);
  for (std::uint32_t i = 0, n = op->inline_count(); i < n; ++i)
    advance(op->inline_tokens[i], kIssued | kDone, ready, op, retired);
  close(op, slot, retired, true, true);
}

/// Called when the tokens have passed on all rights: settles counts and credits, and frees the record.
template <class P>
[[gnu::always_inline]] inline void Core<P>::close(Op* op, Slot<P>& slot, std::uint64_t retired, bool counted,
                                                  bool body) {
  const std::uint64_t completed = slot.completed.load(std::memory_order_relaxed);
  if (counted) slot.completed.store(completed + 1, std::memory_order_release);
  if (body && ++slot.returned_credits >= caps_.batch)
    return_credits(slot, std::exchange(slot.returned_credits, 0), false);
  const std::uint64_t old = drop(op, retired, true);
  if (counted) slot.completed.store(completed + 2, std::memory_order_release);
  if (old & kWaited) [[unlikely]]
    tell_ticket_waiters(generation_of(old) << 32 | op->index);
}

template <class P>
void Core<P>::tell_ticket_waiters(std::uint64_t id) {
  for (;;) {
    std::shared_ptr<Wait> w;
    {
      std::lock_guard lock(waits_.ticket_mutex);
      const auto it = waits_.tickets.find(id);
      if (it == waits_.tickets.end()) return;
      w = std::move(it->second);
      waits_.tickets.erase(it);
    }
    w->state.store(Wait::done, std::memory_order_release);
    w->parker.signal();
  }
}

template <class P>
void Core<P>::finish_internal(Op* op, ReadyList<P>& ready) {
  if (order_ && op->kind == OpKind::recover) pass_order(op);
  if (op->kind == OpKind::recover) return finish(op, ready);
  if (op->kind == OpKind::replay) return start_replay(op, ready);
  const std::shared_ptr<Wait> waiter = rare(op).waiter;
  const bool borrow = op->kind == OpKind::borrow;
  waiter->error = start_error(op);
  if (order_) {
    waiter->passed = known_to_host(tokens(op));
    if (borrow) leave_order(tokens(op));
  }
  tell<P>(Step::start, op);
  if (borrow) {
    // From here on the borrower holds it, even if the borrower has yet to return from an op that it runs (serial mode).
    auto& borrows = rare(op).borrower.load(std::memory_order_relaxed)->borrows;
    open_.fetch_add(1, std::memory_order_relaxed);
    borrows.fetch_add(1, std::memory_order_relaxed);
    if (grant(op, *waiter)) {
      waiter->parker.signal();
      return;  // held until its Completion is answered
    }
    borrows.fetch_sub(1, std::memory_order_relaxed);  // the thread that took it does not wait any more
    open_.fetch_sub(1, std::memory_order_relaxed);
  }
  finish(op, ready);  // and the record may be another op's from here on
  if (!borrow) {
    std::uint32_t expected = Wait::waiting;
    waiter->state.compare_exchange_strong(expected, Wait::done, std::memory_order_acq_rel);
    waiter->parker.signal();
  }
}

/// Sets bits on a token. `retired` counts the references to `self` that this gives back, so that one drop() gives back
/// all.
template <class P>
void Core<P>::advance(Token<P>& token, std::uint32_t bits, ReadyList<P>& ready, Op* self, std::uint64_t& retired) {
  Chain<P>::advance(
      &token, bits, ready, [](Op* op) -> Atomic<std::int16_t>& { return op->finish_pending; },
      [this, self, &retired](Op* op, Node* unnamed) {
        if (op != self) return retire(op, unnamed);
        ++retired;
        if (unnamed) delete_node(unnamed);
      });
}

/// A token of the op is retired. `unnamed`: the variable, if this token was the last to name it.
template <class P>
void Core<P>::retire(Op* op, Node* unnamed) {
  if (unnamed) delete_node(unnamed);
  drop(op, 1, false);
}

template <class P>
void Core<P>::record_trace(Op* op, bool failed) {
  Slot<P>& slot = my_slot();
  const std::int64_t now = P::now();
  const RareParts<P>& parts = rare(op);
  const Lane<P>& lane = *lanes_.all[op->lane];
  try {
    std::vector<TraceAccess> accesses;
    for (const Token<P>& t : tokens(op))
      accesses.push_back({t.variable->number, t.mode, t.variable->name ? t.variable->name : ""});
    TraceEvent e{op->name,
                 lane.device,
                 lane.kind,
                 parts.thread,
                 id_of(op),
                 op->tag,
                 op->where.file_name(),
                 op->where.line(),
                 parts.pushed_at,
                 parts.ready_at,
                 parts.started_at ? parts.started_at : now,
                 parts.ended_at ? parts.ended_at : now,
                 now,
                 failed,
                 std::move(accesses),
                 path_of(layer_of(op)),
                 parts.device_times.begin,
                 parts.device_times.end};
    keep_event(slot, parts.traced, std::move(e));
  } catch (const std::bad_alloc&) {
    // The op goes on; the trace lacks it.
  }
}

/// Keeps the event, unless that trace was ended meanwhile: the thread that ends it says so before it takes the slot's
/// events.
template <class P>
void Core<P>::keep_event(Slot<P>& slot, std::uint32_t trace, TraceEvent&& event) {
  std::lock_guard lock(slot.trace_mutex);
  if (tracing_.load(std::memory_order_relaxed) == trace) slot.trace.push_back(std::move(event));
}

}  // namespace sluice::detail
