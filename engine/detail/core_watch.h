// Core<P>, watchers. The one watcher of each provider learns how far the streams are, and finishes ops in the order of
// their lanes. It hands ops over and runs no body, but it destroys closures (docs/devices.md). If nothing is in flight
// it asks nothing, parks, and leaves after a while.
#pragma once

#include <algorithm>
#include <array>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// Called after a point was recorded. A watcher that parks or leaves says so, then looks once more (Core::watch).
template <class P>
void Core<P>::wake_watch(const DeviceQueue<P>& queue) {
  P::light_fence();
  Watch<P>& watch = *queue.watch;
  if (watch.state.load(std::memory_order_seq_cst) != Watch<P>::active) [[unlikely]]
    start_watch(watch);
}

template <class P>
void Core<P>::start_watch(Watch<P>& watch) {
  std::uint32_t state = watch.state.load(std::memory_order_seq_cst);
  for (;;) {
    if (state == Watch<P>::parked) {
      if (!watch.state.compare_exchange_weak(state, Watch<P>::waking, std::memory_order_seq_cst)) continue;
      watch.woken_for = shared_from_this();
      watch.state.store(Watch<P>::active, std::memory_order_seq_cst);
      watch.parker.signal();
      return;
    }
    if (state != Watch<P>::absent) return;  // it looks, or will
    if (watch.state.compare_exchange_weak(state, Watch<P>::active, std::memory_order_seq_cst)) break;
  }
  try {
    const auto here =
        std::find_if(lanes_.watches.begin(), lanes_.watches.end(), [&](const auto& w) { return w.get() == &watch; });
    P::start_substitute([self = std::static_pointer_cast<Core>(shared_from_this()), own = *here]() mutable {
      run_watch(std::move(self), std::move(own));
    });
    watch.failed_starts.store(0, std::memory_order_relaxed);
  } catch (...) {
    // There is no memory or no thread for it. A thread that waits tries again (tend_watches).
    watch.failed_starts.fetch_add(1, std::memory_order_relaxed);
    watch.state.store(Watch<P>::absent, std::memory_order_seq_cst);
  }
}

/// For threads that wait: records points for what is issued, and starts watchers that could not be started before. If
/// that fails again and again this thread does the watcher's work.
template <class P>
void Core<P>::tend_watches() {
  if (lanes_.watches.empty()) return;
  point_all();
  for (const auto& watch : lanes_.watches) {
    if (watch->state.load(std::memory_order_seq_cst) != Watch<P>::absent || !pending(*watch)) continue;
    start_watch(*watch);
    if (watch->failed_starts.load(std::memory_order_relaxed) >= kFailedStarts) confirm_all(*watch);
  }
}

template <class P>
bool Core<P>::pending(const Watch<P>& watch) {
  for (const DeviceQueue<P>* queue : watch.queues)
    if (queue->finished.load(std::memory_order_seq_cst) < queue->pointed.load(std::memory_order_seq_cst)) return true;
  return false;
}

/// The watcher's thread. While it is parked it holds nothing of the engine, so that the engine may end.
template <class P>
void Core<P>::run_watch(std::shared_ptr<Core> core, std::shared_ptr<Watch<P>> watch) {
  for (;;) {
    core->watch(*watch);
    watch->state.store(P::kWatchStays ? Watch<P>::parked : Watch<P>::absent, std::memory_order_seq_cst);
    P::heavy_fence();
    std::uint32_t state = P::kWatchStays ? Watch<P>::parked : Watch<P>::absent;
    if (pending(*watch) && watch->state.compare_exchange_strong(state, Watch<P>::active, std::memory_order_seq_cst))
      continue;
    if (!P::kWatchStays) return;  // absent: who points next starts another
    core.reset();
    for (bool timed_out = false;; timed_out = true) {
      state = watch->state.load(std::memory_order_seq_cst);
      if (state == Watch<P>::ended) return;
      if (state == Watch<P>::active) break;
      if (timed_out && state == Watch<P>::parked &&
          watch->state.compare_exchange_strong(state, Watch<P>::absent, std::memory_order_seq_cst))
        return;
      watch->parker.wait(std::chrono::milliseconds(200));
    }
    core = std::static_pointer_cast<Core>(std::shared_ptr<CoreBase>(watch->woken_for));
    watch->woken_for = nullptr;
  }
}

/// Looks until nothing that has a point is in flight.
template <class P>
void Core<P>::watch(Watch<P>& watch) {
  for (;;) {
    const std::uint64_t seen = watch.provider->progress();
    confirm_all(watch);
    if (!pending(watch)) return;
    watch.provider->await_progress(seen, P::kTick);
  }
}

