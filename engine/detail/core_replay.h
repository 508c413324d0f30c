// Core<P>, replay. A replay is one op over all variables of its program. When its turn comes, it lets the captured ops
// run along the edges that were found at the capture (core_capture.h).
#pragma once

#include <optional>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
Ticket Core<P>::replay(const std::shared_ptr<ProgramBase>& base, const PushOptions& options,
                       const std::source_location& where) {
  static constexpr ClosureTable nothing{[](void*, Context&, Completion*) {}, nullptr, false};
  auto program = std::static_pointer_cast<Recorded>(base);
  if (!program) bad_use(options, where, "no program");
  if (program->core.get() != this) bad_use(options, where, "the program belongs to another engine");
  refuse_capture("replay");
  PushOptions as_push = options;
  as_push.name = program->name;
  as_push.bytes = add_bytes(as_push.bytes, program->bytes);
  Op* op = static_cast<Op*>(begin_push(program->accesses, 1, 1, as_push, where).operation);
  op->kind = OpKind::replay;
  op->path |= kNoBody | kSeesPoison | kHasRare;
  rare(op).program = std::move(program);
  return commit_push(op, nothing);
}

/// Starts a run. From here to the end of the last captured op the program has its variables to itself, or with other
/// readers.
template <class P>
void Core<P>::start_replay(Op* op, ReadyList<P>& ready) {
  RareParts<P>& parts = rare(op);
  Recorded& program = *parts.program;
  const std::uint64_t word = begin(op);
  std::uint32_t flags = 0;
  program.running = op;
  program.cancel = parts.cancel;
  program.skip = program.first_error = nullptr;
  if (word & kCancelled) {
    std::lock_guard lock(errors_.mutex);
    program.skip = new_root(ErrorKind::cancelled, op, nullptr, "cancelled before it began");
  }
  if (program.skip || program.cancel) flags |= kWatched;
  if (parts.traced) {
    flags |= kTimed;
    program.pushed_at = parts.pushed_at;
    program.traced = std::exchange(parts.traced, 0);  // its captured ops are traced instead
  }
  for (const Token<P>& t : tokens(op))
    if (t.state.load(std::memory_order_relaxed) & kMarked) flags |= kCareful;
  program.flags.store(flags, std::memory_order_relaxed);
  program.leaves_left.store(program.leaves, std::memory_order_relaxed);
  if (program.count == 0) return finish(op, ready);
  // When the last root is handed over the run may end, and the program with it.
  const std::shared_ptr<Recorded> keep = parts.program;
  for (const auto& roots : keep->roots)
    enqueue_all(*lanes_.all[roots.lane], roots.priority, roots.ops.data(), roots.ops.size());
}

