// The protocol's data: tokens chained per variable, op records, variable nodes.
//
// Each access of an op is a token. A variable knows the last token (its tail); each token knows its successor. Rights
// travel down the chain as bits that only ever get set, so every transition is one atomic read-modify-write on the
// token's state word, and whoever makes a transition carries out exactly what follows from it. The idea is that of
// Álvarez et al., "Advanced synchronization techniques for task-based runtime systems" (PPoPP 2021).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "sluice/engine/operation.h"

namespace sluice::detail {

/// State bits of a token. Two strengths, because a stream op is *issued* before it is *complete*: `issued` rights let
/// another stream op be issued (the device does the waiting), `complete` rights let the host touch the value.
enum TokenState : std::uint32_t {
  kReadIssued = 1,     ///< all earlier writers are issued
  kWriteIssued = 2,    ///< everything earlier is issued
  kReadComplete = 4,   ///< all earlier writers are complete
  kWriteComplete = 8,  ///< everything earlier is complete
  kIssued = 16,        ///< this op is issued
  kNext = 32,          ///< `next` is set
  kDone = 64,          ///< this op is complete
  kMarked = 128,       ///< comes with kReadComplete: the variable is marked (VariableNode::mark)
  kLeavesMark = 256,   ///< comes with kDone of an exclusive token: it is marked from here on
  kNextAlone = 512,    ///< comes with kNext: that one is exclusive
  kAllRights = kReadIssued | kWriteIssued | kReadComplete | kWriteComplete,
  kSettled = kAllRights | kNext,
  kFinished = kAllRights | kDone,
  kRetired = kFinished | kNext,
};

/// The rights that a token in state `s` passes to its successor.
constexpr std::uint32_t find_rights_passed(std::uint32_t s, bool exclusive) {
  static_assert(kIssued == kWriteIssued << 3 && kDone == kWriteComplete << 3);
  static_assert(kReadIssued == kWriteIssued >> 1 && kReadComplete == kWriteComplete >> 1);
  const std::uint32_t over = s >> 3;  // issued, complete: where the rights to write are that come of it
  const std::uint32_t write = s & over & (kWriteIssued | kWriteComplete);
  // To read alone is nothing to an exclusive one: that comes with the right to write.
  const bool alone = exclusive || (s & kNextAlone);
  const std::uint32_t read = alone ? write >> 1 : s & (kReadIssued | kReadComplete);
  const bool marked = (read & kReadComplete) && (s & (exclusive ? kLeavesMark : kMarked));
  if (!(s & kNext)) return 0;
  return write | read | (marked ? kMarked : std::uint32_t{0});
}
/// As found for each state: an op that ends asks four times.
inline constexpr auto kRightsPassed = [] {
  std::array<std::array<std::uint8_t, 2 * kNextAlone>, 2> found{};
  for (std::uint32_t s = 0; s < 2 * kNextAlone; ++s)
    for (const bool exclusive : {false, true})
      found[exclusive][s] = static_cast<std::uint8_t>(find_rights_passed(s, exclusive));
  return found;
}();
/// All that it needs to know of the two, because others may retire them once the state has changed.
inline std::uint32_t rights_passed(std::uint32_t s, bool exclusive) { return kRightsPassed[exclusive][s]; }

template <class P>
struct OpRecord;
template <class P>
struct VariableNode;

template <class P>
struct Token {
  template <class T>
  using Plain = typename P::template Plain<T>;
  typename P::template Atomic<std::uint32_t> state{0};
  Plain<std::uint16_t> position = 0;  ///< of its first mention in the push
  Plain<AccessMode> mode = AccessMode::read;
  Plain<bool> heal = false;  ///< Context::heal was called
  Plain<Token*> next = nullptr;
  Plain<VariableNode<P>*> variable = nullptr;
  Plain<OpRecord<P>*> op = nullptr;

