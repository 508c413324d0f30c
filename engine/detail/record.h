// The protocol's data: tokens chained per variable, op records, variable nodes.
//
// Each access of an op is a token. A variable knows the last token (its tail); each token knows its successor. Rights
// travel down the chain as bits that are only ever set. So every transition is one atomic read-modify-write of the
// token's state word, and the thread that makes it does exactly what follows from it. The idea is that of Álvarez et
// al., "Advanced synchronization techniques for task-based runtime systems" (PPoPP 2021).
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
#include "sluice/engine/stream.h"

namespace sluice::detail {

/// State bits of a token. Rights have two strengths, because a stream op is *issued* before it is *complete*. With an
/// `issued` right another stream op can be issued (the device waits); with a `complete` right the host can touch the
/// value.
enum TokenState : std::uint32_t {
  kReadIssued = 1,     ///< all earlier writers are issued
  kWriteIssued = 2,    ///< everything earlier is issued
  kReadComplete = 4,   ///< all earlier writers are complete
  kWriteComplete = 8,  ///< everything earlier is complete
  kIssued = 16,        ///< this op is issued
  kNext = 32,          ///< `next` is set
  kDone = 64,          ///< this op is complete
  kMarked = 128,       ///< set together with kReadComplete: the variable is marked (VariableNode::mark)
  kLeavesMark = 256,   ///< set together with kDone of an exclusive token: the variable is marked from here on
  kNextAlone = 512,    ///< set together with kNext: the successor is exclusive
  kAllRights = kReadIssued | kWriteIssued | kReadComplete | kWriteComplete,
  kSettled = kAllRights | kNext,
  kFinished = kAllRights | kDone,
  kRetired = kFinished | kNext,
};

/// The rights that a token in state `s` passes to its successor.
constexpr std::uint32_t find_rights_passed(std::uint32_t s, bool exclusive) {
  static_assert(kIssued == kWriteIssued << 3 && kDone == kWriteComplete << 3);
  static_assert(kReadIssued == kWriteIssued >> 1 && kReadComplete == kWriteComplete >> 1);
  const std::uint32_t over = s >> 3;  // moves kIssued and kDone to the bits of the write rights that follow from them
  const std::uint32_t write = s & over & (kWriteIssued | kWriteComplete);
  // An exclusive successor has no use for a right to read alone: it gets that together with the right to write.
  const bool alone = exclusive || (s & kNextAlone);
  const std::uint32_t read = alone ? write >> 1 : s & (kReadIssued | kReadComplete);
  const bool marked = (read & kReadComplete) && (s & (exclusive ? kLeavesMark : kMarked));
  if (!(s & kNext)) return 0;
  return write | read | (marked ? kMarked : std::uint32_t{0});
}
/// The rights passed for every state, computed beforehand, because the end of an op asks for them four times.
inline constexpr auto kRightsPassed = [] {
  std::array<std::array<std::uint8_t, 2 * kNextAlone>, 2> found{};
  for (std::uint32_t s = 0; s < 2 * kNextAlone; ++s)
    for (const bool exclusive : {false, true})
      found[exclusive][s] = static_cast<std::uint8_t>(find_rights_passed(s, exclusive));
  return found;
}();
/// Takes the state and `exclusive` instead of the token, which another thread may retire once its state has changed.
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
  Plain<std::uint16_t> position = 0;  ///< where the push first names the variable
  Plain<AccessMode> mode = AccessMode::read;
  Plain<bool> heal = false;  ///< Context::heal was called
  Plain<Token*> next = nullptr;
  Plain<VariableNode<P>*> variable = nullptr;
  Plain<OpRecord<P>*> op = nullptr;

  bool exclusive() const { return mode != AccessMode::read; }
};

