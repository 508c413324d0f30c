// Faults on demand: the k-th allocation, start of a thread or body of an op fails, once or from then on.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::testing {

/// What happens so often that one of it is to fail. Counted while armed, by all threads.
class FaultPoint {
 public:
  void arm(long k, bool from_then_on) {
    seen_.store(0);
    stays_.store(from_then_on);
    at_.store(k);
  }
  /// Says how often it was passed.
  long disarm() {
    at_.store(0);
    return seen_.load();
  }
  /// True if this one is to fail.
  bool passes() {
    const long at = at_.load(std::memory_order_relaxed);
    if (at == 0) return false;
    const long n = seen_.fetch_add(1, std::memory_order_relaxed) + 1;
    return n == at || (n > at && stays_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<long> at_{0}, seen_{0};
  std::atomic<bool> stays_{false};
};

/// operator new of the whole test program, but for what oneTBB takes for itself (operator_new_test.cc).
struct Allocations {
  static inline std::atomic<long> made{0}, live{0};
  static inline FaultPoint faults;
};

}  // namespace sluice::testing