  bool exclusive() const { return mode != AccessMode::read; }
};

/// Where in its lane a stream op stands: what a variable remembers of its last uses.
struct StreamUse {
  static constexpr int kLaneShift = 48;
  static constexpr std::uint64_t make(std::uint16_t lane, std::uint64_t place) {
    return std::uint64_t{lane} << kLaneShift | place;
  }
  static constexpr std::uint16_t lane(std::uint64_t use) { return static_cast<std::uint16_t>(use >> kLaneShift); }
  static constexpr std::uint64_t place(std::uint64_t use) { return use & ((std::uint64_t{1} << kLaneShift) - 1); }
};

/// A variable's last uses on streams, one cache line; 0: none. Who has the right to issue a write has them alone;
/// readers of several lanes are issued at once and share them.
template <class P>
struct alignas(64) StreamUses {
  using Place = typename P::template Atomic<std::uint64_t>;
  static constexpr std::size_t kReads = 6;
  static constexpr std::uint64_t kAnyLane = ~std::uint64_t{0};  ///< in the last read: lanes that found no place

  Place last_write{0};
  Place reads[kReads + 1] = {};  ///< since the last write, one for each lane, from the first on

  void wrote(std::uint64_t use) {
    last_write.store(use, std::memory_order_relaxed);
    for (Place& r : reads) {
      if (r.load(std::memory_order_relaxed) == 0) break;
      r.store(0, std::memory_order_relaxed);
    }
  }
  void read(std::uint64_t use) {
    for (std::size_t i = 0; i < kReads; ++i) {
      std::uint64_t there = reads[i].load(std::memory_order_relaxed);
      if (there == 0 && reads[i].compare_exchange_strong(there, use, std::memory_order_relaxed)) return;
      if (StreamUse::lane(there) != StreamUse::lane(use)) continue;
      // Of one lane a later op stands further behind.
      while (there < use && !reads[i].compare_exchange_weak(there, use, std::memory_order_relaxed)) {
      }
      return;
    }
    reads[kReads].store(kAnyLane, std::memory_order_relaxed);
  }
  void clear() { wrote(0); }
};

/// What is unusual about a variable's value. Ops learn of it from the rights that they are given (kMarked), so that a
/// worker does not touch the cache line that the pushers change.
enum class Mark : std::uint8_t {
  none,
  empty,   ///< no error, but there never was a value: a failed write leaves it torn
  intact,  ///< poisoned, the old value is whole
  torn,    ///< poisoned, and no value
};
inline bool poisoned(Mark m) { return m >= Mark::intact; }

/// What few variables have. Stays with the node's place for the next variable there (Nodes).
template <class P>
struct VariableRare {
  StreamUses<P> uses;
  ErrorRef error;  ///< under the core's error mutex
};

/// One cache line: an idle variable costs no more.
template <class P>
struct alignas(64) VariableNode : VariableBase {
  typename P::template Atomic<Token<P>*> tail{nullptr};         ///< chain.h says what stands for idle
  typename P::template Atomic<Mark> mark{Mark::none};           ///< changed by the op that has the variable alone
  typename P::template Atomic<VariableRare<P>*> rare{nullptr};  ///< made once (Core::rare_of), the nodes' to delete
  std::shared_ptr<CoreBase> keep;                               ///< a handle may outlive its Engine
  [[no_unique_address]] typename P::HandleOrder handles;
};

/// OpRecord::word: generation (32 bits), references (16), state (16). All below the generation zero: a free record.
enum RecordState : std::uint64_t {
  kLive = 1,
  kRunning = 2,  ///< it began while there was a Core::Outsider; else OpRecordHead::phase alone says so
  kCancelled = 4,
  kWaited = 8,     ///< a ticket waiter is registered
  kInternal = 16,  ///< not a pushed op: wait_all passes over it
  kReserved = 32,  ///< taken by a pusher, not yet pushed
  kStateBits = 0xffff,
  kOneReference = 1u << 16,
  kInUse = 0xffffffff,
};
inline constexpr int kGenerationShift = 32;
inline constexpr std::size_t kMaxAccesses = 32'000;

template <class P>
struct Slot;
template <class P>
struct RareParts;

/// A thread that waits, and what it is told. Shared with the op, because a waiter with a time limit may leave first.
template <class P>
struct WaitState {
  enum : std::uint32_t { waiting, done, left };
  typename P::template Atomic<std::uint32_t> state{waiting};
  typename P::Parker parker;
  typename P::template Plain<ErrorRef> error;  ///< written before `done`