/// The lane of a stream op and its place there, in one number. A variable remembers its last uses in this form.
struct StreamUse {
  static constexpr int kLaneShift = 48;
  static constexpr std::uint64_t make(std::uint16_t lane, std::uint64_t place) {
    return std::uint64_t{lane} << kLaneShift | place;
  }
  static constexpr std::uint16_t lane(std::uint64_t use) { return static_cast<std::uint16_t>(use >> kLaneShift); }
  static constexpr std::uint64_t place(std::uint64_t use) { return use & ((std::uint64_t{1} << kLaneShift) - 1); }
};

/// A variable's last uses on streams, in one cache line; 0: none. The op that has the right to issue a write has them
/// to itself. Readers on several lanes are issued at once and share them.
template <class P>
struct alignas(64) StreamUses {
  using Place = typename P::template Atomic<std::uint64_t>;
  static constexpr std::size_t kReads = 6;
  static constexpr std::uint64_t kAnyLane = ~std::uint64_t{0};  ///< in the last place: reads of lanes that found none

  Place last_write{0};
  Place reads[kReads + 1] = {};  ///< the last read of each lane since the last write, without gaps

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
      // Within one lane a later op has a larger place.
      while (there < use && !reads[i].compare_exchange_weak(there, use, std::memory_order_relaxed)) {
      }
      return;
    }
    reads[kReads].store(kAnyLane, std::memory_order_relaxed);
  }
  void clear() { wrote(0); }
};

/// What is unusual about a variable's value. Ops learn of it from the rights that they get (kMarked), so a worker does
/// not touch the cache line that the pushers change.
enum class Mark : std::uint8_t {
  none,
  empty,   ///< no error, but there never was a value: a write that fails leaves the mark `torn`
  intact,  ///< poisoned; the old value is whole
  torn,    ///< poisoned; there is no good value
};
inline bool poisoned(Mark m) { return m >= Mark::intact; }

/// What code of the host knows to be passed: by lane, the place up to which. Only for records of accesses
/// (core_order.h).
using HostClock = std::vector<std::uint64_t>;
/// What the host's ops of a variable knew: those that wrote it, and those that have read it since.
struct HostUses {
  HostClock writes, reads;
};

/// The fields that few variables need. They stay with the node's place in memory, for the next variable there (Nodes).
template <class P>
struct VariableRare {
  StreamUses<P> uses;
  ErrorRef error;                  ///< guarded by the core's error mutex
  std::unique_ptr<HostUses> host;  ///< guarded by HostOrder::mutex
};

/// A variable. It takes one cache line, and an idle variable has nothing else.
template <class P>
struct alignas(64) VariableNode : VariableBase {
  typename P::template Atomic<Token<P>*> tail{nullptr};         ///< chain.h says which values mean idle
  typename P::template Atomic<Mark> mark{Mark::none};           ///< changed by the op that has the variable to itself
  typename P::template Atomic<VariableRare<P>*> rare{nullptr};  ///< made once (Core::rare_of); Nodes deletes it
  [[no_unique_address]] typename P::HandleOrder handles;
};

/// OpRecord::word: generation (32 bits), references (16), state (16). If references and state are zero the record is
/// free.
enum RecordState : std::uint64_t {
  kLive = 1,
  kRunning = 2,  ///< the op began while there was a Core::Outsider; without one only OpRecordHead::phase tells it
  kCancelled = 4,
  kWaited = 8,     ///< a ticket waiter is registered
  kInternal = 16,  ///< not an op that a program pushed: wait_all ignores it
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

/// A waiting thread, and the answer that it gets. Shared with the op, because a waiter with a time limit may leave
/// first.
template <class P>
struct WaitState {
  enum : std::uint32_t { waiting, done, left };
  typename P::template Atomic<std::uint32_t> state{waiting};
  typename P::Parker parker;
  typename P::template Plain<ErrorRef> error;  ///< written before `done`
  HostClock passed;                            ///< for a record of accesses: what the wait gives; as `error`

