// Core<P>, drainers: how they take ops, run them, look around and leave; and serial mode, which has none.
#pragma once

#include "sluice/engine/detail/core.h"
#include "sluice/engine/detail/core_circles.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice::detail {

/// One thread's stay in a lane.
template <class P>
struct Core<P>::Drainer {
  /// With `batches` it takes more than one op at a time, and other workers can find its batch.
  Drainer(Core& c, Lane<P>& l, Slot<P>& s, bool batches = true) : core(c), lane(l), slot(s) {
    for (std::uint32_t i = 0; batches && i < lane.drainers.size() && place < 0; ++i) {
      Slot<P>* nobody = nullptr;
      if (!lane.drainers[i].compare_exchange_strong(nobody, &slot, std::memory_order_acq_rel)) continue;
      place = static_cast<int>(i);
      slot.batch_shared = true;
      std::uint32_t end = lane.drainers_end.load(std::memory_order_relaxed);
      while (end <= i && !lane.drainers_end.compare_exchange_weak(end, i + 1, std::memory_order_acq_rel)) {
      }
    }
  }
  ~Drainer() {
    slot.batch_shared = false;
    if (place >= 0) lane.drainers[static_cast<std::size_t>(place)].store(nullptr, std::memory_order_release);
  }
  /// Looks for an op for a while.
  template <class Look>
  Run* look_around(Look&& look) {
    if (in_step >= 4) core.gather(*this);
    // A waiting thread that runs what it pushed is faster alone, and would have to call this drainer back. So the
    // drainer stays, and looks now and then.
    const auto helped = [&] {
      const std::uint32_t now = lane.helped.load(std::memory_order_relaxed);
      return std::exchange(seen_helped, now) != now;
    };
    int between = helped() ? P::kGatherPauses : 1, left = P::kDrainSpins;
    for (int i = 0;; ++i) {
      for (int k = 0; k < between; ++k) P::pause();
      for (int k = P::kGatherPauses; k > 0 && lane.gathering.load(std::memory_order_relaxed); --k) P::pause();
      if (Run* op = look()) {
        in_step = i < 3 && found < 8 ? in_step + 1 : 0;
        return op;
      }
      left -= between;
      if (left > 0) continue;
      if (!helped()) break;
      left = P::kDrainSpins;
      between = P::kGatherPauses;
    }
    in_step = 0;
    return nullptr;
  }

  Drainer(const Drainer&) = delete;
  Drainer& operator=(const Drainer&) = delete;

  Core& core;
  Lane<P>& lane;
  Slot<P>& slot;
  int place = -1;                 ///< its place among the lane's drainers; without one it takes no batches
  std::size_t found = 0;          ///< how many ops it found when it last found any in a queue
  int in_step = 0;                ///< times in a row that it found few ops, and at the first looks
  int in_vain = 0, passed = 0;    ///< gather() was in vain so often; it is passed over so many times more
  int since = 0;                  ///< ops since it last looked at the queues
  bool fresh = true;              ///< it has just come or come back, so there may be work for more than one
  std::uint32_t turn = 0;         ///< looks at the queues
  std::uint32_t seen_helped = 0;  ///< the lane's `helped` when it last looked around
};

/// If a worker and the pushers are in step, an op or two at a time, each waits for the cache lines that the other
/// writes, and both are slow (three to five times, on a Xeon). So a worker that is in step waits until the pushers are
/// a good way ahead, as long as they push. If they do not push, the waiting was in vain, and is tried less and less
/// often.
template <class P>
void Core<P>::gather(Drainer& d) {
  if (d.passed > 0) {
    --d.passed;
    return;
  }
  d.in_step = 0;
  d.lane.gathering.store(true, std::memory_order_relaxed);  // else another drainer would take the ops one by one
  bool moves = true, enough = false;
  for (std::int64_t before = twice_in_flight(1); moves && !enough;) {
    for (int k = P::kGatherPauses; k > 0; --k) P::pause();
    const std::int64_t now = twice_in_flight(1);
    enough = now >= 2 * P::kGathered;
    moves = now >= before + 2 * P::kGatheredAtOnce;
    before = now;
  }
  d.lane.gathering.store(false, std::memory_order_relaxed);
  d.passed = d.in_vain = enough ? 0 : std::min(2 * d.in_vain + 1, 255);
}

