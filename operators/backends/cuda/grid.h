// How many threads run a kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

struct Grid {
  unsigned blocks = 1, threads = 1;
  std::size_t shared = 0;  ///< bytes of shared memory beside what the kernel declares
  bool barriers = false;   ///< the threads of a block wait for each other, or exchange values
};

/// The most blocks of a grid that grid_for() makes: enough to keep any card busy. Tests set less, because no result may
/// depend on it.
inline std::atomic<std::int64_t> most_blocks{1 << 14};

/// Blocks of 256 threads for `count` things, as many as keep a card busy: each thread takes several if there are more.
inline Grid grid_for(std::int64_t count) {
  constexpr std::int64_t kThreads = 256;
  const std::int64_t blocks = (count + kThreads - 1) / kThreads, most = most_blocks.load(std::memory_order_relaxed);
  return {.blocks = static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, most)),
          .threads = static_cast<unsigned>(kThreads)};
}

}  // namespace sluice::cuda