  // Of a thread that is blocked and may be for ever, under the engine's blocked_mutex_ (core_circles.h).
  WaitState *next_blocked = nullptr, *before_blocked = nullptr;  ///< in the list of those
  WaitState* below = nullptr;       ///< in which its thread is blocked too, further down its stack (serial mode)
  std::uint64_t target = 0;         ///< id of the op that it waits for
  OpRecord<P>* inside = nullptr;    ///< the op in whose body it is; null: in none
  RareParts<P>* answers = nullptr;  ///< of that op, if it has a Completion
  Slot<P>* slot = nullptr;
  bool ends = false;   ///< when its time is over
  std::string circle;  ///< written before `left`: why it can never end
};

template <class P>
struct Lane;
template <class P>
struct ProgramState;

/// What few ops have. Each part has its note in the record, set by the thread that fills it: where there is no note,
/// nobody touches these cache lines.
template <class P>
struct RareParts {
  // The pusher's; the times and the thread are set later, where `traced` says so.
  std::shared_ptr<const void> attributes;
  std::shared_ptr<CancelState> cancel;
  std::unique_ptr<Token<P>[]> tokens;  ///< where the record has too few
  int token_count = 0;
  std::size_t bytes = 0;
  std::shared_ptr<WaitState<P>> waiter;
  std::shared_ptr<ProgramState<P>> program;  ///< of a replay
  std::atomic<Slot<P>*> borrower{nullptr};
  OpRecord<P>* taken_in = nullptr;  ///< of a borrow: the op in whose body it was taken; null: in none
  // Of a borrow that is held, under blocked_mutex_: in its thread's list.
  OpRecord<P>* held_op = nullptr;
  RareParts *next_held = nullptr, *before_held = nullptr;
  std::uint64_t looked = 0;  ///< Core::looks_, when it was last counted
  std::uint32_t traced = 0;  ///< number of the trace that it was pushed in, and times are taken; 0: none
  std::int64_t pushed_at = 0, ready_at = 0, started_at = 0, ended_at = 0;
  std::uint32_t thread = 0;
  // Of captured stream and async ops: their bodies, their device work, their Completions.
  typename P::template Atomic<std::int32_t> finish_pending{0};
  // The running thread's.
  template <class T>
  using Plain = typename P::template Plain<T>;
  Plain<ErrorRef> start_error;            ///< why the body was skipped
  Plain<bool> skipped_for_input = false;  ///< of a stream op: for an input's error, so that there may be more
  Plain<std::exception_ptr> thrown;       ///< by the body
  std::atomic<bool> returned{false};      ///< the body did, of an async op: for those who look (core_explain.h)
  // The Completion's.
  typename P::template Atomic<bool> told{false};  ///< it was answered, not dropped: what the body throws then is late
  Plain<bool> answered = false;                   ///< with an error
  Plain<std::exception_ptr> exception;            ///< that it was failed with
  ErrorKind exception_kind = ErrorKind::failed;
  // The device's.
  Plain<std::exception_ptr> device_error;
  Plain<std::uint64_t> held_for = 0;  ///< of a stream op that a lane of another kind holds back: that lane's place
  // Of the last op that failed here and that the engine had no memory to remember; under the core's error mutex.
  ErrorRef failure;
  std::uint64_t failure_id = 0;

