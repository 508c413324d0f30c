// parallel_for on oneTBB, inside the arena of the lane that runs the op.
#include "sluice/engine/loops.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "sluice/engine/detail/policy.h"
#include "sluice/engine/detail/slot.h"
#include "sluice/engine/detail/thread_object.h"
#include "sluice/engine/detail/tsan.h"
#include "sluice/engine/scope.h"

namespace sluice {

namespace {

/// A thread that helps with a loop is inside the op too: its scope and its place travel with it.
class Helper {
 public:
  Helper(const detail::ThreadState& state, const ScopeState& scope) : helps_(&detail::thread_state() != &state) {
    if (!helps_) return;
    state_ = std::exchange(detail::thread_state(), state);
    scope_ = std::exchange(current_scope(), scope);
    current_scope().records = nullptr;  // it belongs to the caller's thread
  }
  ~Helper() {
    if (!helps_) return;
    current_scope() = std::move(scope_);
    detail::thread_state() = state_;
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

 private:
  const bool helps_;
  detail::ThreadState state_;
  ScopeState scope_;
};

struct Loop {
  const std::int64_t n, grain;
  const FunctionRef<void(std::int64_t, std::int64_t)> body;
  const detail::ThreadState& state;  ///< of the op
  const ScopeState scope;  ///< a copy: while helpers read it, the caller's own part of the loop may change the thread's
  std::atomic<bool> thrown{false};  ///< by the body
};

std::int64_t chunk_count(std::int64_t n, std::int64_t grain) { return n / grain + (n % grain != 0); }

/// Of chunk i; the sums would overflow where n or grain is near the largest number.
void call_chunk(const FunctionRef<void(std::int64_t, std::int64_t)>& body, std::int64_t n, std::int64_t grain,
                std::int64_t i) {
  const std::int64_t begin = i * grain;
  body(begin, n - begin > grain ? begin + grain : n);
}

void run_chunks(Loop* loop, std::int64_t first, std::int64_t last) {
  SLUICE_TAKES_OVER(loop);
  struct Done {  // when the helper has gone, and whether or not the body throws
    [[maybe_unused]] Loop* loop;
    ~Done() { SLUICE_HANDS_OVER(const_cast<std::int64_t*>(&loop->n)); }
  } const done{loop};
  const Helper helper(loop->state, loop->scope);
  try {
    for (std::int64_t i = first; i < last; ++i) call_chunk(loop->body, loop->n, loop->grain, i);
  } catch (...) {
    loop->thrown.store(true, std::memory_order_relaxed);
    throw;
  }
}

/// Isolated: while this thread waits for the last chunk it must not pick up another op of its lane.
void run_on_arena(Loop& loop) {
  SLUICE_HANDS_OVER(&loop);
  struct Finish {
    [[maybe_unused]] Loop& loop;
    ~Finish() { SLUICE_TAKES_OVER(const_cast<std::int64_t*>(&loop.n)); }
  } const finish{loop};
  const std::int64_t chunks = chunk_count(loop.n, loop.grain);
  try {
    tbb::this_task_arena::isolate([&] {
      tbb::parallel_for(
          tbb::blocked_range<std::int64_t>(0, chunks, 1),
          [at = &loop](const tbb::blocked_range<std::int64_t>& range)
              SLUICE_UNSEEN { run_chunks(at, range.begin(), range.end()); },
          tbb::simple_partitioner());
    });
  } catch (...) {
    // oneTBB's own exception, perhaps for a thread that it could not make: then the arena hangs where it next counts
    // its threads.
    if (!loop.thrown.load(std::memory_order_relaxed)) detail::SystemPolicy::tbb_failed();
    throw;
  }
}

/// For a thread that is none of the lane's own: it becomes one for the loop. False where another is there.
bool run_joined(Loop& loop, detail::ThreadState& state) {
  struct Joined {
    detail::ThreadState& state;
    void* const arena = std::exchange(state.joins, nullptr);
    ~Joined() { state.joins = arena; }
  } const joined{state};
  return detail::SystemPolicy::Workers::run_inside(
      joined.arena, [](void* at) { run_on_arena(*static_cast<Loop*>(at)); }, &loop);
}

}  // namespace

int parallel_width() {
  const detail::ThreadState& state = detail::thread_state();
  return state.operation && !detail::SystemPolicy::plain_threads.load(std::memory_order_relaxed)
             ? std::max(1, state.width)
             : 1;
}

void parallel_for(std::int64_t n, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t chunks = chunk_count(n, grain);
  detail::ThreadState& state = detail::thread_state();
  if (chunks > 1 && parallel_width() > 1) {
    Loop loop{n, grain, body, state, detail::ThreadObject<ScopeState>::get(), {}};
    if (!state.joins) return run_on_arena(loop);
    if (run_joined(loop, state)) return;
  }
  for (std::int64_t i = 0; i < chunks; ++i) call_chunk(body, n, grain, i);
}

}  // namespace sluice
