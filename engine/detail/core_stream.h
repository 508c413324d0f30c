// Core<P>, ops on streams: their waits on the device, their issue, and the points by which the device says how far it
// is (core_watch.h reads that).
//
// A stream's progress is one number, the place of an op in its lane. One point is recorded for many ops: after
// DeviceQueue::batch, when the lane has nothing more to issue, when its thread blocks, and when a point is needed by
// an op of the host that stands behind an issued one, by another stream, by a waiting thread, or by a pusher at the
// cap. An event that is recorded late also stands for later ops; that is allowed, and counted (DeviceQueue::covered).
#pragma once

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// The rare part of a variable. Makes it the first time, and may throw bad_alloc then.
template <class P>
VariableRare<P>& Core<P>::rare_of(Node& node) {
  VariableRare<P>* there = node.rare.load(std::memory_order_acquire);
  if (there) return *there;
  auto made = std::make_unique<VariableRare<P>>();
  if (node.rare.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
    return *made.release();
  return *there;
}

/// Makes room for the places that stream ops leave with their variables; most variables never need that.
template <class P>
void Core<P>::prepare_stream_uses(Op* op) {
  for (Token<P>& t : tokens(op)) rare_of(*t.variable);
}

/// Records a point for everything that the lane has issued, if there is none yet. `own`: the calling thread is the
/// lane's. Returns false if there was no memory for it.
template <class P>
bool Core<P>::point(DeviceQueue<P>& queue, bool own) {
  bool told = true;
  {
    std::lock_guard lock(queue);
    const std::uint64_t at = queue.issued.load(std::memory_order_relaxed);
    if (queue.pointed.load(std::memory_order_relaxed) == at) return true;
    told = queue.stream->record(at);
    if (told) {
      queue.pointed.store(at, std::memory_order_release);
      queue.points.store(queue.points.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }
  if (told && !(own && confirm_own(queue))) wake_watch(queue);
  return told;
}

/// Records points for everything that is issued, because a thread waits and it is not known for which op.
template <class P>
void Core<P>::point_all() {
  for (const auto& lane : lanes_.all)
    if (lane->queue &&
        lane->queue->pointed.load(std::memory_order_relaxed) != lane->queue->issued.load(std::memory_order_relaxed))
      point(*lane->queue);
}

/// Makes the lane's stream wait for a place in another lane. Returns false where the one cannot wait for the other.
template <class P>
bool Core<P>::stream_waits(DeviceQueue<P>& queue, DeviceQueue<P>& other, std::size_t lane, std::uint64_t at) {
  Atomic<std::uint64_t>& waited = queue.waited[lane];
  if (waited.load(std::memory_order_acquire) >= at) return true;
  if (other.pointed.load(std::memory_order_acquire) < at && !point(other)) throw std::bad_alloc();
  if (queue.awaits_known) {
    std::lock_guard lock(queue);
    if (queue.awaits.size() >= DeviceQueue<P>::kBatch) queue.forget_awaits();  // where no watcher looks
    queue.awaits.push_back({queue.issued.load(std::memory_order_relaxed) + 1, &other, at});
  }
  if (!queue.stream->wait({other.stream.get(), at})) return false;
  waited.store(at, std::memory_order_release);
  queue.waits.fetch_add(1, std::memory_order_relaxed);
  queue.covered.fetch_add(other.pointed.load(std::memory_order_relaxed) - at, std::memory_order_relaxed);
  return true;
}

/// Makes the lane's stream wait for a use on another. Returns false if that is of another kind of device; then the op
/// is held back until the use is over there, and the caller must not touch it any more. What a captured op needs is
/// over before it begins, even if the other lane has not counted it as finished yet.
template <class P>
bool Core<P>::wait_on_device(Run* run, DeviceQueue<P>& queue, std::uint64_t use) {
  if (use == 0) return true;
  const bool over = run->is(kCaptured);
  if (use == StreamUses<P>::kAnyLane) {
    for (const auto& lane : lanes_.all) {
      if (!lane->queue || lane->queue.get() == &queue) continue;
      std::uint64_t at = 0;
      if (over) {
        at = lane->queue->stream->reached();
      } else {  // a reader passes its right on before its place is counted, both under the lock
        std::lock_guard lock(*lane->queue);
        at = lane->queue->issued.load(std::memory_order_relaxed);
      }
      if (at && !wait_on_device(run, queue, StreamUse::make(lane->index, at))) return false;
    }
    return true;
  }
  if (StreamUse::lane(use) == run->lane) return true;
  DeviceQueue<P>& other = *lanes_.all[StreamUse::lane(use)]->queue;
  const std::uint64_t at = StreamUse::place(use);
  if (over || other.finished.load(std::memory_order_acquire) >= at) {
    if (queue.observer) [[unlikely]] {
      const StreamEvent passed{other.stream.get(), at};
      queue.observer->stream_after(*queue.stream, {&passed, 1});
    }
    return true;
  }
  if (stream_waits(queue, other, StreamUse::lane(use), at)) return true;
  std::lock_guard lock(other);
  if (other.finished.load(std::memory_order_acquire) >= at) return true;
  Op* const op = static_cast<Op*>(run);
  op->phase.store(Phase::queued, std::memory_order_relaxed);
  rare(op).held_for = at;
  op->next = std::exchange(other.held, op);
  return false;
}

/// Makes all the waits that an op needs before it is issued. Returns false if the op is held back. Throws what the
/// streams throw.
template <class P>
template <class Accesses>
bool Core<P>::wait_on_devices(Run* op, DeviceQueue<P>& queue, const Accesses& accesses) {
  if (order_) order_after_host(queue, accesses);
  for (const auto& a : accesses) {
    const StreamUses<P>& uses = a.variable->rare.load(std::memory_order_relaxed)->uses;
    if (!wait_on_device(op, queue, uses.last_write.load(std::memory_order_relaxed))) return false;
    if (a.mode == AccessMode::read) continue;
    for (const auto& r : uses.reads) {
      const std::uint64_t use = r.load(std::memory_order_relaxed);
      if (use != 0 && !wait_on_device(op, queue, use)) return false;
    }
  }
  return true;
}

/// The lane with the stream; null where there is none.
template <class P>
Lane<P>* Core<P>::lane_with(const Stream* stream) const {
  for (const auto& lane : lanes_.all)
    if (lane->queue && lane->stream == stream) return lane.get();
  return nullptr;
}

/// Whichever op takes the next place: a point with that number is recorded behind what is issued now.
template <class P>
StreamEvent Core<P>::issued_point(const Operation* operation, const Stream* stream) const {
  if (!stream) return {};
  const Lane<P>& lane =
      operation->kind == OpKind::captured ? *lane_with(stream) : *lanes_.all[static_cast<const Op*>(operation)->lane];
  return {lane.stream, lane.queue->issued.load(std::memory_order_acquire) + 1};
}

template <class P>
bool Core<P>::wait_on_device(const Stream* stream, const StreamEvent& event) {
  if (!event.stream || event.stream == stream) return true;
  const Lane<P>*const here = lane_with(stream), *const there = lane_with(event.stream);
  if (!here || !there || &here->queue->provider != &there->queue->provider) return false;
  if (there->queue->issued.load(std::memory_order_acquire) < event.point) return false;
  return stream_waits(*here->queue, *there->queue, there->index, event.point);
}

/// If the lane has as much in flight as its device takes, its thread waits here until half of that is over. Returns
/// false if it must not wait any more: the engine stops with cancellation, and the device does not answer.
template <class P>
bool Core<P>::make_room(DeviceQueue<P>& queue) {
  const std::uint64_t at = queue.issued.load(std::memory_order_relaxed);
  if (at - queue.finished.load(std::memory_order_acquire) < queue.most) return true;
  const std::uint64_t enough = at - queue.most / 2;
  point(queue, true);
  while (queue.finished.load(std::memory_order_acquire) < enough) {
    if (cancel_all_.load(std::memory_order_relaxed)) return false;
    confirm_own(queue);
    tend_watches();
    queue.stream->await(enough, P::kTick);
    for (int i = 0; i < P::kWaitSpins && queue.finished.load(std::memory_order_acquire) < enough; ++i) P::pause();
  }
  return true;
}

template <class P>
void Core<P>::await_issued(DeviceKind kind) {
  for (const auto& watch : lanes_.watches) {
    if (watch->provider->kind() != kind) continue;
    for (DeviceQueue<P>* queue : watch->queues) {
      const std::uint64_t at = queue->issued.load(std::memory_order_acquire);
      while (queue->finished.load(std::memory_order_acquire) < at && !cancel_all_.load(std::memory_order_relaxed)) {
        point(*queue);
        confirm_own(*queue);
        tend_watches();
        queue->stream->await(at, P::kTick);
        for (int i = 0; i < P::kWaitSpins && queue->finished.load(std::memory_order_acquire) < at; ++i) P::pause();
      }
    }
  }
  if (order_) tell_passed(false);
}

/// Takes the lane's lock and returns its next place. There is room, except where many substitutes issue beside threads
/// that had asked for room before their bodies waited.
template <class P>
[[gnu::always_inline]] inline std::uint64_t Core<P>::lock_place(DeviceQueue<P>& queue) {
  for (;;) {
    queue.lock();
    const std::uint64_t at = queue.issued.load(std::memory_order_relaxed) + 1;
    if (at - queue.finished.load(std::memory_order_acquire) <= DeviceQueue<P>::kRing) [[likely]]
      return at;
    queue.unlock();
    point(queue);
    tend_watches();
    queue.stream->await(at - DeviceQueue<P>::kRing, P::kTick);
    P::pause();  // the point may be passed, and its op not finished yet
  }
}

/// The op takes the next place in its lane. Ops that may follow it there and on other streams can then go on. The
/// watcher may finish the op from here on. `doubts`: the value of the queue's `doubts` before the op's inputs were
/// looked at.
template <class P>
[[gnu::always_inline]] inline void Core<P>::place(Op* op, DeviceQueue<P>& queue, std::uint64_t doubts,
                                                  ReadyList<P>& ready) {
  const std::uint64_t at = lock_place(queue);
  const std::uint64_t use = StreamUse::make(op->lane, at);
  op->start_pending.store(static_cast<std::int16_t>(at), std::memory_order_relaxed);
  op->phase.store(Phase::issued, std::memory_order_relaxed);
  // The results of a body that threw are for no op: ops behind it must see its error first. The same where the op's
  // inputs may carry an error that it did not see.
  const bool alone = queue.heed(doubts, at) || op->troubled;
  std::uint64_t retired = 0;  // the device's part of finish_pending keeps the op, so none of these is the last
  for (Token<P>& t : tokens(op)) {
    StreamUses<P>& uses = t.variable->rare.load(std::memory_order_relaxed)->uses;
    t.exclusive() ? uses.wrote(use) : uses.read(use);
    if (!alone) advance(t, kIssued, ready, nullptr, retired);
  }
  queue.ring[at % DeviceQueue<P>::kRing] = op;
  queue.issued.store(at, std::memory_order_release);
  const bool due = alone || at - queue.pointed.load(std::memory_order_relaxed) >= queue.batch;
  queue.unlock();
  if (due || ready.host_waits) {
    ready.host_waits = false;
    point(queue, true);
  }
}

/// Lets the body of a stream op that has begun issue its work. `op->skipped` is decided already.
template <class P>
void Core<P>::issue(Op* op, std::uint64_t doubts, ReadyList<P>& ready) {
  Lane<P>& lane = *lanes_.all[op->lane];
  DeviceQueue<P>& queue = *lane.queue;
  const auto refuse = [&](std::exception_ptr why) {
    rare(op).thrown = std::move(why);
    op->wrote_nothing = op->troubled = true;
  };
  bool run = !op->skipped;
  if (run) try {
      if (!make_room(queue)) {
        refuse(std::make_exception_ptr(std::runtime_error("the device has no room for it")));
      } else if (queue.lost.load(std::memory_order_acquire)) {
        refuse(std::make_exception_ptr(Error(queue.root)));
      } else if (!wait_on_devices(op, queue, tokens(op))) {
        return;
      }
    } catch (...) {
      refuse(std::current_exception());  // without its waits it must not run
    }
  run = run && !op->troubled;
  if (run) {
    const bool timed = op->is(kHasRare) && rare(op).traced;
    if (timed) rare(op).span = queue.stream->begin_times();
    std::exception_ptr thrown;
    {
      const IssueRange<P> range(queue, op->name);
      thrown = run_anywhere(op, lane);
    }
    if (timed) {
      if (const std::uint64_t span = rare(op).span) queue.stream->end_times(span);
      rare(op).ended_at = P::now();
    }
    if (thrown) {
      rare(op).thrown = std::move(thrown);
      op->troubled = true;
    }
    return place(op, queue, doubts, ready);
  }
  if (order_) pass_order(op);
  end_closure(op);                                    // before any op behind it goes on, which must see its error
  const std::int16_t parts = op->is(kAsync) ? 2 : 1;  // there will be no device work, nor a Completion
  if (op->finish_pending.fetch_sub(parts, std::memory_order_acq_rel) == parts) finish(op, ready);
}

/// The same for an op on the common path. Returns false if it did nothing, and issue() is to do it.
template <class P>
bool Core<P>::issue_plain(Op* op, Lane<P>& lane, ReadyList<P>& ready) {
  DeviceQueue<P>& queue = *lane.queue;
  const std::uint64_t doubts = queue.doubts.load(std::memory_order_acquire);
  const std::uint32_t n = op->inline_count();
  for (std::uint32_t i = 0; i < n; ++i) {
    const Token<P>& t = op->inline_tokens[i];
    if (poisoned(t.variable->mark.load(std::memory_order_relaxed))) return false;
    const StreamUses<P>& uses = t.variable->rare.load(std::memory_order_relaxed)->uses;
    const std::uint64_t use = uses.last_write.load(std::memory_order_relaxed);
    if (use != 0 && StreamUse::lane(use) != op->lane) return false;
    if (!t.exclusive()) continue;
    for (const auto& r : uses.reads) {
      const std::uint64_t read = r.load(std::memory_order_relaxed);
      if (read == 0) break;
      if (StreamUse::lane(read) != op->lane) return false;
    }
  }
  if (queue.issued.load(std::memory_order_relaxed) - queue.finished.load(std::memory_order_acquire) >= queue.most ||
      queue.lost.load(std::memory_order_acquire) || queue.ranges)
    return false;
  tell<P>(Step::start, op);
  op->troubled = !call_body(op, lane);
  leave_body(lane);
  place(op, queue, doubts, ready);
  return true;
}

}  // namespace sluice::detail
