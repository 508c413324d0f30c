// What can be seen of a program on cards: the cards' times in a trace, NVTX's ranges, and what holds their memory.
#include <cuda_double/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "support.h"

namespace sluice {
namespace {

using std::chrono::microseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

NDArray numbers(std::int64_t count, Device device) {
  const DeviceScope scope(cpu(0));
  return arange(0, count, 1, DType::f32).to(device);
}

/// CUDA tells times as floats of milliseconds, and two of them are rounded.
constexpr std::int64_t kRounding = 5'000;

TEST(CudaTrace, HasTheCardsTimesBesideThoseOfTheIssue) {
  OnDouble on({.devices = 2, .delay = microseconds(300)});
  NDArray x = numbers(6, gpu(0));
  x.wait();
  on.engine().start_trace();
  const std::int64_t begin = std::chrono::steady_clock::now().time_since_epoch().count();
  for (int i = 0; i < 5; ++i) x = x + 1;
  const NDArray there = x.to(gpu(1)) * 2;
  EXPECT_EQ(there.to_vector<float>()[0], 10);
  on.engine().wait_all();
  const std::int64_t end = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::vector<TraceEvent> events = on.engine().stop_trace();
  std::int64_t free = 0;
  int on_first = 0;
  for (const TraceEvent& e : events) {
    if (e.device.kind != DeviceKind::gpu) continue;
    SCOPED_TRACE(e.name);
    EXPECT_LE(e.start, e.end);
    EXPECT_LE(e.end, e.done);
    // The op's own command and the event behind it.
    EXPECT_GE(e.device_end - e.device_start + kRounding, 2 * 300'000);
    // The card's clock is told by the host's as exactly as the double answers: here within a few commands.
    EXPECT_GT(e.device_start, begin - 200'000'000);
    EXPECT_LT(e.device_end, end + 200'000'000);
    if (e.device != gpu(0) || e.lane != LaneKind::compute) continue;
    EXPECT_GE(e.device_start + kRounding, free);
    free = e.device_end;
    ++on_first;
  }
  EXPECT_EQ(on_first, 5);
  const std::string text = to_perfetto(events);
  EXPECT_THAT(text, AllOf(HasSubstr("\"gpu(0) compute (device)\""), HasSubstr("\"gpu(1) compute (device)\"")));
}

TEST(CudaTrace, WithoutOneNoEventIsTimed) {
  OnDouble on;
  NDArray x = numbers(6, gpu(0));
  const auto run = [&] {
    for (int i = 0; i < 10; ++i) {
      x = x + 1;
      x.wait();
    }
    on.engine().wait_all();
  };
  run();
  const std::uint64_t before = cuda_double::calls(cuda_double::Fault::stream);
  run();
  EXPECT_EQ(cuda_double::calls(cuda_double::Fault::stream), before);
  on.engine().start_trace();
  run();
  const std::uint64_t traced = cuda_double::calls(cuda_double::Fault::stream);
  EXPECT_GE(traced, before + 2);
  EXPECT_LE(traced, before + 30) << "events are used again";
  on.engine().stop_trace();
  run();
  EXPECT_EQ(cuda_double::calls(cuda_double::Fault::stream), traced);
}

/// Whatever event of the measuring cannot be made, the ops go on, and perhaps without times.
TEST(CudaTrace, TimesThatCannotBeHad) {
  for (std::uint64_t call = 1; call < 25; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    OnDouble on;
    NDArray x = numbers(6, gpu(0));
    // One op after the other, so that the streams' points need no other events than those of the first round.
    const auto run = [&] {
      for (int i = 0; i < 3; ++i) {
        x = x + 1;
        x.wait();
        on.engine().wait_all();
      }
      return x.to_vector<float>()[0];
    };
    EXPECT_EQ(run(), 3);
    on.engine().wait_all();
    on.engine().start_trace();
    cuda_double::fail_nth(cuda_double::Fault::stream, call, cudaErrorInvalidValue);
    EXPECT_EQ(run(), 6);
    on.engine().wait_all();
    const std::vector<TraceEvent> events = on.engine().stop_trace();
    EXPECT_FALSE(events.empty());
    const bool failed = cuda_double::failures(cuda_double::Fault::stream) > 0;
    const auto lacks = std::count_if(events.begin(), events.end(), [](const TraceEvent& e) {
      return e.device.kind == DeviceKind::gpu && e.device_end == 0;
    });
    EXPECT_EQ(lacks, failed ? 1 : 0);
  }
}

TEST(CudaRanges, HaveTheNamesOfOps) {
  cuda_double::take_ranges();
  {
    OnDouble on({}, {.nvtx = true});
    on.engine().on_unobserved_error([](const ErrorRoot&) {});
    const NDArray x = numbers(6, gpu(0));
    x.wait();
    on.engine().wait_all();
    cuda_double::take_ranges();
    const NDArray y = relu(exp(x) + 1);
    y.wait();
    on.engine().wait_all();
    const cuda_double::Ranges ranges = cuda_double::take_ranges();
    EXPECT_THAT(ranges.names, ElementsAre("exp", "add_scalar", "relu"));
    EXPECT_EQ(ranges.pops, 3U);
    // A body that throws ends its range too; a replay's ops have theirs.
    const Variable v = on.engine().variable();
    on.engine().push([](Context&) { throw std::runtime_error("no"); }, {write(v)}, {.on = gpu(0), .name = "throws"});
    EXPECT_THROW(on.engine().wait(v), Error);
    const Program program =
        on.engine().capture([&] { on.engine().push([](Context&) {}, {write(v)}, {.on = gpu(0), .name = "captured"}); });
    on.engine().replay(program);
    on.engine().wait(v);
    on.engine().push([] {}, {update(v)}, {.name = "on the host"});
    on.engine().wait(v);
    const cuda_double::Ranges more = cuda_double::take_ranges();
    EXPECT_THAT(more.names, ElementsAre("throws", "captured"));
    EXPECT_EQ(more.pops, 2U);
  }
  cuda_double::take_ranges();
}

TEST(CudaRanges, OnlyWhereTheyAreAskedFor) {
  const auto names = [] {
    cuda_double::take_ranges();
    {
      OnDouble on;
      EXPECT_EQ((numbers(6, gpu(0)) + 1).to_vector<float>()[5], 6);
    }
    return cuda_double::take_ranges().names;
  };
  EXPECT_THAT(names(), IsEmpty());
  setenv("SLUICE_NVTX", "0", 1);
  EXPECT_THAT(names(), IsEmpty());
  setenv("SLUICE_NVTX", "1", 1);
  EXPECT_THAT(names(), ::testing::Contains("add_scalar"));
  unsetenv("SLUICE_NVTX");
}

TEST(CudaMemory, WhatHoldsItIsSaidByOpAndLayer) {
  OnDouble on({.memory = std::size_t{48} << 20});  // a workspace of 32 MiB is the library's
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  std::vector<NDArray> kept;
  std::string said;
  NDArray first = numbers(1 << 18, gpu(0));  // 1 MiB
  const LayerScope layer("encoder");
  for (int i = 0; i < 64 && said.empty(); ++i) {
    kept.push_back(first + i);
    try {
      kept.back().wait();
    } catch (const Error& e) {
      said = e.what();
    }
  }
  EXPECT_THAT(said, StartsWith("[add] seen_test.cc:"));
  EXPECT_THAT(said, HasSubstr(" in encoder on gpu(0): gpu(0) has no 1.00 MiB left: "));
  EXPECT_THAT(said, HasSubstr("\n  " + std::to_string(kept.size() - 1) + ".00 MiB  add_scalar in encoder, " +
                              std::to_string(kept.size() - 1) + " blocks\n  1.00 MiB  transfer, 1 block"));
  // What is given back is there for the next: the device goes on.
  kept.clear();
  EXPECT_EQ((first + 1).to_vector<float>()[5], 6);
  EXPECT_THAT(memory_summary(on.engine(), gpu(0)), HasSubstr("\n  1.00 MiB  transfer, 1 block"));
}

}  // namespace
}  // namespace sluice