/// The next op. It comes from the batch in hand, for up to 64 ops; then from the queue of the highest priority. One
/// look in 64 gives another priority the first choice, so that none starves.
template <class P>
auto Core<P>::take_op(Drainer& d) -> Run* {
  if (d.since < 64)
    if (Run* op = d.slot.batch.take()) return op;
  d.since = 0;
  const std::uint32_t used = d.lane.priorities.load(std::memory_order_acquire);
  if (++d.turn % 64 == 0) {
    const int favoured = static_cast<int>(d.turn / 64 % kPriorities);
    if (used & (1u << favoured))
      if (Run* op = take_queued(d, favoured)) return op;
  }
  for (int priority = kPriorities - 1; priority >= 0; --priority) {
    if (priority == d.slot.batch_priority)
      if (Run* op = d.slot.batch.take()) return op;
    if (used & (1u << priority))
      if (Run* op = take_queued(d, priority)) return op;
  }
  if (Run* op = take_overflow(d.lane)) return op;
  // An op that another worker has in its batch, and may not come to for long.
  const std::uint32_t end = d.lane.drainers_end.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < end; ++i)
    if (Slot<P>* other = d.lane.drainers[i].load(std::memory_order_acquire); other && other != &d.slot)
      if (Run* op = other->batch.take()) return op;
  return nullptr;
}

/// Takes one op from a queue, and with it a batch of the ops behind it. The batch leaves the other workers their share.
template <class P>
auto Core<P>::take_queued(Drainer& d, int priority) -> Run* {
  auto& queue = d.lane.queues[static_cast<std::size_t>(priority)];
  Run* ops[Batch<P>::kSize];
  std::size_t most = 1;
  const std::size_t share = d.lane.width > 1 ? 2 * static_cast<std::size_t>(d.lane.width) : 1;
  if (d.slot.batch_shared && d.slot.batch.empty()) most = Batch<P>::kSize;
  const std::size_t count = queue.try_dequeue_bulk(ops, most, share, d.turn);
  if (count == 0) return nullptr;
  d.found = count;
  for (std::size_t i = 0; i < count; ++i) prefetch(ops[i], 0, 0, kClosureLine);
  if (count > 1) {
    d.slot.batch_priority = priority;
    d.slot.batch.put(ops + 1, count - 1);
    if (d.lane.width > 1) {
      P::light_fence();
      wake(d.lane);
    }
  }
  return ops[0];
}

/// Puts a ready op at the end of the batch in hand, and returns the next op of the batch. Other workers were woken for
/// the batch when it was filled.
template <class P>
auto Core<P>::pass(Drainer& d, Run* op) -> Run* {
  prefetch_successors(op);  // before it is in the batch: there another worker may run it, and its record may be freed
  return d.slot.batch.append(op) ? d.slot.batch.take() : op;
}

