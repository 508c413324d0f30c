// A slice of what tests/explore.sh runs in full: sampled schedules of random programs, and every schedule with few
// deviations of the small one.
#include <gtest/gtest.h>

#include <unordered_set>

#include "explore_run.h"
#include "explore_search.h"
#include "explore_small.h"
#include "slice.h"

namespace sluice::testing {
namespace {

const std::uint64_t kSampled = slice(300, 4000, 40'000), kEvery = slice(500, 5000, 60'000);

TEST(ExplorePrograms, SampledSchedulesEqualTheSerialModel) {
  std::unordered_set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= kSampled; ++seed) {
    const ProgramResult result = run_program(seed);
    ASSERT_FALSE(result.hang) << "tests/explore.sh --replay " << seed;
    ASSERT_EQ(result.mismatch, "") << "tests/explore.sh --replay " << seed;
    hashes.insert(result.hash);
  }
  EXPECT_GT(hashes.size(), kSampled * 99 / 100);
}

TEST(ExplorePrograms, EveryScheduleWithFewDeviations) {
  for (const auto& [budget, waits] : {std::pair(0, true), {1, true}, {2, true}, {2, false}}) {
    SmallResult last;
    const Search search = every_schedule(
        budget,
        [&] {
          last = run_small(waits);
          return last.good();
        },
        kEvery);
    ASSERT_EQ(search.bad, 0u) << (last.hang ? "a hang" : last.mismatch)
                              << ": tests/explore.sh --replay every:" << search.first_bad;
    EXPECT_FALSE(search.unsteady);
    std::printf("%d deviations: %llu schedules, %llu distinct%s\n", budget,
                static_cast<unsigned long long>(search.schedules), static_cast<unsigned long long>(search.distinct),
                search.schedules == kEvery ? ", cut short" : "");
  }
}

TEST(ExplorePrograms, ASeedReplays) {
  for (std::uint64_t seed = 1; seed <= slice(50, 200, 200); ++seed) {
    const ProgramResult one = run_program(seed), two = run_program(seed);
    ASSERT_EQ(one.hash, two.hash) << "seed " << seed;
    ASSERT_EQ(one.points, two.points) << "seed " << seed;
  }
}

/// What the programs are said to have, they have.
TEST(ExplorePrograms, ProgramsAreOfEveryKind) {
  int throws = 0, late = 0, waits_inside = 0, waits_outside = 0, nested = 0, cancels = 0, scopes = 0, drops = 0,
      recoveries = 0, borrows = 0, caps = 0, replays = 0, logged = 0;
  for (std::uint64_t program = 0; program < 200; ++program) {
    const ProgramSpec p = ProgramDrawing(program).program();
    std::size_t pushed = 0;
    for (const auto& thread : p.threads) pushed += thread.size();
    EXPECT_GE(pushed, 8u);
    EXPECT_GE(p.threads.size(), 2u);
    drops += p.drops, caps += p.max_ops != 0, logged += p.errors;
    for (const ProgramOp& o : p.ops) {
      throws += o.ending != ProgramOp::returns, late += o.answer != ProgramOp::at_once;
      waits_inside += o.wait_inside >= 0 || o.wait_nested, waits_outside += o.wait_outside >= 0 || o.wait_ticket;
      nested += !o.nested.empty(), replays += !o.captured.empty(), cancels += o.cancel, scopes += o.cancel_scope;
      recoveries += o.recovery, borrows += o.borrow;
    }
  }
  for (int count :
       {throws, late, waits_inside, waits_outside, nested, cancels, scopes, drops, recoveries, borrows, caps, replays})
    EXPECT_GT(count, 10);
  EXPECT_GT(logged, 50);
  EXPECT_LT(logged, 150);
}

}  // namespace
}  // namespace sluice::testing
