// Arrays on devices with streams: where transfers run, what is out of reach, memory that comes back, and its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>

#include "ndarray_test_support.h"
#include "simulated_devices.h"
#include "sluice/operators/attributes.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/memory_summary.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Devices, TransfersRunOnCopyLanes) {
  Devices engine;
  engine->start_trace();
  const NDArray x = from(Floats{1, 2, 3, 4}, {2, 2});
  const NDArray there = x.transpose().to(sim(0)), beyond = there.to(sim(1)), back = beyond.transpose().to(cpu(0));
  EXPECT_EQ(back.to_vector<float>(), (Floats{1, 2, 3, 4}));
  std::vector<std::string> lanes;
  for (const TraceEvent& e : engine->stop_trace()) {
    if (std::string_view(e.name) == "transfer") {
      lanes.push_back(to_string(e.device) + (e.lane == LaneKind::copy_in     ? " in"
                                             : e.lane == LaneKind::copy_out  ? " out"
                                             : e.lane == LaneKind::copy_peer ? " peer"
                                                                             : " compute"));
    }
  }
  EXPECT_THAT(lanes, ::testing::ElementsAre("sim(0) in", "sim(1) peer", "sim(1) out"));
}

TEST(Devices, WhatIsOutOfReachThrowsAtTheCall) {
  Devices engine;
  const NDArray here = ones({4}), there = ones({4}).to(sim(0)), beyond = ones({4}).to(sim(1));
  const auto nothing = [](ArrayContext&) {};
  EXPECT_THAT(message_of([&] { push_op(nothing, {there}, {here}); }), HasSubstr("sim(0) in an operation on cpu(0)"));
  EXPECT_THAT(message_of([&] { push_op(nothing, {here}, {there}); }), HasSubstr("cpu(0) in an operation on sim(0)"));
  EXPECT_THAT(message_of([&] { push_op(nothing, {beyond}, {there}); }), HasSubstr("sim(1) in an operation on sim(0)"));
  EXPECT_THAT(message_of([&] { (void)there.borrow<float>(); }), HasSubstr("to(cpu(0))"));
  EXPECT_THAT(message_of([&] { (void)(there + beyond); }), HasSubstr("use to(device)"));
}

TEST(Devices, AHandleToMemoryIsOfNoUseToTheHost) {
  Devices engine;
  const NDArray x = ones({4}).to(sim(0));
  x.wait();
  EXPECT_DEATH((void)*reinterpret_cast<volatile float*>(x.array()->version()->buffer().data()), "");
}

TEST(Devices, AWriteToAHeldValueLeavesItAsItWas) {
  Devices engine;
  const DeviceScope scope(sim(0));
  NDArray x = from(Floats{1, 2, 3, 4}, {4});
  const NDArray kept = x.detach();
  x += 1;
  x(slice(0, 2)) = 9;
  EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(x.to_vector<float>(), (Floats{9, 9, 4, 5}));
}

TEST(Devices, BlocksComeBackWhenTheDeviceIsDoneWithThem) {
  Devices engine;
  const DeviceScope scope(sim(0));
  for (int round = 0; round < 2; ++round) {
    NDArray x = ones({1000});
    for (int i = 0; i < 100; ++i) x = x.reshape({10, 100}).transpose().copy().reshape({1000}) + 1;
    EXPECT_EQ(x(0).item<float>(), 101);
    x = {};
    engine->wait_all();
    const PoolStats stats = device_pool(*engine, sim(0)).stats();
    EXPECT_EQ(stats.in_use, 0u);
    if (round == 1) {
      EXPECT_GE(stats.hits, stats.allocations / 2);
    }
  }
  EXPECT_GT(device_pool(*engine, sim(0)).trim(), 0u);
  EXPECT_EQ(device_pool(*engine, sim(0)).stats().cached, 0u);
}

TEST(Devices, WhatOnlyAnOpUsesGoesToTheNextOfItsStream) {
  Devices engine({.delay = std::chrono::microseconds(300)});
  const DeviceScope scope(sim(0));
  const NDArray x = ones({64, 64}), y = zeros({64, 64});
  engine->wait_all();
  DevicePool& pool = device_pool(*engine, sim(0));
  pool.trim();
  // Each packs its result, 16 KiB; all are issued long before the first is over.
  for (int i = 0; i < 50; ++i) {
    const NoGrad scope_of_writes;
    apply(Registry::instance().get("matmul"), {&x, &x}, MatmulAttributes{}, {.into = std::array{y.transpose()}});
  }
  engine->wait_all();
  EXPECT_EQ(y.to_vector<float>(), Floats(64 * 64, 64.0F));
  EXPECT_LT(pool.stats().cached, 10u * 16384u);
}

TEST(Devices, MemoryThatIsIssuedIsWaitedForBeforeItIsOut) {
  // Room for three arrays of 1 MiB; each op's result goes when the next is issued, but its memory when it is over.
  Devices engine({.delay = std::chrono::microseconds(500), .limits = {.memory = 7 << 19}});
  const DeviceScope scope(sim(0));
  NDArray x = zeros({1 << 18});
  for (int i = 0; i < 20; ++i) x = x + 1;
  EXPECT_EQ(x(5).item<float>(), 20);
}