  // For a wait that may never end, guarded by the engine's blocked_mutex_ (core_circles.h).
  WaitState *next_blocked = nullptr, *before_blocked = nullptr;  ///< neighbours in the list of such waits
  WaitState* below = nullptr;       ///< another wait of the same thread, further down its stack (serial mode)
  std::uint64_t target = 0;         ///< id of the op that is waited for
  OpRecord<P>* inside = nullptr;    ///< the op in whose body the wait is; null: in none
  RareParts<P>* answers = nullptr;  ///< the rare parts of that op, if it has a Completion
  Slot<P>* slot = nullptr;
  bool ends = false;   ///< the wait has a time limit
  std::string circle;  ///< written before `left`: why the wait can never end
};

template <class P>
struct Lane;
template <class P>
struct ProgramState;

/// The fields that few ops need. For each of them there is a bit in the record, set by the thread that fills the field.
/// Without such a bit no thread touches these cache lines.
template <class P>
struct RareParts {
  // Written by the pusher. The times and the thread are set later, if `traced` is not 0.
  const Layer* layer = nullptr;  ///< of the push; valid with kHasLayer
  std::shared_ptr<CancelState> cancel;
  std::unique_ptr<Token<P>[]> tokens;  ///< used if the record has too few
  int token_count = 0;
  std::size_t bytes = 0;
  std::shared_ptr<WaitState<P>> waiter;
  std::shared_ptr<ProgramState<P>> program;  ///< what a replay replays
  std::atomic<Slot<P>*> borrower{nullptr};
  OpRecord<P>* taken_in = nullptr;  ///< for a borrow: the op in whose body it was taken; null: in none
  // For a borrow that is held: its place in the list of its thread. Guarded by blocked_mutex_.
  OpRecord<P>* held_op = nullptr;
  RareParts *next_held = nullptr, *before_held = nullptr;
  bool always = false;       ///< OnPoison::always; valid with kHasRare
  std::uint64_t looked = 0;  ///< the value of Core::looks_ when this borrow was last counted
  std::uint32_t traced = 0;  ///< the number of the trace that was on at the push; 0: none, and no times are taken
  std::int64_t pushed_at = 0, ready_at = 0, started_at = 0, ended_at = 0;
  std::uint32_t thread = 0;
  std::uint64_t span = 0;    ///< of a traced op on a stream: what Stream::begin_times returned
  DeviceTimes device_times;  ///< of a traced op; zeros where there are none
  // For captured stream and async ops: how many of body, device work and Completion are not over.
  typename P::template Atomic<std::int32_t> finish_pending{0};
  // Written by the thread that runs the op.
  template <class T>
  using Plain = typename P::template Plain<T>;
  Plain<ErrorRef> start_error;  ///< why the body was skipped or, of one that is always called, why it would be
  Plain<bool> skipped_for_input = false;  ///< a stream op was skipped for an input's error: other inputs may have more
  Plain<std::exception_ptr> thrown;       ///< by the body
  std::atomic<bool> returned{false};      ///< the body of an async op has returned: for core_explain.h
  // Written through the Completion.
  typename P::template Atomic<bool> told{
      false};                           ///< it was answered, not dropped: an exception of the body is too late
  Plain<bool> answered = false;         ///< it was answered with an error
  Plain<std::exception_ptr> exception;  ///< the exception of that answer
  ErrorKind exception_kind = ErrorKind::failed;
  Plain<bool> answered_wrote_nothing = false;  ///< that answer says so
  // From the device.
  Plain<std::exception_ptr> device_error;
  Plain<std::uint64_t> held_for =
      0;  ///< if a lane of another kind of device holds this stream op back: the place there
  // The error of the last op that failed in this record, if the engine had no memory to keep it elsewhere. Guarded by
  // the core's error mutex.
  ErrorRef failure;
  std::uint64_t failure_id = 0;

