// parallel_for on oneTBB, inside the arena of the lane that runs the op.
#include "sluice/engine/loops.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

#include "sluice/engine/detail/slot.h"

namespace sluice {

int parallel_width() {
  const detail::ThreadState& state = detail::thread_state();
  return state.core ? std::max(1, state.width) : tbb::this_task_arena::max_concurrency();
}

void parallel_for(std::int64_t n, std::int64_t grain, FunctionRef<void(std::int64_t, std::int64_t)> body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t chunks = (n + grain - 1) / grain;
  if (chunks == 1 || parallel_width() == 1) {
    for (std::int64_t i = 0; i < chunks; ++i) body(i * grain, std::min(n, (i + 1) * grain));
    return;
  }
  // Isolated: while this thread waits for the last chunk it must not pick up another op of its lane.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, chunks, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          for (std::int64_t i = range.begin(); i < range.end(); ++i) body(i * grain, std::min(n, (i + 1) * grain));
        },
        tbb::simple_partitioner());
  });
}

}  // namespace sluice