TEST(Devices, OutOfMemoryNamesDeviceWantedAndUsed) {
  Devices engine({.limits = {.memory = 1 << 20}});
  const DeviceScope scope(sim(1));
  const NDArray held = zeros({1 << 15});
  held.wait();
  const NDArray large = zeros({1 << 18});
  const std::string message = message_of([&] { large.wait(); });
  EXPECT_THAT(message, HasSubstr("sim(1) has no 1.00 MiB left"));
  EXPECT_THAT(message, HasSubstr("128.00 KiB of it are in use"));
  EXPECT_EQ(held.to_vector<float>(), Floats(1 << 15, 0.0F));
  EXPECT_EQ((held(slice(0, 4)) + 1).to_vector<float>(), Floats(4, 1.0F)) << "the device goes on";
}

TEST(Devices, OutOfMemorySaysWhichOpsHoldIt) {
  Devices engine({.limits = {.memory = 1 << 20}});
  const DeviceScope scope(sim(1));
  const NDArray held = zeros({1 << 14});
  std::vector<NDArray> kept;
  {
    const LayerScope layer("encoder");
    for (int i = 0; i < 3; ++i) kept.push_back(held + i);
  }
  NDArray gone = held * 2;
  engine->wait_all();
  gone = {};
  const std::string held_by = "\n  192.00 KiB  add_scalar in encoder, 3 blocks\n  64.00 KiB  fill, 1 block";
  EXPECT_THAT(memory_summary(*engine, sim(1)), ::testing::EndsWith(held_by));
  const NDArray large = zeros({1 << 18});
  EXPECT_THAT(
      message_of([&] { large.wait(); }),
      ::testing::ContainsRegex("^\\[zeros\\] devices_test\\.cc:[0-9]+ on sim\\(1\\): sim\\(1\\) has no 1.00 MiB "
                               "left: 256.00 KiB of it are in use, 0 B cached" +
                               held_by + "$"));
  kept.clear();
  EXPECT_THAT(memory_summary(*engine, sim(1)), ::testing::EndsWith("cached\n  64.00 KiB  fill, 1 block"));
}

TEST(Devices, AnArrayOutlivesItsEngine) {
  NDArray x;
  {
    Devices engine;
    x = ones({4}).to(sim(0)) + 1;
    x.wait();
  }
  x = {};
}

TEST(Devices, ALateErrorPoisonsWhatWasMadeOfIt) {
  Devices engine({.delay = std::chrono::microseconds(200)});
  const DeviceScope scope(sim(0));
  const NDArray x = ones({4}), good = x + 1;
  NDArray bad = x + 2;
  poison(bad);
  const NDArray made = bad * 2 + x, far = made.to(sim(1)) + 1;
  EXPECT_THAT(message_of([&] { (void)far.to_vector<float>(); }), HasSubstr("spoilt"));
  EXPECT_THAT(message_of([&] { made.wait(); }), HasSubstr("spoilt"));
  EXPECT_EQ(good.to_vector<float>(), Floats(4, 2.0F));
  bad.fill(1);
  EXPECT_EQ((bad + x).to_vector<float>(), Floats(4, 2.0F)) << "healed";
}

TEST(Devices, AnOpThatWroteNothingLeavesTheOldValue) {
  Devices engine;
  const DeviceScope scope(sim(0));
  const NDArray x = ones({4});
  push_op(
      [](ArrayContext& c) {
        c.engine_context().wrote_nothing();
        throw std::runtime_error("not now");
      },
      {}, {x}, {.name = "careful"});
  EXPECT_THAT(message_of([&] { x.wait(); }), HasSubstr("not now"));
  engine->recover(x);
  EXPECT_EQ(x.to_vector<float>(), Floats(4, 1.0F));
}

// What fails when it is issued is nobody's input, however quick the lane is.
TEST(Devices, AnIssueThatFailsLeavesTheOldValue) {
  Devices engine;
  const DeviceScope scope(sim(0));
  NDArray x = from(Floats{1, 2, 3, 4}, {4});
  engine->wait_all();
  engine.control->fail_nth(SimFault::launch, 1);
  x += 1;
  const NDArray made = x * 2;
  EXPECT_THAT(message_of([&] { made.wait(); }), HasSubstr("planted: launch"));
  engine->recover(x);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2, 3, 4}));
  engine.control->fail_nth(SimFault::copy, 1);
  const NDArray far = x.to(sim(1)), farther = far + 1;
  EXPECT_THAT(message_of([&] { farther.wait(); }), HasSubstr("planted: copy"));
  engine.control->fail_every(SimFault::allocation, 1);  // once more, too, when what was cached went back
  const NDArray large = zeros({1 << 16});
  EXPECT_THAT(message_of([&] { large.wait(); }), HasSubstr("has no 256.00 KiB left"));
  engine.control->fail_every(SimFault::allocation, 0);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2, 3, 4}));
}

}  // namespace
}  // namespace sluice::testing
