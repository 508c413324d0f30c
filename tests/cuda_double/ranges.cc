#include "cuda_double/ranges.h"

#include <mutex>
#include <utility>

#include "double.h"

namespace cuda_double {
namespace {

std::mutex mutex;
Ranges counted;  ///< with the mutex
thread_local int depth = 0;

}  // namespace

void push_range(const char* name) {
  ++depth;
  std::lock_guard lock(mutex);
  counted.names.emplace_back(name);
}

void pop_range() {
  if (depth == 0) return World::current()->report("a range is popped by a thread that is in none");
  --depth;
  std::lock_guard lock(mutex);
  ++counted.pops;
}

Ranges take_ranges() {
  std::lock_guard lock(mutex);
  return std::exchange(counted, {});
}

}  // namespace cuda_double