  bool failed() const { return thrown || answered || device_error; }
  std::exception_ptr cause() const { return thrown ? thrown : exception ? exception : device_error; }
  void clear() {
    attributes.reset();
    cancel.reset();
    bytes = 0;
    waiter.reset();
    program.reset();
    borrower.store(nullptr, std::memory_order_relaxed);
    returned.store(false, std::memory_order_relaxed);
    traced = 0;
    started_at = ended_at = 0;
    start_error = nullptr;
    skipped_for_input = false;
    thrown = exception = device_error = nullptr;
    answered = false;
    told.store(false, std::memory_order_relaxed);
    exception_kind = ErrorKind::failed;
  }
};

/// Runnable::path: what is not so on the common path, so that one look at the first cache line tells.
enum OpPath : std::uint16_t {
  kOnStream = 1,      ///< started by `issued` rights
  kAsync = 2,         ///< the body takes a Completion
  kOwnScope = 4,      ///< its scope is not that of a fresh thread of its lane
  kHeapClosure = 8,   ///< `storage` holds a pointer to the closure
  kHasRare = 16,      ///< the pusher filled some of the rare parts
  kSeesPoison = 32,   ///< OnPoison::run
  kNoBody = 64,       ///< OpKind is neither `body` nor `captured`
  kManyTokens = 128,  ///< in the rare parts
  kCaptured = 256,    ///< a CapturedOp (program.h), not an OpRecord
};
inline constexpr int kCountShift = 10, kPriorityShift = 13;  ///< above the bits: inline tokens, priority

/// What a lane's queue holds.
template <class P>
struct Runnable {
  template <class T>
  using Plain = typename P::template Plain<T>;
  typename P::template Atomic<std::uint64_t> word{0};  ///< generation, references, RecordState
  Plain<const ClosureTable*> table = nullptr;
  Plain<Runnable*> next = nullptr;  ///< in a ready list
  Plain<std::uint16_t> lane = 0;
  Plain<std::uint16_t> path = 0;

  bool is(OpPath bit) const { return path & bit; }
  int priority() const { return path >> kPriorityShift; }
};

/// How far an op is. Written without locked instructions by the thread that runs it (Core::begin, finish, drop).
enum class Phase : std::uint8_t {
  queued,
  begun,
  issued,   ///< of a stream op: the body returned, and the device has yet to say that it is over
  passing,  ///< its tokens leave their variables, which may go before the tokens say so
  ending,
};

/// Four cache lines. The first has all that a worker needs to run and finish an op of one variable, but for the closure
/// in the third; what names the op is in the fourth.
template <class P>
struct OpRecordHead : Runnable<P> {
  static constexpr int kInlineTokens = 4;
  /// Rights missing before it may start; one: not counted. Of a stream op that is issued: the low bits of its place.
  typename P::template Atomic<std::int16_t> start_pending{0};
  typename P::template Atomic<Phase> phase{Phase::queued};
  Token<P> inline_tokens[kInlineTokens];
};

template <class P>
struct alignas(256) OpRecord : OpRecordHead<P>, Operation {
  /// Of stream and async ops: complete rights still missing, its body or its device work, its Completion.
  typename P::template Atomic<std::int16_t> finish_pending{0};
  std::uint32_t inline_count() const { return this->path >> kCountShift & 7u; }
  bool single() const { return inline_count() == 1; }
  void* closure() { return this->is(kHeapClosure) ? *reinterpret_cast<void**>(this->storage) : this->storage; }
};

/// Ops that a transition made ready to start, and those that it made ready to be finished, in the order found.
template <class P>
struct ReadyList {
  bool host_waits = false;  ///< an op of the host came to stand behind an issued one: its device is to tell soon
  template <class T>
  struct List {
    T* head = nullptr;
    T* tail = nullptr;
    void push(T* op) {
      op->next = nullptr;
      if (tail) {
        tail->next = op;
      } else {
        head = op;
      }
      tail = op;
    }
    /// `before`: the one before it; null if it is the first.
    void remove(T* before, T* op) {
      Runnable<P>* const after = op->next;
      if (before) {
        before->next = after;
      } else {
        head = static_cast<T*>(after);
      }
      if (tail == op) tail = before;
    }
    T* pop() {
      T* op = head;
      if (op) {
        Runnable<P>* const after = op->next;
        head = static_cast<T*>(after);
        if (!head) tail = nullptr;
      }
      return op;
    }
  };
  bool empty() const { return !start.head && !finish.head; }
  List<Runnable<P>> start;
  List<OpRecord<P>> finish;
};

/// Steps that the model of the protocol knows (tests/model/trace.pml).
enum class Step : std::uint8_t { link, ready, start, skip, done, fail };

/// Tells a policy that listens, the explorer's; in the product there is nothing of it.
template <class P>
void tell([[maybe_unused]] Step step, [[maybe_unused]] const OpRecord<P>* op) {
  if constexpr (requires { P::listener; }) {
    if (P::listener) P::listener(step, op);
  }
}

}  // namespace sluice::detail
