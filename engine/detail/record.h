// The protocol's data: tokens chained per variable, op records, variable nodes.
//
// Each access of an op is a token. A variable knows the last token (its tail); each token knows its successor. Rights
// travel down the chain as bits that only ever get set, so every transition is one atomic read-modify-write on the
// token's state word, and whoever makes a transition carries out exactly what follows from it. The idea is that of
// Álvarez et al., "Advanced synchronization techniques for task-based runtime systems" (PPoPP 2021).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/operation.h"
#include "sluice/engine/stream.h"

namespace sluice::detail {

/// State bits of a token. Two strengths, because a stream op is *issued* before it is *complete*: `issued` rights let
/// another stream op be issued (the device does the waiting), `complete` rights let the host touch the value.
enum TokenState : std::uint32_t {
  kReadIssued = 1,     ///< all earlier writers are issued
  kWriteIssued = 2,    ///< everything earlier is issued
  kReadComplete = 4,   ///< all earlier writers are complete
  kWriteComplete = 8,  ///< everything earlier is complete
  kIssued = 16,        ///< this op is issued
  kDone = 32,          ///< this op is complete
  kNext = 64,          ///< `next` is set
  kAllRights = kReadIssued | kWriteIssued | kReadComplete | kWriteComplete,
  kFinished = kAllRights | kDone,
  kRetired = kFinished | kNext,
};

/// The rights that a token in state `s` passes to its successor. All that it needs to know of the token, because others
/// may retire the token once its state has changed.
inline std::uint32_t rights_passed(std::uint32_t s, bool exclusive) {
  if (!(s & kNext)) return 0;
  std::uint32_t rights = 0;
  const bool issued = (s & kWriteIssued) && (s & kIssued), complete = (s & kWriteComplete) && (s & kDone);
  if (exclusive ? issued : (s & kReadIssued) != 0) rights |= kReadIssued;
  if (issued) rights |= kWriteIssued;
  if (exclusive ? complete : (s & kReadComplete) != 0) rights |= kReadComplete;
  if (complete) rights |= kWriteComplete;
  return rights;
}

template <class P>
struct OpRecord;
template <class P>
struct VariableNode;

template <class P>
struct Token {
  typename P::template Atomic<std::uint32_t> state{0};
  std::uint16_t position = 0;  ///< of its first mention in the push
  AccessMode mode = AccessMode::read;
  bool heal = false;  ///< Context::heal was called
  Token* next = nullptr;
  VariableNode<P>* variable = nullptr;
  OpRecord<P>* op = nullptr;

  bool exclusive() const { return mode != AccessMode::read; }
};

/// Which stream events a variable's last uses end with; only variables that stream ops touch have one.
struct StreamUses {
  std::mutex mutex;
  StreamEvent last_write;
  std::vector<StreamEvent> reads;  ///< since the last write; one for each stream
};

enum class Poison : std::uint8_t { none, intact, torn };

template <class P>
struct alignas(64) VariableNode : VariableBase {
  typename P::template Atomic<Token<P>*> tail{nullptr};
  typename P::template Atomic<Poison> poison{Poison::none};
  bool has_value = true;  ///< changed by the op that has the variable alone
  ErrorRef error;         ///< under the core's error mutex
  std::unique_ptr<StreamUses> uses;
  std::shared_ptr<CoreBase> keep;  ///< a handle may outlive its Engine
};

/// What an op record is for. Internal kinds never enter a lane: whoever finds them ready finishes them.
enum class OpKind : std::uint8_t { body, wait, borrow, recover };

/// Bits of OpRecord::word, below the generation.
enum RecordState : std::uint64_t {
  kLive = 1,
  kRunning = 2,
  kCancelled = 4,
  kWaited = 8,     ///< a ticket waiter is registered
  kInternal = 16,  ///< not a pushed op: wait_all passes over it
  kStateBits = 0xff,
};
inline constexpr int kGenerationShift = 8;

/// A thread that waits, and what it is told. Shared with the op, because a waiter with a time limit may leave first.
template <class P>
struct WaitState {
  enum : std::uint32_t { waiting, done, left };
  typename P::template Atomic<std::uint32_t> state{waiting};
  typename P::Parker parker;
  ErrorRef error;  ///< written before `done`
};

template <class P>
struct Slot;
template <class P>
struct Lane;

/// What few ops have. Each part has its note in the record, set by the thread that fills it: where there is no note,
/// nobody touches these cache lines.
template <class P>
struct RareParts {
  // The pusher's; the times and the thread are set later, where `traced` says so.
  std::shared_ptr<const void> attributes;
  std::size_t bytes = 0;
  std::shared_ptr<WaitState<P>> waiter;
  std::int64_t pushed_at = 0, ready_at = 0, started_at = 0, ended_at = 0;
  std::uint32_t thread = 0;
  // The running thread's.
  ErrorRef start_error;       ///< why the body was skipped
  std::exception_ptr thrown;  ///< by the body
  // The Completion's.
  std::exception_ptr exception;  ///< that it was failed with
  ErrorKind exception_kind = ErrorKind::failed;
  // The device's.
  std::exception_ptr device_error;
};

template <class P>
struct alignas(64) OpRecord : Operation {
  static constexpr int kInlineTokens = 4;

  typename P::template Atomic<std::uint64_t> word{0};  ///< generation and RecordState
  typename P::template Atomic<std::int32_t> start_pending{
      0};  ///< rights still missing before it may start, + the pusher
  typename P::template Atomic<std::int32_t> finish_pending{0};
  typename P::template Atomic<std::int32_t> refs{0};  ///< unretired tokens, + the op itself
  OpKind kind = OpKind::body;
  bool on_stream = false;  ///< started by `issued` rights
  bool finishing = false;  ///< in a ready list because it is to be finished, not started
  bool skipped = false;    ///< the body was not run
  bool async = false;      ///< the body takes a Completion
  bool traced = false;     ///< times are taken
  // Which parts of `rare` are filled. One byte for each thread that may.
  bool has_rare = false, failed = false, answered = false, device_failed = false;
  std::uint32_t index = 0;
  int token_count = 0;
  Lane<P>* lane = nullptr;
  Slot<P>* owner = nullptr;  ///< whose free list it returns to
  OpRecord* next = nullptr;  ///< in a ready list or a free list
  Token<P>* tokens = nullptr;
  Token<P> inline_tokens[kInlineTokens];
  RareParts<P>* rare = nullptr;  ///< beside the records, which stay together
};

/// Ops that a transition made ready (or to be finished), in the order in which it found them.
template <class P>
struct ReadyList {
  OpRecord<P>* head = nullptr;
  OpRecord<P>* tail = nullptr;
  void push(OpRecord<P>* op) {
    op->next = nullptr;
    (tail ? tail->next : head) = op;
    tail = op;
  }
  OpRecord<P>* pop() {
    OpRecord<P>* op = head;
    if (op) {
      head = op->next;
      if (!head) tail = nullptr;
    }
    return op;
  }
};

}  // namespace sluice::detail
