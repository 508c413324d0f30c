// The times of simulated devices: a span has what was issued within it, and no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "sim_support.h"

namespace sluice {
namespace {

using testing::Gate;
using testing::reach;
using testing::Sim;

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

TEST(SimTimes, ASpanHasWhatWasIssuedWithinIt) {
  Sim sim;
  const auto stream = sim.stream();
  Gate gate;
  std::int64_t before = 0, first = 0, second = 0, after = 0;
  stream->launch([&] { gate.pass(), before = now(); });
  const std::uint64_t outer = stream->begin_times();
  stream->launch([&] { first = now(); });
  const std::uint64_t inner = stream->begin_times();
  stream->launch([&] { second = now(); });
  stream->end_times(inner);
  stream->end_times(outer);
  stream->launch([&] { after = now(); });
  stream->record(1);
  gate.open();
  reach(*stream, 1);
  ASSERT_NE(outer, 0U);
  ASSERT_NE(inner, 0U);
  ASSERT_NE(inner, outer);
  DeviceTimes whole, part;
  ASSERT_TRUE(stream->take_times(outer, whole));
  ASSERT_TRUE(stream->take_times(inner, part));
  const std::vector<std::int64_t> order = {before, whole.begin, first, part.begin, second, part.end, whole.end, after};
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(SimTimes, NumbersAreUsedAgain) {
  Sim sim;
  const auto stream = sim.stream();
  std::uint64_t largest = 0;
  std::int64_t last = 0;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    const std::uint64_t span = stream->begin_times();
    stream->end_times(span);
    stream->record(i);
    reach(*stream, i);
    DeviceTimes times;
    ASSERT_TRUE(stream->take_times(span, times));
    EXPECT_LE(last, times.begin);
    EXPECT_LE(times.begin, times.end);
    last = times.end;
    largest = std::max(largest, span);
  }
  EXPECT_EQ(largest, 1U);
}

TEST(SimTimes, ALostDeviceHasNone) {
  Sim sim;
  const auto stream = sim.stream();
  sim.control->lose(0);
  const std::uint64_t span = stream->begin_times();
  stream->launch([] {});
  stream->end_times(span);
  DeviceTimes times{1, 2};
  EXPECT_FALSE(stream->take_times(span, times));
  EXPECT_EQ(times.begin, 1);
  EXPECT_EQ(times.end, 2);
}

}  // namespace
}  // namespace sluice
