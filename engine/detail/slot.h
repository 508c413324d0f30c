// Slots and lanes: what a thread keeps for an engine, and what a lane keeps for its workers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/trace.h"

namespace sluice::detail {

/// What a thread is doing, as a thread that looks for a deadlock sees it.
enum class Activity : std::uint32_t {
  outside,  ///< nothing of this engine's: it can free no op but by a Completion, a Borrow or a push
  running,  ///< has an op: taken from a queue, in its body, or handing on what it freed
  blocked,  ///< in a wait without a time limit, of an op or of a thread with a Borrow
};

/// One thread's part of an engine: its free op records, its share of the caps, its counts. Threads come and go; slots
/// stay.
template <class P>
struct alignas(64) Slot {
  // The owner's own.
  OpRecord<P>* free = nullptr;
  std::int64_t credits = 0;           ///< ops it may push before it asks for more
  std::int64_t returned_credits = 0;  ///< of ops it finished
  Slot* return_owner = nullptr;       ///< records on their way back to another slot, in one batch
  OpRecord<P>* return_head = nullptr;
  OpRecord<P>* return_tail = nullptr;
  int return_count = 0;
  std::uint32_t number = 0;
  std::shared_ptr<WaitState<P>> cap_wait;  ///< where it parks at the caps
  // Written by the owner, read by all.
  alignas(64) typename P::template Atomic<Activity> activity{Activity::outside};
  /// Twice the pushes begun here; odd between the first link and the last hand-over of a push or a wait.
  typename P::template Atomic<std::uint64_t> pushes{0};
  typename P::template Atomic<std::uint64_t> completed{0};
  typename P::template Atomic<bool> taken{false};
  // Written by all.
  alignas(64) typename P::template Atomic<OpRecord<P>*> returned{nullptr};
  typename P::template Atomic<std::int32_t> borrows{0};  ///< Borrows that this thread took and nobody has released
  std::mutex trace_mutex;
  std::vector<TraceEvent> trace;
};

/// Where ops run. A lane with work starts drainers, up to its width, and one more for each op blocked in a wait.
template <class P>
struct Lane {
  Lane(Device d, LaneKind k, int w) : device(d), kind(k), width(w), workers(w) {}

  const Device device;
  const LaneKind kind;
  const int width;
  std::unique_ptr<Stream> stream;  ///< of a stream lane
  typename P::Workers workers;
  std::array<typename P::template Queue<OpRecord<P>*>, kPriorities> queues;
  typename P::template Atomic<std::uint32_t> priorities{0};  ///< which queues were ever used
  typename P::template Atomic<bool> overflowed{false};       ///< a queue had no memory: ops went to `overflow`
  typename P::Mutex overflow_mutex;
  ReadyList<P> overflow;
  alignas(64) typename P::template Atomic<std::int64_t> queued{0};
  alignas(64) typename P::template Atomic<std::int32_t> active{0};  ///< drainers, started or about to
  typename P::template Atomic<std::int32_t> blocked{0};             ///< of those, in a wait
  typename P::template Atomic<std::int32_t> spinning{0};            ///< of those, looking for work

  std::int32_t limit() const { return width + blocked.load(std::memory_order_seq_cst); }
};

/// The engine that the calling thread used last, and its slot there. Needs no destructor, so it can be read to the end
/// of the thread.
struct SlotHint {
  std::uint64_t uid = 0;
  void* slot = nullptr;
};
inline constinit thread_local SlotHint slot_hint{};

/// What the calling thread is in the middle of.
struct ThreadState {
  CoreBase* core = nullptr;  ///< the engine whose body this thread runs; null outside of bodies
  Operation* operation = nullptr;
  void* lane = nullptr;
  int width = 1;  ///< threads for loops inside the body
};
ThreadState& thread_state();

}  // namespace sluice::detail
