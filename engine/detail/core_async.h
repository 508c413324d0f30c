// Core<P>, ops that complete later than their body returns: on a stream, or by a Completion.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// A stream op: waits are put on its stream, the body issues its work, and it counts as issued; the device completes
/// it.
template <class P>
void Core<P>::issue(Op* op, ReadyList<P>& ready) {
  Lane<P>& lane = *lanes_[op->lane];
  Stream& stream = *lane.stream;
  bool run = !op->skipped;
  if (run) try {
      for (Token<P>& t : tokens(op)) {
        StreamUses& uses = t.variable->rare->uses;
        std::lock_guard lock(uses.mutex);
        if (uses.last_write.stream && uses.last_write.stream != &stream) stream.wait(uses.last_write);
        if (!t.exclusive()) continue;
        for (const StreamEvent& e : uses.reads)
          if (e.stream != &stream) stream.wait(e);
      }
    } catch (...) {
      // Without its waits it must not run.
      rare(op).thrown = std::current_exception();
      op->wrote_nothing = true;
      run = false;
    }
  if (run) {
    rare(op).thrown = run_anywhere(op, lane);
    rare(op).returned.store(true, std::memory_order_relaxed);
    const StreamEvent event = stream.record();
    for (Token<P>& t : tokens(op)) {
      StreamUses& uses = t.variable->rare->uses;
      std::lock_guard lock(uses.mutex);
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
  } else {
    destroy_closure(op);
  }
  // The device's part of finish_pending is still held, so the op stays while its tokens are marked, and the count taken
  // below is not the last.
  std::uint64_t retired = 0;
  for (Token<P>& t : tokens(op)) advance(t, kIssued, ready, nullptr, retired);
  rare(op).finish_pending.fetch_sub(!run && op->is(kAsync) ? 2 : 1, std::memory_order_acq_rel);
  open_.fetch_add(1, std::memory_order_relaxed);
  on_device_.fetch_add(1, std::memory_order_relaxed);
  if (run) {
    auto self = shared_from_this();
    try {
      stream.notify([this, self, op](std::exception_ptr error) { device_done(op, std::move(error)); });
    } catch (...) {
      device_done(op, stream.synchronize());  // nobody will call back
    }
  } else {
    device_done(op, nullptr);
  }
}

template <class P>
void Core<P>::device_done(Op* op, std::exception_ptr error) {
  const AnySlot any(*this);
  Slot<P>& slot = any.slot();
  const Doing<P> doing(slot, Activity::running);
  if (error) rare(op).device_error = std::move(error);
  if (rare(op).traced) rare(op).ended_at = P::now();
  ReadyList<P> ready;
  if (rare(op).finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(op, ready);
  open_.fetch_sub(1, std::memory_order_relaxed);
  on_device_.fetch_sub(1, std::memory_order_relaxed);
  process(ready, nullptr, nullptr);
  flush(slot);
}

template <class P>
void Core<P>::complete(Operation* operation, std::exception_ptr error, ErrorKind kind) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  const AnySlot any(*this);
  Slot<P>& slot = any.slot();
  const Doing<P> doing(slot, Activity::running);
  Info* const info = operation->kind == OpKind::captured ? static_cast<Info*>(operation) : nullptr;
  Op* const op = info ? nullptr : static_cast<Op*>(operation);
  RareParts<P>& parts = info ? *info->rare : rare(op);
  const bool borrow = operation->kind == OpKind::borrow;
  if (borrow) parts.borrower.load(std::memory_order_relaxed)->borrows.fetch_sub(1, std::memory_order_relaxed);
  if (error || kind != ErrorKind::failed) {
    parts.answered = true;
    parts.exception = error;
    parts.exception_kind = kind;
  }
  ReadyList<P> ready;
  if (borrow || parts.finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1)
    info ? finish_captured(info->op, ready) : finish(op, ready);
  open_.fetch_sub(1, std::memory_order_relaxed);
  process(ready, nullptr, nullptr);
  if (!in_op()) flush(slot);
  if (options_.serial && !in_op() && !any.spare()) drain_serial();
}

}  // namespace sluice::detail
