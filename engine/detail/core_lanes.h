// Core<P>, lanes: how an op comes into a lane, and which thread starts the drainers that take it out (core_drain.h).
#pragma once

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

template <class P>
[[gnu::always_inline]] inline void Core<P>::enqueue(Run* op, Slot<P>& slot) {
  Lane<P>& lane = *lanes_.all[op->lane];
  const int priority = op->priority();
  auto* const producer = producer_for(slot, lane, priority);
  if (!producer || !(lane.priorities.load(std::memory_order_relaxed) & (1u << priority)) || options_.serial ||
      !lane.queues[static_cast<std::size_t>(priority)].enqueue(*producer, op)) [[unlikely]]
    return enqueue_all(lane, priority, &op, 1);
  P::light_fence();
  wake(lane);
}

/// For a worker of the lane `here`: the ops that it makes ready and can run itself go into its batch, where other
/// workers find them too.
template <class P>
[[gnu::always_inline]] inline void Core<P>::keep_or_enqueue(Run* op, Slot<P>& slot, Lane<P>* here) {
  const int priority = op->priority();  // once it is in the batch another may run it, and its record go
  if (here && op->lane == here->index && slot.batch_shared && (priority == slot.batch_priority || slot.batch.empty()) &&
      slot.batch.append(op)) {
    slot.batch_priority = priority;
    if (here->width > 1) {
      P::light_fence();
      wake(*here);
    }
    return;
  }
  enqueue(op, slot);
}

template <class P>
void Core<P>::enqueue_all(Lane<P>& lane, int priority, Run* const* ops, std::size_t count) {
  const std::uint32_t bit = 1u << priority;
  if (!(lane.priorities.load(std::memory_order_relaxed) & bit))
    lane.priorities.fetch_or(bit, std::memory_order_seq_cst);
  auto& queue = lane.queues[static_cast<std::size_t>(priority)];
  auto* producer = producer_for(my_slot(), lane, priority);
  if (!(producer ? queue.enqueue_bulk(*producer, ops, count) : queue.enqueue_bulk(ops, count))) {
    std::lock_guard lock(lane.overflow_mutex);
    for (std::size_t i = 0; i < count; ++i) lane.overflow.push(ops[i]);
    lane.overflowed.store(true, std::memory_order_relaxed);
  }
  if (options_.serial) return;
  // A drainer that leaves says so and then looks once more (drain), so one of the two sees the other (tbb#2136).
  P::light_fence();
  wake(lane);
}

/// The thread's own place in a ready queue; null where there was no memory for one.
template <class P>
[[gnu::always_inline]] inline auto Core<P>::producer_for(Slot<P>& slot, Lane<P>& lane, int priority) ->
    typename Slot<P>::Queue::Producer* {
  const std::size_t at = static_cast<std::size_t>(lane.index) * kPriorities + static_cast<std::size_t>(priority);
  if (at < slot.producers.size() && slot.producers[at]) return slot.producers[at].get();
  return new_producer(slot, lane, priority, at);
}

template <class P>
auto Core<P>::new_producer(Slot<P>& slot, Lane<P>& lane, int priority, std::size_t at) ->
    typename Slot<P>::Queue::Producer* {
  try {
    if (at >= slot.producers.size()) slot.producers.resize(lanes_.all.size() * kPriorities);
    slot.producers[at] =
        std::make_unique<typename Slot<P>::Queue::Producer>(lane.queues[static_cast<std::size_t>(priority)]);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return slot.producers[at].get();
}

/// True if a drainer looks for work and will see what was there before this call.
template <class P>
[[gnu::always_inline]] inline bool Core<P>::is_looked_at(const Lane<P>& lane) const {
  if (lane.spinning.load(std::memory_order_seq_cst) == 0) return false;
  P::fence();  // one that has found an op, and looks no more, has a full one too
  return lane.spinning.load(std::memory_order_seq_cst) != 0;
}

/// Starts one more drainer if there is room and no drainer is looking already. The caller has made the op visible and
/// then executed a light fence; a drainer that leaves executes a heavy one.
template <class P>
[[gnu::always_inline]] inline void Core<P>::wake(Lane<P>& lane) {
  if (lane.active.load(std::memory_order_seq_cst) < lane.limit()) [[unlikely]] {
    if (!is_looked_at(lane)) start_drainer(lane);
  }
}

template <class P>
void Core<P>::start_drainer(Lane<P>& lane) {
  std::int32_t active = lane.active.load(std::memory_order_seq_cst);
  // A drainer that has just ended its op will look in a moment, and a start costs more than that.
  for (int k = lane.width > 1 && active > 0 ? P::kStartPauses : 0; k > 0; --k) {
    P::pause();
    if (is_looked_at(lane)) return;
  }
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
    // There is no memory or no thread for it. A thread that waits tries again (rescue).
    lane.failed_starts.fetch_add(1, std::memory_order_seq_cst);
    lane.active.fetch_sub(1, std::memory_order_seq_cst);
  }
}

