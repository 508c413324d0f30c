// Looking at all elements for one that an operator cannot take. The error names the first, on any number of threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"

namespace sluice::cpu_backend {

/// Calls is_bad(i) for 0 <= i < n, each once, on several threads. Returns the least i for which it is true, or n.
template <class IsBad>
std::int64_t first_bad(std::int64_t n, const IsBad& is_bad) {
  std::atomic<std::int64_t> first{n};
  parallel_for(n, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t bad = n;
    for (std::int64_t i = end - 1; i >= begin; --i) {
      if (is_bad(i)) bad = i;
    }
    std::int64_t seen = first.load(std::memory_order_relaxed);
    while (bad < seen && !first.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
    }
  });
  return first.load(std::memory_order_relaxed);
}

}  // namespace sluice::cpu_backend