/// One look at all streams. It reads first how far they are, then the errors, and then finishes ops: an error is
/// counted before its op's point is reached.
template <class P>
void Core<P>::confirm_all(Watch<P>& watch) {
  std::lock_guard lock(watch.mutex);
  for (DeviceQueue<P>* queue : watch.queues) queue->reached = queue->stream->reached();
  read_errors(watch);
  for (DeviceQueue<P>* queue : watch.queues) confirm(watch, *queue);
  settle_errors(watch);
  if (options_.device_limit.count() > 0) give_up_silent(watch);
}

/// Takes a device for lost that has made no progress for so long as EngineOptions::device_limit says, with something
/// in flight all the time that waits for no other stream. The time begins with the first look that finds that. Each op
/// has a point (DeviceQueue::batch), so progress is an op.
template <class P>
void Core<P>::give_up_silent(Watch<P>& watch) {
  const std::int64_t limit = options_.device_limit.count(), now = P::now();
  for (std::size_t d = 0; d < watch.devices.size(); ++d) {
    auto& device = watch.devices[d];
    const int index = static_cast<int>(d);
    std::uint64_t finished = 0;
    bool owes = false;
    for (DeviceQueue<P>* queue : watch.queues) {
      if (queue->device != index) continue;
      const std::uint64_t at = queue->finished.load(std::memory_order_relaxed);
      finished += at;
      owes = owes || (at < queue->pointed.load(std::memory_order_relaxed) && !queue->waits_for_another());
    }
    if (!owes) device.since = 0;
    if (device.lost || !owes) continue;
    if (device.since == 0 || finished != device.seen) {
      device.seen = finished;
      device.since = now;
    } else if (now - device.since >= limit) {
      watch.provider->give_up(index);
      lose(watch, index, "it has not answered for " + std::to_string(limit / 1'000'000) + " ms");
      for (DeviceQueue<P>* queue : watch.queues)
        if (queue->device == index) confirm(watch, *queue);
      read_errors(watch);  // the loss counts as one, and there may be no other look
      settle_errors(watch);
    }
  }
}

/// The lane's own thread finishes the ops that its device is over with already, so on a quick device no other thread
/// needs to see them. Returns false if something is left for the watcher.
template <class P>
bool Core<P>::confirm_own(DeviceQueue<P>& queue) {
  const std::uint64_t reached = queue.stream->reached();
  if (reached == queue.finished.load(std::memory_order_relaxed)) return false;
  Watch<P>& watch = *queue.watch;
  std::unique_lock lock(watch.mutex, std::try_to_lock);
  if (!lock) return false;
  queue.reached = reached;
  read_errors(watch);
  confirm(watch, queue);
  settle_errors(watch);
  return queue.finished.load(std::memory_order_relaxed) == queue.pointed.load(std::memory_order_relaxed);
}

template <class P>
void Core<P>::read_errors(Watch<P>& watch) {
  for (std::size_t d = 0; d < watch.devices.size(); ++d) {
    auto& device = watch.devices[d];
    const int index = static_cast<int>(d);
    for (std::uint64_t count = watch.provider->errors(index); count != device.errors;) try {
        std::vector<LateError> found = watch.provider->late_errors(index, device.errors);
        // If more came meanwhile, their number can hide that older ones were lost.
        if (const std::uint64_t now = std::exchange(count, watch.provider->errors(index)); now != count) continue;
        const bool lacks = found.size() < count - device.errors;
        watch.late.insert(watch.late.end(), std::make_move_iterator(found.begin()),
                          std::make_move_iterator(found.end()));
        std::erase_if(watch.late, [](const LateError& late) { return late.op == DeviceOp{}; });  // of no op
        device.errors = count;
        if (lacks) suspect(watch, index);
      } catch (const std::bad_alloc&) {
        device.errors = count;
        suspect(watch, index);
      }
    if (device.lost) continue;
    if (const std::exception_ptr why = watch.provider->lost(index)) lose(watch, index, message_of(why));
  }
}