template <class P>
auto Core<P>::take_overflow(Lane<P>& lane) -> Run* {
  if (!lane.overflowed.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(lane.overflow_mutex);
  Run* op = lane.overflow.pop();
  if (!lane.overflow.head) lane.overflowed.store(false, std::memory_order_relaxed);
  return op;
}

/// A drainer takes ops, looks around for a while, and leaves. It restores the thread's state, because the thread may be
/// one of oneTBB's. While it is here it counts as running, also while it only looks.
template <class P>
void Core<P>::drain(Lane<P>& lane, int width) {
  for (int tries = 0;; ++tries) try {
      my_slot();
      break;
    } catch (const std::bad_alloc&) {
      // Memory may come back; else a thread that waits tries again (rescue).
      if (tries < 20) {
        typename P::Parker().wait(std::chrono::milliseconds(1));
        continue;
      }
      lane.failed_starts.fetch_add(1, std::memory_order_seq_cst);
      lane.active.fetch_sub(1, std::memory_order_seq_cst);
      return;
    }
  if (lane.failed_starts.load(std::memory_order_relaxed)) lane.failed_starts.store(0, std::memory_order_seq_cst);
  ThreadState& state = thread_state();
  const ThreadState saved = std::exchange(state, ThreadState{nullptr, nullptr, &lane, width});
  ScopeState saved_scope = std::exchange(ThreadObject<ScopeState>::get(), ScopeState{lane.device, 0, 0, nullptr, {}});
  {
    Slot<P>& slot = my_slot();
    Drainer d(*this, lane, slot);
    if (lane.queue) lane.queue->provider.enter(lane.queue->device);
    bool again = true;
    while (again) {
      {
        const Doing<P> doing(slot, Activity::running);
        work(d);
        if (lane.queue) point(*lane.queue, true);
      }
      flush(slot);
      lane.active.fetch_sub(1, std::memory_order_seq_cst);
      // Work came after the last look: the drainer takes its place again, unless others fill the lane.
      P::heavy_fence();
      again = false;
      if (!has_work(lane)) break;
      std::int32_t active = lane.active.load(std::memory_order_seq_cst);
      while (active < lane.limit() && !(again = lane.active.compare_exchange_weak(active, active + 1))) {
      }
      d.fresh = again;
    }
  }
  state = saved;
  ThreadObject<ScopeState>::get() = std::move(saved_scope);
}

/// Runs ops until there is none, or until this drainer is one too many (its op's wait is over and the substitute is
/// still here).
template <class P>
void Core<P>::work(Drainer& d) {
  Lane<P>& lane = d.lane;
  for (;;) {
    Run* op = take_op(d);
    // A thread that pushed while this or another drainer was looking woke nobody, and for the next op it wakes this one
    // alone.
    if (op && std::exchange(d.fresh, false) && lane.width > 1 && has_work(lane)) wake(lane);
    if (!op) {
      flush(d.slot);
      if (lane.queue) point(*lane.queue, true);
      // If there may be more drainers than one, no thread wakes another while this one looks.
      const bool announced = lane.width > 1;
      if (announced) lane.spinning.fetch_add(1, std::memory_order_seq_cst);
      op = d.look_around([&] { return take_op(d); });
      if (announced) lane.spinning.fetch_sub(1, std::memory_order_seq_cst);
      if (!op) return;
      if (announced) {
        P::fence();
        if (has_work(lane)) wake(lane);
      }
    }
    for (; op; d.since += 1 + std::exchange(d.slot.ran, 0)) {
      // Ops that were pushed one after another lie one after another, and are still in the pusher's cache. The prefetch
      // is far enough ahead that the pusher is not writing there.
      if (d.slot.far_behind && !op->is(kCaptured)) prefetch(op, kAhead, 0);
      Run* next = execute(op, d.slot, &lane);
      // Right behind the pusher in a chain it finds an op each time, and is in step all the same.
      if (next && d.slot.last_in_chains >= 8) {
        d.slot.last_in_chains = 0;
        gather(d);
      }
      if (next && d.since >= 64) {
        if (has_work(lane)) {
          enqueue(next, d.slot);
          next = nullptr;
        } else {
          d.since = 0;
        }
      }
      // It goes behind the ops in the batch, so that its cache lines have time to come here.
      op = next && d.slot.batch_shared && next->priority() == d.slot.batch_priority && !d.slot.batch.empty()
               ? pass(d, next)
               : next;
    }
    if (lane.active.load(std::memory_order_relaxed) > lane.limit()) {
      while (Run* rest = d.slot.batch.take()) enqueue(rest, d.slot);
      return;
    }
  }
}

// ---- serial mode

/// Runs the ready ops on the thread of the outermost push. Inside an op they wait until that op returns. If another
/// thread is running ops already, that thread runs these too, because a thread with a Borrow must not stand behind an
/// op that waits for the Borrow. A thread that has had `enough` leaves the rest to the next thread that pushes, waits
/// or answers.
template <class P>
template <class Enough>
void Core<P>::drain_serial(Enough&& enough) {
  while (!enough() && anything_queued()) {
    std::unique_lock lock(serial_mutex_, std::try_to_lock);
    if (!lock) return;  // the thread that holds it looks again afterwards
    while (!enough() && run_one_serial()) {
    }
  }
}

template <class P>
bool Core<P>::anything_queued() const {
  if (options_.serial && collected_count_.load(std::memory_order_acquire) > 0) return true;
  for (auto& lane : lanes_.all)
    if (has_work(*lane)) return true;
  return false;
}

/// Takes all ready ops out of the queues. They go behind the ops that were taken before.
template <class P>
void Core<P>::collect_queued() {
  for (auto& lane : lanes_.all) {
    auto& lists = collected_[lane->index];
    const auto keep = [&](std::size_t priority, Run* op) {
      lists[priority].push(op);
      collected_count_.fetch_add(1, std::memory_order_release);
    };
    Run* op = nullptr;
    for (std::size_t priority = 0; priority < kPriorities; ++priority)
      if (lane->priorities.load(std::memory_order_acquire) & (1u << priority))
        while (lane->queues[priority].try_dequeue(op)) keep(priority, op);
    while ((op = take_overflow(*lane)) != nullptr) keep(static_cast<std::size_t>(op->priority()), op);
  }
}

template <class P>
bool Core<P>::run_one_serial() {
  Slot<P>& slot = my_slot();
  const Doing<P> doing(slot, Activity::running);  // before the queue says that it is empty
  collect_queued();
  Run* op = nullptr;
  for (auto& lists : collected_)
    for (std::size_t priority = kPriorities; priority-- > 0 && !op;) op = lists[priority].pop();
  if (!op) return false;
  collected_count_.fetch_sub(1, std::memory_order_relaxed);
  execute_serial(op, slot);
  return true;
}

template <class P>
void Core<P>::execute_serial(Run* op, Slot<P>& slot) {
  DeviceQueue<P>* const queue = lanes_.all[op->lane]->queue.get();
  if (queue) queue->provider.enter(queue->device);
  execute(op, slot, nullptr);
  if (queue) point(*queue, true);
}

/// The first op, in the order in which ops would be run, that must be over before `target` can be. Null if none of
/// these is ready.
template <class P>
auto Core<P>::take_needed(std::uint64_t target) -> Run* try {
  std::lock_guard lock(waits_.blocked_mutex);
  Standing standing(*this);
  for (auto& lists : collected_)
    for (std::size_t priority = kPriorities; priority-- > 0;) {
      auto& list = lists[priority];
      Run* before = nullptr;
      for (Run* op = list.head; op; before = op, op = op->next) {
        // No other thread has it, so the ops behind it stay. A captured op ends its replay.
        Captured* const captured = op->is(kCaptured) ? static_cast<Captured*>(op) : nullptr;
        standing.follow(captured ? static_cast<Op*>(captured->program->running) : static_cast<Op*>(op), target);
        if (standing.find(target) < 0) continue;
        list.remove(before, op);
        return op;
      }
    }
  return nullptr;
} catch (const std::bad_alloc&) {
  return nullptr;  // it will look again
}

/// For a wait inside an op: runs what the wait needs, on the stack of the op, until the wait is told. It runs no other
/// op, because that could itself wait for this one. With `others` nothing else helps, and it runs any op, because that
/// may answer a Completion.
template <class P>
template <class Told>
void Core<P>::run_needed(std::uint64_t target, Told&& told, bool others) {
  Slot<P>& slot = my_slot();
  while (!told()) {
    const Doing<P> doing(slot, Activity::running);
    collect_queued();
    if (Run* op = take_needed(target)) {
      collected_count_.fetch_sub(1, std::memory_order_relaxed);
      execute_serial(op, slot);
    } else if (!std::exchange(others, false) || !awaits_completions() || !run_one_serial()) {
      return;
    }
  }
}

/// True if some op's Completion is not answered. Borrows do not count.
template <class P>
bool Core<P>::awaits_completions() {
  std::int64_t open = open_.load(std::memory_order_acquire);
  std::lock_guard lock(slots_mutex_);
  for (auto& slot : slots_) open -= slot->borrows.load(std::memory_order_acquire);
  open -= waits_.disowned.load(std::memory_order_acquire);
  return open > 0;
}

}  // namespace sluice::detail
