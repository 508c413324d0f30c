// Slots and lanes: the data that a thread keeps for an engine, and that a lane keeps for its workers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/detail/device_queue.h"
#include "sluice/engine/detail/nodes.h"
#include "sluice/engine/detail/record.h"
#include "sluice/engine/trace.h"

namespace sluice::detail {

struct ProgramBase;

/// What a thread is doing. A thread that looks for a deadlock reads it.
enum class Activity : std::uint32_t {
  outside,  ///< it does nothing for this engine: it makes ops ready only by a Completion, a Borrow or a push
  running,  ///< it has taken an op from a queue, runs it, or hands on the ops that it made ready
  blocked,  ///< it is in a wait without a time limit, inside an op or while it has a Borrow
};

/// Ready ops that a worker took from its lane's queues in one go. The worker takes them out again in that order. Other
/// workers of the lane may take them too, so an op in a batch never waits for the body that the batch's owner runs.
template <class P>
class Batch {
 public:
  static constexpr std::uint32_t kSize = 32;

  /// Called before the first use.
  void begin_at(std::uint32_t n) {
    head_.store(n, std::memory_order_relaxed);
    tail_.store(n, std::memory_order_relaxed);
  }
  bool empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }
  /// Called by the owner, while the batch is empty.
  void put(Runnable<P>* const* ops, std::size_t count) {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < count; ++i) items_[(tail + i) % kSize].store(ops[i], std::memory_order_relaxed);
    tail_.store(tail + static_cast<std::uint32_t>(count), std::memory_order_release);
  }
  /// Called by the owner. Returns false if the batch is full.
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
      // It is read before it is taken. If another thread was quicker, the owner may have put another op there; but then
      // head has moved, and the exchange fails.
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

  // Used by the owner only. Records are given out in the order of their addresses, so that neighbours are pushed one
  // after another. A record that is still in use is passed over (core_records.h).
  OpRecord<P>* cursor = nullptr;
  OpRecord<P>* block_end = nullptr;
  std::vector<OpRecord<P>*> blocks;
  std::size_t block = 0;              ///< the block that the cursor is in
  std::size_t full_blocks = 0;        ///< full blocks found since the cursor last was at the first block
  std::int64_t credits = 0;           ///< ops that the thread may push before it asks for more
  std::int64_t returned_credits = 0;  ///< credits of ops that it finished, not yet given back
  bool far_behind = false;            ///< many ops were in flight when it last gave credits back
  int ran = 0;                        ///< ops that one call of execute() ran besides the first
  std::uint32_t last_in_chains = 0;   ///< ops run in a row which no op stood behind when they began
  bool batch_shared = false;          ///< other workers know its batch; if not, it takes ops one by one
  int batch_priority = 0;             ///< priority of the ops in its batch
  std::uint32_t number = 0;
  std::shared_ptr<WaitState<P>> cap_wait;  ///< where it parks at the caps
  typename Nodes<P>::Cache nodes;          ///< free places for its next variables
  // Guarded by the engine's blocked_mutex_.
  WaitState<P>* blocked_wait = nullptr;  ///< the innermost of its waits that may never end
  RareParts<P>* held = nullptr;          ///< a list of the Borrows that it took and that are not released
  /// Its place in each ready queue it ever used, by lane and priority.
  std::vector<std::unique_ptr<typename Queue::Producer>> producers;
  // Written by the owner, read by all threads.
  alignas(64) typename P::template Atomic<Activity> activity{Activity::outside};
  /// Twice the pushes begun here; odd between the first link and the last hand-over of a push or a wait.
  typename P::template Atomic<std::uint64_t> pushes{0};
  /// Twice the ops completed here; odd until the word of the last one says so too.
  typename P::template Atomic<std::uint64_t> completed{0};
  typename P::template Atomic<bool> taken{false};
  /// Variables made by the thread, less those that it destroyed (Core::count_variable).
  std::atomic<std::int64_t> variables{0};
  std::atomic<bool> counting{false};  ///< it is about to change `variables`
  // Written by all threads.
  alignas(64) Batch<P> batch;
  typename P::template Atomic<std::int32_t> borrows{0};  ///< Borrows that this thread took and that are not released
  /// What its thread waits for, for core_explain.h: the id of an op or of the wait's own record, and the id of the op
  /// in whose body it waits; 0 for none.
  std::atomic<std::uint64_t> waits_for{0}, waits_in{0};
  std::mutex trace_mutex;
  std::vector<TraceEvent> trace;
};

