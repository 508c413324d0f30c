// Slots and lanes: what a thread keeps for an engine, and what a lane keeps for its workers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/detail/device_queue.h"
#include "sluice/engine/detail/record.h"
#include "sluice/engine/trace.h"

namespace sluice::detail {

/// What a thread is doing, as a thread that looks for a deadlock sees it.
enum class Activity : std::uint32_t {
  outside,  ///< nothing of this engine's: it can free no op but by a Completion, a Borrow or a push
  running,  ///< has an op: taken from a queue, in its body, or handing on what it freed
  blocked,  ///< in a wait without a time limit, of an op or of a thread with a Borrow
};

/// Ready ops that a worker took from its lane's queues in one go. It takes them out again in that order, and so may
/// other workers of the lane: an op in it never waits for the body that its worker is in.
template <class P>
class Batch {
 public:
  static constexpr std::uint32_t kSize = 32;

  /// Before its first use.
  void begin_at(std::uint32_t n) {
    head_.store(n, std::memory_order_relaxed);
    tail_.store(n, std::memory_order_relaxed);
  }
  bool empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }
  /// The owner's, while empty.
  void put(Runnable<P>* const* ops, std::size_t count) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < count; ++i) items_[(tail + i) % kSize].store(ops[i], std::memory_order_relaxed);
    tail_.store(tail + static_cast<std::uint32_t>(count), std::memory_order_release);
  }
  /// The owner's. False where it is full.
  bool append(Runnable<P>* op) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == kSize) return false;
    items_[tail % kSize].store(op, std::memory_order_relaxed);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  Runnable<P>* take() {
    std::uint32_t head = head_.load(std::memory_order_acquire);
    while (head != tail_.load(std::memory_order_acquire)) {
      // Read before it is ours: where another was quicker the owner may have put another op there, and head has moved.
      Runnable<P>* const op = items_[head % kSize].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return op;
    }
    return nullptr;
  }

 private:
  typename P::template Atomic<std::uint32_t> head_{0};
  typename P::template Atomic<std::uint32_t> tail_{0};
  std::array<typename P::template Atomic<Runnable<P>*>, kSize> items_{};
};

/// One thread's part of an engine: its op records, its share of the caps, its counts. Threads come and go; slots stay.
template <class P>
struct alignas(64) Slot {
  using Queue = typename P::template Queue<Runnable<P>*>;

  // The owner's own. Records are given out in the order of their addresses, so that neighbours are pushed one after
  // another; a record that is still in use is passed over (core_records.h).
  OpRecord<P>* cursor = nullptr;
  OpRecord<P>* block_end = nullptr;
  std::vector<OpRecord<P>*> blocks;
  std::size_t block = 0;              ///< the cursor's
  std::size_t full_blocks = 0;        ///< found in this lap
  std::int64_t credits = 0;           ///< ops it may push before it asks for more
  std::int64_t returned_credits = 0;  ///< of ops it finished
  bool far_behind = false;            ///< many ops are in flight, as of the last time that it returned credits
  int ran = 0;                        ///< ops that one call of execute() ran besides the first
  std::uint32_t last_in_chains = 0;   ///< ops run in a row that nothing stood behind when they began
  bool batch_shared = false;          ///< others know of its batch: without that it takes ops one by one
  int batch_priority = 0;             ///< of what is in its batch
  std::uint32_t number = 0;
  std::shared_ptr<WaitState<P>> cap_wait;  ///< where it parks at the caps
  // Under the engine's blocked_mutex_.
  WaitState<P>* blocked_wait = nullptr;  ///< the innermost wait that it is blocked in and that may never end
  RareParts<P>* held = nullptr;          ///< the Borrows that it took and nobody has released, a list
  /// Its place in each ready queue it ever used, by lane and priority.
  std::vector<std::unique_ptr<typename Queue::Producer>> producers;
  // Written by the owner, read by all.
  alignas(64) typename P::template Atomic<Activity> activity{Activity::outside};
  /// Twice the pushes begun here; odd between the first link and the last hand-over of a push or a wait.
  typename P::template Atomic<std::uint64_t> pushes{0};
  /// Twice the ops completed here; odd until the word of the last one says so too.
  typename P::template Atomic<std::uint64_t> completed{0};
  typename P::template Atomic<bool> taken{false};
  // Written by all.
  alignas(64) Batch<P> batch;
  typename P::template Atomic<std::int32_t> borrows{0};  ///< Borrows that this thread took and nobody has released
  /// What its thread is blocked for, for those who look (core_explain.h): the id of an op or of a wait's own record,
  /// and of the op in whose body that is; 0 for none.
  std::atomic<std::uint64_t> waits_for{0}, waits_in{0};
  std::mutex trace_mutex;
  std::vector<TraceEvent> trace;
};

/// What a thread is doing from here on, for those who look whether any moves; then again what it was.
template <class P>
class Doing {
 public:
  Doing(Slot<P>& slot, Activity now) : slot_(slot), before_(slot.activity.load(std::memory_order_relaxed)) {
    slot_.activity.store(now, std::memory_order_relaxed);
  }
  ~Doing() { slot_.activity.store(before_, std::memory_order_release); }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Slot<P>& slot_;
  const Activity before_;
};

/// Where ops run. A lane with work starts drainers, up to its width, and one more for each op blocked in a wait.
template <class P>
struct Lane {
  Lane(Device d, LaneKind k, int w, std::uint16_t i) : device(d), kind(k), width(w), index(i), workers(w) {}

  const Device device;
  const LaneKind kind;
  const int width;
  const std::uint16_t index;              ///< among the engine's lanes
  Stream* stream = nullptr;               ///< the queue's
  std::unique_ptr<DeviceQueue<P>> queue;  ///< of a stream lane
  typename P::Workers workers;
  std::array<typename Slot<P>::Queue, kPriorities> queues;
  typename P::template Atomic<std::uint32_t> priorities{0};  ///< which queues were ever used
  typename P::template Atomic<bool> overflowed{false};       ///< a queue had no memory: ops went to `overflow`
  typename P::Mutex overflow_mutex;
  typename ReadyList<P>::template List<Runnable<P>> overflow;
  /// The workers that are draining, for their batches. One that finds no place here takes ops one by one.
  std::array<typename P::template Atomic<Slot<P>*>, 64> drainers{};
  typename P::template Atomic<std::uint32_t> drainers_end{0};       ///< places ever used
  alignas(64) typename P::template Atomic<std::int32_t> active{0};  ///< drainers, started or about to
  typename P::template Atomic<std::int32_t> blocked{0};             ///< of those, in a wait
  typename P::template Atomic<std::int32_t> failed_starts{0};       ///< since a drainer last began
  /// Of the active ones, looking for work. Changes all the time, and is read where there is room for one more only.
  alignas(64) typename P::template Atomic<std::int32_t> spinning{0};
  /// Ops that waiters ran, about: it changes while they do.
  alignas(64) typename P::template Atomic<std::uint32_t> helped{0};
  typename P::template Atomic<bool> gathering{false};  ///< a drainer lets the pushers get ahead (Core::gather)

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
  /// Of a thread outside of the lane's own that runs its ops: what it must join for a loop (Workers::arena).
  void* joins = nullptr;
  /// Somebody had a reference to the thread's scope (current_scope) since it was last set to the lane's own.
  bool scope_touched = false;
};
inline constinit thread_local ThreadState calling_thread{};
inline ThreadState& thread_state() { return calling_thread; }

}  // namespace sluice::detail