template <class P>
bool Core<P>::starts_fail() const {
  for (auto& lane : lanes_.all)
    if (lane->failed_starts.load(std::memory_order_relaxed) > 0) return true;
  return false;
}

/// Starts the drainers that could not be started before. If that fails again and again, the calling thread runs the ops
/// itself, if it may, until it has had `enough`. It does not do so at once, because it may hold a lock of its program
/// that an op needs.
template <class P>
template <class Enough>
void Core<P>::rescue(bool may_help, Enough&& enough) {
  tend_watches();
  if (options_.serial) return;
  for (auto& lane : lanes_.all) {
    if (!has_work(*lane)) continue;
    wake(*lane);
    if (may_help && lane->failed_starts.load(std::memory_order_seq_cst) >= kFailedStarts)
      help(*lane, true, true, enough);
  }
}

/// The lane of the calling thread's device, if it may run ops while it waits.
template <class P>
Lane<P>* Core<P>::lane_to_help(bool wanted) {
  if (!wanted || options_.serial || in_op() || my_slot().borrows.load(std::memory_order_relaxed) > 0) return nullptr;
  Lane<P>* const lane = lane_for(Place(current_scope().device));
  return lane && !lane->queue ? lane : nullptr;
}

/// The calling thread, which is outside of ops, runs ops until it has had enough or finds none. It does so in a
/// drainer's place, or as one more.
template <class P>
template <class Enough>
void Core<P>::help(Lane<P>& lane, bool in_place, bool batches, Enough&& enough) {
  Slot<P>& slot = my_slot();
  std::int32_t active = lane.active.load(std::memory_order_seq_cst);
  while (in_place) {
    if (active >= lane.limit()) return;
    if (lane.active.compare_exchange_weak(active, active + 1, std::memory_order_seq_cst)) break;
  }
  void* const arena = lane.workers.arena();
  const ThreadState saved =
      std::exchange(thread_state(), ThreadState{nullptr, nullptr, &lane, arena ? lane.width : 1, arena});
  ScopeState saved_scope = std::exchange(ThreadObject<ScopeState>::get(), ScopeState{lane.device, 0, 0, nullptr, {}});
  {
    const Doing<P> doing(slot, Activity::running);
    Drainer d(*this, lane, slot, batches);
    for (int spins = 0; !enough();) {
      Run* op = take_op(d);
      if (!op) {
        if (in_place || ++spins > P::kWaitSpins) break;
        P::pause();
        continue;
      }
      spins = 0;
      lane.helped.store(lane.helped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      while ((op = execute(op, slot, &lane)) != nullptr)
        if (enough()) {
          enqueue(op, slot);
          break;
        }
    }
    while (Run* rest = slot.batch.take()) enqueue(rest, slot);
  }
  flush(slot);
  if (in_place) lane.active.fetch_sub(1, std::memory_order_seq_cst);
  thread_state() = saved;
  ThreadObject<ScopeState>::get() = std::move(saved_scope);
}

/// True if an op is ready here and nobody has begun it.
template <class P>
bool Core<P>::has_work(const Lane<P>& lane) const {
  const std::uint32_t used = lane.priorities.load(std::memory_order_acquire);
  for (std::size_t priority = 0; priority < kPriorities; ++priority)
    if ((used & (1u << priority)) && !lane.queues[priority].empty()) return true;
  if (lane.overflowed.load(std::memory_order_acquire)) return true;
  const std::uint32_t end = lane.drainers_end.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < end; ++i)
    if (const Slot<P>* other = lane.drainers[i].load(std::memory_order_acquire); other && !other->batch.empty())
      return true;
  return false;
}

}  // namespace sluice::detail
