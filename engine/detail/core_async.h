// Core<P>, ops that complete later than their body returns, by a Completion. (By a device: core_stream.h.)
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
void Core<P>::complete(Operation* operation, std::exception_ptr error, ErrorKind kind, bool wrote_nothing) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  const AnySlot any(*this);
  Slot<P>& slot = any.slot();
  const Doing<P> doing(slot, Activity::running);
  Info* const info = operation->kind == OpKind::captured ? static_cast<Info*>(operation) : nullptr;
  Op* const op = info ? nullptr : static_cast<Op*>(operation);
  RareParts<P>& parts = info ? *info->rare : rare(op);
  const bool borrow = operation->kind == OpKind::borrow;
  if (borrow) let_go(parts);
  if (kind != ErrorKind::abandoned) parts.told.store(true, std::memory_order_relaxed);
  if (error || kind != ErrorKind::failed) {
    parts.answered = true;
    parts.exception = error;
    parts.exception_kind = kind;
    parts.answered_wrote_nothing = wrote_nothing;
  }
  ReadyList<P> ready;
  if (info) {
    if (parts.finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) finish_captured(info->op, ready);
  } else if (borrow || op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    finish(op, ready);
  }
  open_.fetch_sub(1, std::memory_order_relaxed);
  process(ready, nullptr, nullptr);
  if (!in_op()) flush(slot);
  if (options_.serial && !in_op() && !any.spare()) drain_serial();
}

}  // namespace sluice::detail
