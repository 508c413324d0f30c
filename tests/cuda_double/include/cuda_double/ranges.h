// What stands for NVTX: ranges are counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuda_double {

/// Ranges of the calling thread; they nest. A pop without a push is reported.
void push_range(const char* name);
void pop_range();

/// What was pushed and popped by all threads since the last call; names in the order in which they were pushed.
struct Ranges {
  std::vector<std::string> names;
  std::uint64_t pops = 0;
};
Ranges take_ranges();

}  // namespace cuda_double
