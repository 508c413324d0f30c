// Captured operations, of which a Program consists. Each has a list of its successors, so a replay needs no tokens and
// no variables, only a count for each operation that has several predecessors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/program.h"

namespace sluice::detail {

template <class P>
struct CapturedInfo;

/// The sum, or the largest number if it would overflow.
inline std::size_t add_bytes(std::size_t a, std::size_t b) { return a + std::min(b, ~a); }

/// One cache line, with all that is needed to run it on the common path, except the closure.
template <class P>
struct alignas(64) CapturedOp : Runnable<P> {
  typename P::template Atomic<std::int32_t> start_pending{0};  ///< how many predecessors are not over
  ProgramState<P>* program = nullptr;
  CapturedInfo<P>* info = nullptr;
  std::uint32_t first_successor = 0, successors = 0;  ///< in ProgramState::successors
  std::int32_t predecessors = 0;                      ///< start_pending is set to it again when the op begins
  void* closure() const;
};

template <class P>
struct CapturedAccess {
  VariableNode<P>* variable;
  AccessMode mode;
  bool heal;  ///< Context::heal was called in this run
};

/// The other fields. The closure is in Operation::storage, as it is in an op record.
template <class P>
struct CapturedInfo : Operation {
  ProgramState<P>* program = nullptr;
  CapturedOp<P>* op = nullptr;
  const ClosureTable* table = nullptr;  ///< null: its push was abandoned
  std::uint16_t path = 0, lane = 0;
  std::vector<CapturedAccess<P>> accesses;  ///< sorted by variable, each once; in the order of the push for errors
  std::vector<std::uint16_t> positions;     ///< where the push names each access
  std::shared_ptr<CancelState> cancel;      ///< this and the next: from the scope of its push
  const Layer* layer = nullptr;
  std::unique_ptr<RareParts<P>> rare;  ///< for stream and async ops
  bool always = false;                 ///< OnPoison::always
  ErrorRef skip_reason;                ///< in this run, of an op that is always called
  bool is_cancelled() const;
};

/// Bits of ProgramState::flags, for one run. If none is set, bodies are called and nothing else is done.
enum ReplayFlags : std::uint32_t {
  kCareful = 1,  ///< a variable is marked, or an op failed: each op looks at its variables
  kWatched = 2,  ///< the replay was cancelled, or can be by its scope
  kTimed = 4,    ///< traced
};

template <class P>
struct ProgramState final : ProgramBase {
  ~ProgramState() override {
    for (CapturedInfo<P>& info : infos) {
      void* const closure = info.path & kHeapClosure ? *reinterpret_cast<void**>(info.storage) : info.storage;
      if (info.table && info.table->destroy) info.table->destroy(closure);
      if (info.path & kHeapClosure) ::operator delete (closure, std::align_val_t{64});
    }
  }
  std::size_t size() const override { return count; }

  std::shared_ptr<CoreBase> core;
  const char* name = "program";
  std::deque<CapturedInfo<P>> infos;
  // Made by end_capture.
  std::size_t count = 0;
  std::unique_ptr<CapturedOp<P>[]> ops;
  std::vector<std::uint32_t> successors;
  struct Roots {
    std::uint16_t lane;
    int priority;
    std::vector<Runnable<P>*> ops;
  };
  std::vector<Roots> roots;
  std::int32_t leaves = 0;
  std::size_t bytes = 0;
  std::vector<Variable>
      variables;                 ///< keeps them alive; the first is the program's own, so that it runs once at a time
  std::vector<Access> accesses;  ///< the accesses of a replay as one op
  // For the present run.
  alignas(64) typename P::template Atomic<std::uint32_t> flags{0};
  template <class T>
  using Plain = typename P::template Plain<T>;
  Plain<OpRecord<P>*> running = nullptr;
  std::shared_ptr<CancelState> cancel;
  Plain<ErrorRef> skip;         ///< if set, all ops are skipped for this error
  Plain<ErrorRef> first_error;  ///< in the order of the pushes; under the core's error mutex, as the next
  Plain<std::size_t> first_failed = 0;
  Plain<std::int64_t> pushed_at = 0;
  Plain<std::uint32_t> traced = 0;
  alignas(64) typename P::template Atomic<std::int32_t> leaves_left{0};
};

template <class P>
void* CapturedOp<P>::closure() const {
  return this->is(kHeapClosure) ? *reinterpret_cast<void**>(info->storage) : info->storage;
}

template <class P>
bool CapturedInfo<P>::is_cancelled() const {
  return (cancel && cancel->cancelled.load(std::memory_order_relaxed)) ||
         (program->cancel && program->cancel->cancelled.load(std::memory_order_relaxed));
}

}  // namespace sluice::detail