  bool failed() const { return thrown || answered || device_error; }
  /// The answer says that nothing was written, and nothing else says that something failed.
  bool answer_left_whole() const { return answered_wrote_nothing && !thrown && !device_error; }
  std::exception_ptr cause() const { return thrown ? thrown : exception ? exception : device_error; }
  void clear() {
    cancel.reset();
    bytes = 0;
    always = false;
    waiter.reset();
    program.reset();
    borrower.store(nullptr, std::memory_order_relaxed);
    returned.store(false, std::memory_order_relaxed);
    traced = 0;
    started_at = ended_at = 0;
    span = 0;
    device_times = {};
    start_error = nullptr;
    skipped_for_input = false;
    thrown = exception = device_error = nullptr;
    answered = answered_wrote_nothing = false;
    told.store(false, std::memory_order_relaxed);
    exception_kind = ErrorKind::failed;
  }
};

/// Bits of Runnable::path: all that differs from the common path. So one look at the first cache line tells.
enum OpPath : std::uint16_t {
  kOnStream = 1,      ///< started by `issued` rights
  kAsync = 2,         ///< the body takes a Completion
  kOwnScope = 4,      ///< its scope differs from that of a new thread of its lane, or there is a Core::order_
  kHeapClosure = 8,   ///< `storage` holds a pointer to the closure
  kHasRare = 16,      ///< the pusher filled some of the rare parts
  kSeesPoison = 32,   ///< OnPoison::run or always
  kNoBody = 64,       ///< OpKind is neither `body` nor `captured`
  kManyTokens = 128,  ///< the tokens are in the rare parts
  kCaptured = 256,    ///< a CapturedOp (captured.h), not an OpRecord
  kHasLayer = 512,    ///< RareParts::layer is set. Only traces and errors look there: such an op takes the common path
};
inline constexpr int kCountShift = 10, kPriorityShift = 13;  ///< above the bits: number of inline tokens, priority

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

/// How far an op is. The thread that runs the op writes it, with plain stores (Core::begin, finish, drop).
enum class Phase : std::uint8_t {
  queued,
  begun,
  issued,   ///< a stream op whose body has returned, and which the device has not confirmed yet
  passing,  ///< its tokens are leaving their variables; a variable may be deleted before its token says that it left
  ending,
};

/// The first of the record's four cache lines has all that a worker needs to run and finish an op of one variable,
/// except the closure, which is in the third. The fourth has name and push site.
template <class P>
struct OpRecordHead : Runnable<P> {
  static constexpr int kInlineTokens = 4;
  /// How many rights the op misses before it can start; an op with one token does not count them. In a stream op that
  /// is issued: the low bits of its place.
  typename P::template Atomic<std::int16_t> start_pending{0};
  typename P::template Atomic<Phase> phase{Phase::queued};
  Token<P> inline_tokens[kInlineTokens];
};

template <class P>
struct alignas(256) OpRecord : OpRecordHead<P>, Operation {
  /// For stream and async ops: how many things must still happen before it is over: complete rights, the end of its
  /// body or of its device work, the answer of its Completion.
  typename P::template Atomic<std::int16_t> finish_pending{0};
  std::uint32_t inline_count() const { return this->path >> kCountShift & 7u; }
  bool single() const { return inline_count() == 1; }
  void* closure() { return this->is(kHeapClosure) ? *reinterpret_cast<void**>(this->storage) : this->storage; }
};

/// The ops that a transition made ready to start, and those that it made ready to be finished, in the order found.
template <class P>
struct ReadyList {
  bool host_waits = false;  ///< an op of the host stands behind an issued one now: a point must be recorded soon
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
    /// `before`: the op before it in the list; null if it is the first.
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

/// The steps of the protocol that its model has too (tests/model/trace.pml).
enum class Step : std::uint8_t { link, ready, start, skip, done, fail };

/// Tells the step to a policy that listens. The explorer's does; in the product this is nothing.
template <class P>
void tell([[maybe_unused]] Step step, [[maybe_unused]] const OpRecord<P>* op) {
  if constexpr (requires { P::listener; }) {
    if (P::listener) P::listener(step, op);
  }
}

}  // namespace sluice::detail