/// While it lives, the thread's activity is `now`; then it is again what it was before.
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

/// A place where ops run. A lane with work starts as many drainers as its width, and one more for each of its ops that
/// is blocked in a wait.
template <class P>
struct Lane {
  Lane(Device d, LaneKind k, int w, std::uint16_t i) : device(d), kind(k), width(w), index(i), workers(w) {}

  const Device device;
  const LaneKind kind;
  const int width;
  const std::uint16_t index;              ///< the lane's number in its engine
  std::uint16_t path = 0;                 ///< the bits of Runnable::path that all its ops have
  Stream* stream = nullptr;               ///< the stream of `queue`
  std::unique_ptr<DeviceQueue<P>> queue;  ///< for a stream lane; else null
  typename P::Workers workers;
  std::array<typename Slot<P>::Queue, kPriorities> queues;
  typename P::template Atomic<std::uint32_t> priorities{0};  ///< which queues were ever used
  typename P::template Atomic<bool> overflowed{false};       ///< a queue had no memory, so ops are in `overflow`
  typename P::Mutex overflow_mutex;
  typename ReadyList<P>::template List<Runnable<P>> overflow;
  /// The workers that are draining, so that others find their batches. A worker that finds no place here takes ops one
  /// by one.
  std::array<typename P::template Atomic<Slot<P>*>, 64> drainers{};
  typename P::template Atomic<std::uint32_t> drainers_end{0};       ///< how many of these places were ever used
  alignas(64) typename P::template Atomic<std::int32_t> active{0};  ///< drainers that were started, or are about to be
  typename P::template Atomic<std::int32_t> blocked{0};             ///< how many of them are blocked in a wait
  typename P::template Atomic<std::int32_t> failed_starts{0};       ///< starts that failed since a drainer last began
  /// How many active drainers are looking for work. It changes all the time, so it is read only where there is room for
  /// one more drainer.
  alignas(64) typename P::template Atomic<std::int32_t> spinning{0};
  /// About how many ops waiting threads ran. It changes while they run ops.
  alignas(64) typename P::template Atomic<std::uint32_t> helped{0};
  typename P::template Atomic<bool> gathering{false};  ///< a drainer lets the pushers get ahead (Core::gather)

  std::int32_t limit() const { return width + blocked.load(std::memory_order_seq_cst); }
};

/// The engine that the calling thread used last, and its slot there. It has no destructor, so it can be read until the
/// thread ends.
struct SlotHint {
  std::uint64_t uid = 0;
  void* slot = nullptr;
};
inline constinit thread_local SlotHint slot_hint{};

/// What the calling thread is running.
struct ThreadState {
  CoreBase* core = nullptr;  ///< the engine whose body this thread runs; null outside of bodies
  Operation* operation = nullptr;
  void* lane = nullptr;
  int width = 1;  ///< how many threads a loop inside the body may use
  /// For a thread that is not one of the lane's and runs its ops: the arena that it must join for a loop
  /// (Workers::arena).
  void* joins = nullptr;
  ProgramBase* recorder = nullptr;  ///< during a capture: where the thread's pushes go
  const void* confirms = nullptr;   ///< while it destroys a closure: the Watch for which it confirms ops
  /// current_scope() gave out a reference to the thread's scope since the scope was last set to the lane's own.
  bool scope_touched = false;
};
inline constinit thread_local ThreadState calling_thread{};
inline ThreadState& thread_state() { return calling_thread; }

}  // namespace sluice::detail