template <class P>
auto Core<P>::execute_captured(Captured* op, Slot<P>& slot, Lane<P>* here) -> Run* {
  ThreadState& state = thread_state();
  for (;; ++slot.ran) {
    Recorded& program = *op->program;
    Lane<P>& lane = *lanes_.all[op->lane];
    op->start_pending.store(op->predecessors, std::memory_order_relaxed);  // for the next run
    const std::uint32_t* const list = program.successors.data() + op->first_successor;
    for (std::uint32_t k = 0; k < std::min(op->successors, 8U); ++k) prefetch_to_write(&program.ops[list[k]]);
    if (here && !(op->path & (kOnStream | kAsync | kOwnScope)) && program.flags.load(std::memory_order_acquire) == 0 &&
        !cancel_all_.load(std::memory_order_relaxed)) {
      state.core = this;
      state.operation = op->info;
      Context context(op->info, this, nullptr, lane.device);
      std::exception_ptr thrown;
      try {
        op->table->invoke(op->closure(), context, nullptr);
      } catch (...) {
        thrown = std::current_exception();
      }
      restore_scope(state, *here);
      state.core = nullptr;
      state.operation = nullptr;
      if (thrown) {
        op->info->skipped = false;  // an earlier run may have set them
        op->info->wrote_nothing = context.says_wrote_nothing();
        settle_captured(op, root_of(op->info, thrown, ErrorKind::failed));
      }
    } else if (run_captured(op, lane, slot)) {
      return nullptr;
    }
    // After the last successor was handed over this thread must not touch the op, and after the last leaf not the
    // program.
    Captured* next = nullptr;
    if (const std::uint32_t n = op->successors) {
      Captured* const ops = program.ops.get();
      for (std::uint32_t k = 0; k < n; ++k) {
        Captured* s = &ops[list[k]];
        if (s->predecessors > 1 && s->start_pending.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
        if (!next && here && s->lane == here->index) {
          next = s;
        } else {
          keep_or_enqueue(s, slot, here);
        }
      }
    } else if (program.leaves_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      ReadyList<P> ready;
      finish(program.running, ready);
      Run* handed = nullptr;
      process(ready, here, here ? &handed : nullptr);
      return handed;
    }
    if (!next || slot.ran >= 63) return next;
    op = next;
  }
}

/// Runs an op with everything that may be unusual: skips, scopes, streams, Completions, marks, times. True if it
/// completes later.
template <class P>
bool Core<P>::run_captured(Captured* op, Lane<P>& lane, Slot<P>& slot) {
  Info& info = *op->info;
  Recorded& program = *op->program;
  const bool timed = program.flags.load(std::memory_order_relaxed) & kTimed;
  const std::int64_t start = timed ? P::now() : 0;
  info.wrote_nothing = info.skipped = false;
  for (CapturedAccess<P>& a : info.accesses) a.heal = false;
  ErrorRef error = reason_to_skip(op);
  bool later = false;
  if (order_ && (error || !op->is(kOnStream))) leave_order(info.accesses);
  if (error) {
    info.skipped = true;
  } else {
    const bool on_stream = op->is(kOnStream), async = op->is(kAsync);
    if (on_stream || async) {
      info.rare->clear();
      info.rare->finish_pending.store(1 + on_stream + async, std::memory_order_relaxed);
    }
    std::exception_ptr thrown;
    const std::uint64_t doubts = on_stream ? lane.queue->doubts.load(std::memory_order_acquire) : 0;
    if (on_stream && (!make_room(*lane.queue) || lane.queue->lost.load(std::memory_order_acquire))) {
      info.wrote_nothing = true;
      if (async) info.rare->finish_pending.fetch_sub(1, std::memory_order_relaxed);  // there will be no Completion
      thrown = lane.queue->lost.load(std::memory_order_acquire)
                   ? std::make_exception_ptr(Error(lane.queue->root))
                   : std::make_exception_ptr(std::runtime_error("the device has no room for it"));
    } else {
      if (on_stream) wait_on_devices(op, *lane.queue, info.accesses);  // all over: for a record of accesses
      if (on_stream && timed) info.rare->span = lane.queue->stream->begin_times();
      {
        std::optional<IssueRange<P>> range;
        if (on_stream) range.emplace(*lane.queue, info.name);
        thrown = call(*op->table, op->closure(), info,
                      {.device = info.scope_device,
                       .flags = info.flags,
                       .tag = info.tag,
                       .cancel = info.cancel,
                       .sequence = {},
                       .layer = info.layer},
                      lane, async);
      }
      if (info.rare && info.rare->span) lane.queue->stream->end_times(info.rare->span);
    }
    info.skip_reason = nullptr;  // the next run may not come here
    if (on_stream || async) {
      later = true;
      if (timed) {  // finish_captured traces it
        info.rare->thread = slot.number;
        info.rare->started_at = start;
        info.rare->ended_at = P::now();
      }
      info.rare->thrown = std::move(thrown);
      if (on_stream) place_captured(op, *lane.queue, doubts);
    } else if (thrown) {
      error = root_of(&info, thrown, ErrorKind::failed);
    }
  }
  if (timed && !later) record_trace(op, slot.number, start, P::now(), {}, error != nullptr);
  if (later) {
    if (info.rare->finish_pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return true;
    ReadyList<P> ready;
    finish_captured(op, ready);
    process(ready, nullptr, nullptr);
    return true;
  }
  if (error || (program.flags.load(std::memory_order_relaxed) & kCareful)) settle_captured(op, error);
  return false;
}

template <class P>
ErrorRef Core<P>::ended_before(Captured* op) {
  Recorded& program = *op->program;
  Info& info = *op->info;
  if (cancel_all_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(errors_.mutex);
    if (!errors_.stop_root)
      errors_.stop_root = new_root(ErrorKind::stopped, nullptr, nullptr, "the engine stopped before this began");
    return errors_.stop_root;
  }
  const std::uint32_t flags = program.flags.load(std::memory_order_relaxed);
  if ((flags & kWatched) && program.skip) return program.skip;
  for (CancelState* scope : {program.cancel.get(), info.cancel.get()}) {
    if (!scope || !scope->cancelled.load(std::memory_order_relaxed)) continue;
    std::lock_guard lock(errors_.mutex);
    std::lock_guard scope_lock(scope->mutex);
    if (!scope->root) {
      scope->root = new_root(ErrorKind::cancelled, &info, nullptr, "its scope was cancelled before it began");
      if (info.always) told(scope->root);
    }
    return scope->root;
  }
  return nullptr;
}

template <class P>
ErrorRef Core<P>::reason_to_skip(Captured* op) {
  ErrorRef ended = ended_before(op);
  Info& info = *op->info;
  if (op->is(kSeesPoison)) {
    if (!info.always) return ended;
    info.skip_reason = std::move(ended);
    return nullptr;
  }
  if (ended) return ended;
  if (!(op->program->flags.load(std::memory_order_relaxed) & kCareful)) return nullptr;
  const CapturedAccess<P>* first = nullptr;
  std::uint16_t position = 0;
  for (std::size_t i = 0; i < info.accesses.size(); ++i) {
    const CapturedAccess<P>& a = info.accesses[i];
    if (a.mode != AccessMode::read && a.mode != AccessMode::update) continue;
    if (!poisoned(a.variable->mark.load(std::memory_order_relaxed))) continue;
    if (!first || info.positions[i] < position) first = &a, position = info.positions[i];
  }
  if (!first) return nullptr;
  std::lock_guard lock(errors_.mutex);
  return error_at(*first->variable);
}

/// Marks what the op wrote, and makes the rest of the run look at marks.
template <class P>
void Core<P>::settle_captured(Captured* op, const ErrorRef& error) {
  Info& info = *op->info;
  Recorded& program = *op->program;
  bool wrote = false;
  for (CapturedAccess<P>& a : info.accesses) {
    if (a.mode == AccessMode::read) continue;
    wrote = wrote || a.mode != AccessMode::order;
    stays_marked(*a.variable, a.mode, a.heal, OpKind::body, error, info.skipped || info.wrote_nothing);
  }
  if (!error) return;
  {
    std::lock_guard lock(errors_.mutex);
    ended_with(error);
    const auto index = static_cast<std::size_t>(op - program.ops.get());
    if (!program.first_error || index < program.first_failed) program.first_error = error, program.first_failed = index;
    if (!wrote && !info.skipped) entry_of(error).wrote_nothing = true;
  }
  program.flags.fetch_or(kCareful,
                         std::memory_order_relaxed);  // for the ops behind it, which see it through their edges
}

/// Gives the op the next place in its lane. The body's part of finish_pending is still held, so the op stays.
template <class P>
void Core<P>::place_captured(Captured* op, DeviceQueue<P>& queue, std::uint64_t doubts) {
  {
    const std::uint64_t at = lock_place(queue);
    const std::lock_guard lock(queue, std::adopt_lock);
    queue.heed(doubts, at);
    const std::uint64_t use = StreamUse::make(op->lane, at);
    for (const CapturedAccess<P>& a : op->info->accesses) {
      StreamUses<P>& uses = a.variable->rare.load(std::memory_order_relaxed)->uses;
      a.mode == AccessMode::read ? uses.read(use) : uses.wrote(use);
    }
    queue.ring[at % DeviceQueue<P>::kRing] = op;
    queue.issued.store(at, std::memory_order_release);
  }
  point(queue);  // the ops that follow in the program wait for it on the host
}

template <class P>
void Core<P>::captured_device_done(Captured* op, std::exception_ptr error, bool wrote_nothing, ReadyList<P>& ready) {
  RareParts<P>& parts = *op->info->rare;
  if (error) {
    parts.device_error = std::move(error);
    if (wrote_nothing) op->info->wrote_nothing = true;
  }
  take_times(parts, *lanes_.all[op->lane]);
  if (parts.finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish_captured(op, ready);
}

/// Called when a captured stream or async op is over.
template <class P>
void Core<P>::finish_captured(Captured* op, ReadyList<P>& ready) {
  Info& info = *op->info;
  Recorded& program = *op->program;
  const RareParts<P>& parts = *info.rare;
  if (parts.answer_left_whole()) info.wrote_nothing = true;
  const ErrorRef error =
      parts.failed() ? root_of(&info, parts.cause(), parts.thrown ? ErrorKind::failed : parts.exception_kind) : nullptr;
  if (program.flags.load(std::memory_order_relaxed) & kTimed)
    record_trace(op, parts.thread, parts.started_at, parts.ended_at, parts.device_times, error != nullptr);
  if (error || (program.flags.load(std::memory_order_relaxed) & kCareful)) settle_captured(op, error);
  Captured* const ops = program.ops.get();
  // When the last of them has its count, another thread may end the program, and its owner free it with this op.
  const std::uint32_t successors = op->successors;
  for (std::uint32_t k = 0; k < successors; ++k) {
    Captured* s = &ops[program.successors[op->first_successor + k]];
    if (s->predecessors == 1 || s->start_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) ready.start.push(s);
  }
  if (successors == 0 && program.leaves_left.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish(program.running, ready);
}

template <class P>
void Core<P>::record_trace(const Captured* op, std::uint32_t thread, std::int64_t start, std::int64_t end,
                           DeviceTimes device, bool failed) {
  const Info& info = *op->info;
  const Recorded& program = *op->program;
  const Lane<P>& lane = *lanes_.all[op->lane];
  const std::int64_t now = P::now();
  try {
    std::vector<TraceAccess> accesses;
    for (const CapturedAccess<P>& a : info.accesses)
      accesses.push_back({a.variable->number, a.mode, a.variable->name ? a.variable->name : ""});
    keep_event(my_slot(), program.traced,
               {info.name, lane.device, lane.kind, thread, id_seen(&info), info.tag, info.where.file_name(),
                info.where.line(), program.pushed_at, start, start, end, now, failed, std::move(accesses),
                path_of(info.layer), device.begin, device.end});
  } catch (const std::bad_alloc&) {
    // The op goes on; the trace lacks it.
  }
}

/// True if the running op has the variable to itself, so that a wait for it can never end.
template <class P>
bool Core<P>::has_alone(Operation* operation, const Node* node) const {
  if (operation->kind == OpKind::captured) {
    for (const Access& a : static_cast<Info*>(operation)->program->accesses)
      if (a.variable == node) return a.mode != AccessMode::read;
    return false;
  }
  for (const Token<P>& t : tokens(static_cast<Op*>(operation)))
    if (t.variable == node) return t.exclusive();
  return false;
}

}  // namespace sluice::detail
