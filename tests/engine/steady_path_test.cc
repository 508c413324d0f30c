// A push on the steady path takes nothing from the heap. Counted with operator new, so not under the sanitizers.
#ifndef SLUICE_SANITIZED
#include <gtest/gtest.h>

#include <latch>

#include "faults.h"
#include "support.h"

namespace sluice {
namespace {

/// Allocations per op of pushing and running 1,000 ops at a time, after as many to warm up. The lane's threads stand at
/// a gate meanwhile: to wake an idle lane takes memory, and how often one is idle is the operating system's affair.
template <class Push>
double per_op(int threads, const Push& push) {
  testing::QuietEngine engine({.threads = threads, .max_ops = 4096});
  std::vector<Variable> v;
  for (int i = 0; i < 16; ++i) v.push_back(engine.variable());
  double least = 1e9;
  for (int round = 0; round < 8; ++round) {  // what another thread needs once, late, is not the steady path
    testing::Signal open;
    std::latch standing(threads);
    for (int t = 0; t < threads; ++t) engine.push([&] { standing.count_down(), open.wait(); }, {});
    standing.wait();
    const long before = testing::Allocations::made.load();
    for (std::size_t i = 0; i < 1000; ++i) push(engine, v, i);
    open.raise();
    engine.wait_all();
    const long after = testing::Allocations::made.load();
    if (round > 0) least = std::min(least, static_cast<double>(after - before) / 1000);
  }
  return least;
}

struct Bytes48 {
  std::int64_t* counter;
  char rest[40];
  void operator()() const { ++*counter; }
};

TEST(Allocation, PushAndRunTakeNothingFromTheHeap) {
  static_assert(sizeof(Bytes48) == 48);
  for (int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    std::int64_t counter = 0, other[16] = {};
    // One chain; one variable of sixteen; four accesses.
    EXPECT_LT(per_op(threads,
                     [&](Engine& e, auto& v, std::size_t) {
                       e.push(Bytes48{&counter, {}}, {update(v[0])});
                     }),
              0.05);
    EXPECT_LT(per_op(threads,
                     [&](Engine& e, auto& v, std::size_t i) {
                       e.push(Bytes48{&other[i % 16], {}}, {update(v[i % 16])});
                     }),
              0.05);
    EXPECT_LT(
        per_op(
            threads,
            [&](Engine& e, auto& v, std::size_t i) {
              e.push([] {}, {update(v[i % 16]), read(v[(i + 1) % 16]), read(v[(i + 5) % 16]), order(v[(i + 7) % 16])});
            }),
        0.05);
    EXPECT_LT(per_op(threads, [&](Engine& e, auto&, std::size_t) { e.push([] {}, {}); }), 0.05);
  }
}

}  // namespace
}  // namespace sluice
#endif