/// Errors that were read are settled when every op that begins from then on can see what they made of its inputs. What
/// is in flight when they are read may be behind an op that failed, without knowing it, and so may be what begins until
/// all that is over. So from the reading on an op that takes its place lets no op begin behind it before its end
/// (DeviceQueue::heed). When all that took a place before that is over, each op that begins finds its inputs finished.
/// Ops that began earlier and take their places later still heed it.
template <class P>
void Core<P>::settle_errors(Watch<P>& watch) {
  std::uint64_t read = 0;
  for (const auto& device : watch.devices) read += device.errors;
  if (read == watch.settled) return;
  const auto turn = [](DeviceQueue<P>& queue) {
    queue.doubts.store(queue.doubts.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  };
  if (read != watch.settling) {
    for (DeviceQueue<P>* queue : watch.queues) {
      std::lock_guard lock(*queue);
      if (watch.settling == watch.settled) turn(*queue);
      queue->settles_at = queue->issued.load(std::memory_order_relaxed);
    }
    watch.settling = read;
  }
  for (const DeviceQueue<P>* queue : watch.queues)
    if (queue->finished.load(std::memory_order_relaxed) < queue->settles_at) return;
  for (DeviceQueue<P>* queue : watch.queues) {
    std::lock_guard lock(*queue);
    turn(*queue);
  }
  watch.settled = read;
  for (auto& device : watch.devices) device.settled.store(device.errors, std::memory_order_release);
}

template <class P>
std::uint64_t Core<P>::settled_errors(Device device) {
  std::uint64_t settled = 0;
  for (const auto& watch : lanes_.watches)
    if (watch->provider->kind() == device.kind && device.index < watch->devices.size())
      settled = watch->devices[device.index].settled.load(std::memory_order_acquire);
  // The running op may have begun before what is settled now was known.
  if (in_op() && thread_state().operation->kind == OpKind::body) {
    Op* const op = static_cast<Op*>(thread_state().operation);
    if (!op->is(kSeesPoison))
      if (ErrorRef error = start_error(op)) throw Error(std::move(error));
  }
  return settled;
}

/// Called when the device had more errors than it could keep. Each op that it has not confirmed may have had one of
/// those, and so may ops whose bodies are not over yet (DeviceQueue::heed).
template <class P>
void Core<P>::suspect(Watch<P>& watch, int device) {
  for (DeviceQueue<P>* queue : watch.queues) {
    if (queue->device != device) continue;
    std::lock_guard lock(*queue);
    queue->suspects.store(queue->issued.load(std::memory_order_relaxed), std::memory_order_relaxed);
    queue->doubts.store(
        queue->doubts.load(std::memory_order_relaxed) + (std::uint64_t{1} << DeviceQueue<P>::kLostErrorsShift),
        std::memory_order_relaxed);
  }
}

/// Called when the device will not answer any more: all ops that it has not confirmed fail with one root, and so do
/// later ones.
template <class P>
void Core<P>::lose(Watch<P>& watch, int device, const std::string& why) {
  watch.devices[static_cast<std::size_t>(device)].lost = true;
  const Operation* first = nullptr;
  std::string message;
  try {
    message = to_string(Device{watch.provider->kind(), static_cast<std::uint8_t>(device)}) + " was lost: " + why;
    std::size_t count = 0;
    for (DeviceQueue<P>* queue : watch.queues) {
      if (queue->device != device) continue;
      const std::uint64_t end = queue->issued.load(std::memory_order_acquire);
      for (std::uint64_t at = queue->finished.load(std::memory_order_relaxed) + 1; at <= end; ++at) {
        const Run* const run = queue->ring[at % DeviceQueue<P>::kRing];
        const Operation* op = run->is(kCaptured)
                                  ? static_cast<const Operation*>(static_cast<const Captured*>(run)->info)
                                  : static_cast<const Op*>(run);
        if (!first) first = op;
        if (++count > 8) continue;
        message += (count == 1 ? "; not confirmed, and suspect: '" : ", '") + std::string(op->name) + "' (" +
                   to_string(op->where) + ")";
      }
    }
    if (count > 8) message += " and " + std::to_string(count - 8) + " more";
  } catch (const std::bad_alloc&) {
  }
  ErrorRef root;
  {
    std::lock_guard lock(errors_.mutex);
    root = new_root(ErrorKind::failed, first, nullptr, message);
  }
  for (DeviceQueue<P>* queue : watch.queues) {
    if (queue->device != device) continue;
    queue->root = root;
    queue->lost.store(true, std::memory_order_release);
  }
}

/// Finishes the ops that the lane's stream is over with.
template <class P>
void Core<P>::confirm(Watch<P>& watch, DeviceQueue<P>& queue) {
  std::uint64_t at = queue.finished.load(std::memory_order_relaxed);
  const std::uint64_t issued = queue.issued.load(std::memory_order_acquire);
  const std::uint64_t end = queue.lost.load(std::memory_order_relaxed) ? issued : std::min(queue.reached, issued);
  if (at >= end) return;
  const AnySlot any(*this);
  Slot<P>& slot = any.slot();
  const Doing<P> doing(slot, Activity::running);
  while (at < end) {
    ReadyList<P> ready;
    const std::uint64_t until = std::min(end, at + DeviceQueue<P>::kBatch);
    if (order_) [[unlikely]]
      keep_places(queue, at + 1, until);
    while (at < until) {
      Run* const run = queue.ring[++at % DeviceQueue<P>::kRing];
      if (at + kLookAhead <= end) {
        const Run* const later = queue.ring[(at + kLookAhead) % DeviceQueue<P>::kRing];
        prefetch_to_write(later);
        prefetch_to_write(reinterpret_cast<const std::byte*>(later) + 192);
      }
      std::exception_ptr error;
      bool wrote_nothing = false;
      if (!watch.late.empty() || at <= queue.suspects.load(std::memory_order_relaxed) ||
          queue.lost.load(std::memory_order_relaxed)) [[unlikely]]
        error = late_error(watch, queue, run, at, wrote_nothing);
      if (run->is(kCaptured)) {
        captured_device_done(static_cast<Captured*>(run), std::move(error), wrote_nothing, ready);
      } else {
        device_done(static_cast<Op*>(run), std::move(error), wrote_nothing, slot, ready);
      }
    }
    queue.finished.store(at, std::memory_order_release);
    process(ready, nullptr, nullptr);
    release_held(queue);
  }
  flush(slot);
}

template <class P>
std::exception_ptr Core<P>::late_error(Watch<P>& watch, DeviceQueue<P>& queue, Run* run, std::uint64_t at,
                                       bool& wrote_nothing) {
  const DeviceOp id =
      device_op(run->is(kCaptured) ? static_cast<const Operation*>(static_cast<const Captured*>(run)->info)
                                   : static_cast<const Op*>(run));
  std::exception_ptr what;  // the error of the first report
  for (const LateError& late : watch.late) {
    if (what || !(late.op == id)) continue;
    wrote_nothing = late.wrote_nothing;
    what = late.what;
  }
  if (what) {
    std::erase_if(watch.late, [&](const LateError& late) { return late.op == id; });
    return what;
  }
  try {
    if (queue.lost.load(std::memory_order_relaxed)) throw Error(queue.root);
    if (at <= queue.suspects.load(std::memory_order_relaxed)) {
      throw std::runtime_error("its device reported more errors than it could keep, and this op may have had one");
    }
  } catch (...) {  // where there is no memory for the error, that is the error
    return std::current_exception();
  }
  return nullptr;
}

/// Called when the device is over with an op, so that nothing of the op is in use any more.
template <class P>
void Core<P>::device_done(Op* op, std::exception_ptr error, bool wrote_nothing, Slot<P>& slot, ReadyList<P>& ready) {
  end_closure(op, lanes_.all[op->lane]->queue->watch);
  if (error) {
    rare(op).device_error = std::move(error);
    op->troubled = true;
    if (wrote_nothing) op->wrote_nothing = true;
  }
  if (op->is(kHasRare)) take_times(rare(op), *lanes_.all[op->lane]);
  // Most often everything that the op waited for is over already.
  if (op->finish_pending.load(std::memory_order_acquire) != 1 &&
      op->finish_pending.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  finish_issued(op, slot, ready);
}

/// What the device says of the times of an op that it is over with.
template <class P>
void Core<P>::take_times(RareParts<P>& parts, const Lane<P>& lane) {
  if (const std::uint64_t span = std::exchange(parts.span, 0)) lane.queue->stream->take_times(span, parts.device_times);
}

/// Finishes a stream op for the host. A common one takes the same short path as a host op.
template <class P>
void Core<P>::finish_issued(Op* op, Slot<P>& slot, ReadyList<P>& ready) {
  if (op->troubled || op->skipped || (op->path & (kAsync | kHasRare | kManyTokens))) return finish(op, ready);
  for (std::uint32_t i = 0, n = op->inline_count(); i < n; ++i)
    if (op->inline_tokens[i].state.load(std::memory_order_relaxed) & kMarked) return finish(op, ready);
  finish_clean(op, slot, ready);
}

/// Lets ops of other kinds of devices go on that were held back for this lane.
template <class P>
void Core<P>::release_held(DeviceQueue<P>& queue) {
  Op* free = nullptr;
  {
    std::lock_guard lock(queue);
    Op* held = std::exchange(queue.held, nullptr);
    while (held) {
      Op* const op = std::exchange(held, static_cast<Op*>(static_cast<Run*>(held->next)));
      if (rare(op).held_for <= queue.finished.load(std::memory_order_relaxed)) {
        op->next = std::exchange(free, op);
      } else {
        op->next = static_cast<Op*>(queue.held);
        queue.held = op;
      }
    }
  }
  while (free) {
    Op* const op = std::exchange(free, static_cast<Op*>(static_cast<Run*>(free->next)));
    enqueue_all(*lanes_.all[op->lane], op->priority(), std::array<Run*, 1>{op}.data(), 1);
  }
}

}  // namespace sluice::detail
