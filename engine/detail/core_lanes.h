// Core<P>, lanes: their drainers, and serial mode, which has none.
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
void Core<P>::enqueue(Op* op) {
  Lane<P>& lane = *op->lane;
  const std::uint32_t bit = 1u << op->priority;
  if (!(lane.priorities.load(std::memory_order_relaxed) & bit))
    lane.priorities.fetch_or(bit, std::memory_order_seq_cst);
  if (!lane.queues[op->priority].enqueue(op)) {
    std::lock_guard lock(lane.overflow_mutex);
    lane.overflow.push(op);
    lane.overflowed.store(true, std::memory_order_relaxed);
  }
  // Sequentially consistent with a drainer's last look before it leaves (tbb#2136): one of the two sees the other.
  lane.queued.fetch_add(1, std::memory_order_seq_cst);
  if (!options_.serial) wake(lane);
}

/// Starts one more drainer where there is work, room, and nobody already looking.
template <class P>
void Core<P>::wake(Lane<P>& lane) {
  if (lane.spinning.load(std::memory_order_seq_cst) > 0) return;
  std::int32_t active = lane.active.load(std::memory_order_seq_cst);
  for (;;) {
    if (active >= lane.limit()) return;
    if (lane.active.compare_exchange_weak(active, active + 1, std::memory_order_seq_cst)) break;
  }
  auto self = std::static_pointer_cast<Core>(shared_from_this());
  try {
    if (active >= lane.width) {
      P::start_substitute([self, &lane] { self->drain(lane, 1); });  // no thread of the arena: its loops run alone
    } else {
      lane.workers.start([self, &lane] { self->drain(lane, lane.width); });
    }
  } catch (...) {
    // No memory or no thread for it: whoever blocks looks again (block()).
    lane.active.fetch_sub(1, std::memory_order_seq_cst);
  }
}

/// The next op: the highest priority first; one time in 64 another has the first choice, so that none starves. From
/// here the slot counts as running, before the queue says that it is empty.
template <class P>
auto Core<P>::take_op(Lane<P>& lane, Slot<P>& slot, std::uint32_t& turn) -> Op* {
  if (lane.queued.load(std::memory_order_seq_cst) <= 0) return nullptr;
  const std::uint32_t used = lane.priorities.load(std::memory_order_acquire);
  Op* op = nullptr;
  if (++turn % 64 == 0) {
    const std::uint32_t favoured = turn / 64 % kPriorities;
    if (used & (1u << favoured)) lane.queues[favoured].try_dequeue(op);
  }
  for (int priority = kPriorities - 1; priority >= 0 && !op; --priority)
    if (used & (1u << priority)) lane.queues[static_cast<std::size_t>(priority)].try_dequeue(op);
  if (!op && lane.overflowed.load(std::memory_order_acquire)) {
    std::lock_guard lock(lane.overflow_mutex);
    op = lane.overflow.pop();
  }
  if (!op) return nullptr;
  if (slot.activity.load(std::memory_order_relaxed) != Activity::running)
    slot.activity.store(Activity::running, std::memory_order_seq_cst);
  lane.queued.fetch_sub(1, std::memory_order_seq_cst);
  return op;
}

/// A drainer: takes ops, looks around for a while, leaves. Restores the thread's state: it may be a thread of oneTBB.
template <class P>
void Core<P>::drain(Lane<P>& lane, int width) {
  Slot<P>& slot = my_slot();
  ThreadState& state = thread_state();
  const ThreadState saved = state;
  state = ThreadState{};
  state.lane = &lane;
  state.width = width;
  std::uint32_t turn = 0;
  for (;;) {
    Op* op = take_op(lane, slot, turn);
    if (!op) {
      flush(slot);
      lane.spinning.fetch_add(1, std::memory_order_seq_cst);
      for (int i = 0; i < P::kDrainSpins && !op; ++i) {
        P::pause();
        op = take_op(lane, slot, turn);
      }
      lane.spinning.fetch_sub(1, std::memory_order_seq_cst);
      // While this one was looking nobody else was woken: pass it on.
      if (op && lane.queued.load(std::memory_order_seq_cst) > 0) wake(lane);
    }
    for (int handed = 0; op; ++handed) {
      Op* next = execute(op, slot, &lane);
      if (next && handed >= 64) {
        enqueue(next);
        next = nullptr;
      }
      op = next;
      if (!op && lane.active.load(std::memory_order_relaxed) <= lane.limit())
        op = take_op(lane, slot, turn), handed = 0;
    }
    slot.activity.store(Activity::outside, std::memory_order_release);
    const bool surplus = lane.active.load(std::memory_order_seq_cst) > lane.limit();
    if (!surplus && lane.queued.load(std::memory_order_seq_cst) > 0) continue;
    flush(slot);
    lane.active.fetch_sub(1, std::memory_order_seq_cst);
    if (lane.queued.load(std::memory_order_seq_cst) <= 0) break;
    // Work came between the last look and leaving: take this drainer's place again, unless others fill the lane.
    std::int32_t active = lane.active.load(std::memory_order_seq_cst);
    bool again = false;
    while (active < lane.limit() && !(again = lane.active.compare_exchange_weak(active, active + 1))) {
    }
    if (!again) break;
  }
  state = saved;
}

// ---- serial mode

/// Runs what is ready, on the thread of the outermost push; inside an op it waits for that op's return. Where another
/// thread is at it already, that one runs this too: a thread with a Borrow must not stand behind an op that waits for
/// it.
template <class P>
void Core<P>::drain_serial() {
  while (anything_queued()) {
    std::unique_lock lock(serial_mutex_, std::try_to_lock);
    if (!lock) return;  // its holder looks again after it let go
    while (run_one_serial()) {
    }
  }
}

template <class P>
bool Core<P>::anything_queued() const {
  for (auto& lane : lanes_)
    if (lane->queued.load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

template <class P>
bool Core<P>::run_one_serial() {
  Slot<P>& slot = my_slot();
  const Activity before = slot.activity.load(std::memory_order_relaxed);
  std::uint32_t turn = 0;
  for (auto& lane : lanes_)
    if (Op* op = take_op(*lane, slot, turn)) {
      execute(op, slot, nullptr);
      slot.activity.store(before, std::memory_order_release);
      return true;
    }
  return false;
}

}  // namespace sluice::detail
