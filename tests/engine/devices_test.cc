// Devices as the engine sees them: points for many ops, what holds ops back, what lives until when, and what devices do
// wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "faults.h"
#include "sluice/resources/providers/null.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;

/// Holds a lane's thread in a body until it is opened.
struct HeldLane {
  HeldLane(Engine& engine, Place place) {
    engine.push([this] { begun.raise(), gate.pass(); }, {}, {.on = place});
    begun.wait();
  }
  Signal begun;
  Gate gate;
};

TEST(Devices, PointsAreRecordedForBatches) {
  QuietEngine engine({.providers = {null_devices(1)}, .max_ops = 1 << 15});
  const Variable v = engine.variable();
  constexpr std::uint64_t kOps = 10'000;
  {
    HeldLane held(engine, null(0));
    for (std::uint64_t i = 0; i < kOps; ++i) engine.push([] {}, {update(v)}, {.on = null(0)});
    held.gate.open();
    engine.wait_all();
  }
  LaneStats stats = engine.lane_stats(null(0));
  EXPECT_EQ(stats.issued, kOps + 1);
  // An op is over a moment before its lane counts it.
  while (stats.finished != stats.issued) stats = engine.lane_stats(null(0));
  // More where a waiting thread asked for one.
  EXPECT_LT(stats.points, kOps / 64 + kOps / 256 + 20);
}

/// A point that is recorded late covers later work too, for which another stream then waits without need.
TEST(Devices, WaitsOfStreamsAreCountedAndWhatTheyCover) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable a = engine.variable(), b = engine.variable();
  Gate device;
  {
    HeldLane held(engine, sim(0));
    engine.push([&](Context& c) { c.stream()->launch([&] { device.pass(); }); }, {write(a)}, {.on = sim(0)});
    engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(b)}, {.on = sim(0)});
    held.gate.open();
    while (engine.lane_stats(sim(0)).issued != 3 || engine.lane_stats(sim(0)).points == 0) std::this_thread::yield();
  }
  Signal issued;
  engine.push([&](Context&) { issued.raise(); }, {read(a)}, {.on = sim(1)});
  issued.wait();
  const LaneStats stats = engine.lane_stats(sim(1));
  EXPECT_EQ(stats.waits, 1u);
  EXPECT_EQ(stats.covered, 1u);
  device.open();
  engine.wait_all();
}

#ifndef SLUICE_SANITIZED
TEST(Devices, AnOpTakesNothingFromTheHeap) {
  QuietEngine engine({.threads = 1, .providers = {null_devices(1)}, .max_ops = 4096});
  const Variable v = engine.variable();
  double least = 1e9;
  for (int round = 0; round < 8; ++round) {
    HeldLane held(engine, null(0));
    const long before = testing::Allocations::made.load();
    for (int i = 0; i < 1000; ++i) engine.push([] {}, {update(v)}, {.on = null(0)});
    held.gate.open();
    engine.wait_all();
    if (round > 0) least = std::min(least, static_cast<double>(testing::Allocations::made.load() - before) / 1000);
  }
  EXPECT_LT(least, 0.05);
}
#endif

/// The host op behind the first op needs a point while the lane's thread is still in the second op's body.
TEST(Devices, AHostOpGetsItsPointWhileTheLaneIsBusy) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  int value = 0, seen = 0;
  Signal issued, behind;
  Gate body;
  engine.push([&](Context& c) { c.stream()->launch([&] { value = 7; }); }, {write(v)}, {.on = sim(0)});
  engine.push([&] { issued.raise(), body.pass(); }, {}, {.on = sim(0)});
  issued.wait();
  engine.push([&] { seen = value, behind.raise(); }, {read(v)});
  behind.wait();
  EXPECT_EQ(seen, 7);
  body.open();
  engine.wait_all();
}

/// A null device cannot wait for a simulated one: the op is held back, and its lane goes on with others.
TEST(Devices, AnOpBehindAnotherKindOfDeviceIsHeldBack) {
  QuietEngine engine({.providers = {sim_devices(1), null_devices(1)}});
  const Variable v = engine.variable(), w = engine.variable();
  for (int i = 0; i < 20; ++i) {
    Gate device;
    std::atomic<bool> issued{false};
    engine.push([&](Context& c) { c.stream()->launch([&] { device.pass(); }); }, {write(v)}, {.on = sim(0)});
    engine.push([&] { issued = true; }, {read(v), write(w)}, {.on = null(0)});
    Signal other;
    engine.push([&] { other.raise(); }, {}, {.on = null(0)});
    other.wait();
    EXPECT_FALSE(issued.load());
    device.open();
    engine.wait(w);
    EXPECT_TRUE(issued.load());
  }
}

TEST(Devices, WhatAClosureHoldsLivesUntilTheDeviceIsDone) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  Gate device;
  Signal issued;
  auto held = std::make_shared<int>(3);
  const std::weak_ptr<int> weak = held;
  int seen = 0;
  engine.push(
      [&, held](Context& c) {
        c.stream()->launch([&, p = held.get()] { device.pass(), seen = *p; });
        issued.raise();
      },
      {write(v)}, {.on = sim(0)});
  held.reset();
  issued.wait();
  EXPECT_FALSE(weak.expired());
  device.open();
  engine.wait(v);
  EXPECT_EQ(seen, 3);
  EXPECT_TRUE(weak.expired());
}

/// More lanes read than a variable has places for: the next write waits for them all the same.
TEST(Devices, AWriteWaitsForReadersOfManyLanes) {
  QuietEngine engine({.providers = {sim_devices(4)}});
  const Variable v = engine.variable();
  Gate readers;
  int value = 1, wrong = 0;
  std::atomic<int> reads{0};
  for (int i = 0; i < 4; ++i)
    for (const LaneKind lane : kDeviceLanes)
      engine.push(
          [&](Context& c) {
            c.stream()->launch([&] {
              readers.pass();
              if (value != 1) ++wrong;
              ++reads;
            });
          },
          {read(v)}, {.on = {sim(i), lane}});
  Signal issued;
  engine.push([&](Context& c) { c.stream()->launch([&] { value = reads.load(); }), issued.raise(); }, {write(v)},
              {.on = sim(0)});
  issued.wait();
  readers.open();
  engine.wait(v);
  EXPECT_EQ(value, 4 * static_cast<int>(std::size(kDeviceLanes)));
  EXPECT_EQ(wrong, 0);
}

TEST(Devices, ALostDeviceFailsWhatItHasAndOthersGoOn) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine({.providers = {sim_devices(2, {.control = control})}});
  const Variable a = engine.variable("a"), b = engine.variable("b"), c = engine.variable("c");
  Signal issued;
  const auto device = std::make_shared<Gate>();  // the kernel may end after the op
  engine.push([&](Context& x) { x.stream()->launch([device] { device->pass(); }); }, {write(a)},
              {.on = sim(0), .name = "first"});
  engine.push([&](Context& x) { x.stream()->launch([] {}), issued.raise(); }, {read(a), write(b)},
              {.on = sim(0), .name = "second"});
  issued.wait();
  control->lose(0);
  device->open();
  const std::string said = failure([&] { engine.wait(b); });
  EXPECT_NE(said.find("sim(0) was lost"), std::string::npos) << said;
  EXPECT_NE(said.find("'first'"), std::string::npos) << said;
  EXPECT_NE(said.find("'second'"), std::string::npos) << said;
  EXPECT_NE(failure([&] { engine.wait(a); }), "");
  // Later ops fail without a body, and what they would have written stays whole.
  bool ran = false;
  engine.push([&] { ran = true; }, {update(c)}, {.on = sim(0)});
  EXPECT_NE(failure([&] { engine.wait(c); }).find("sim(0) was lost"), std::string::npos);
  EXPECT_FALSE(ran);
  engine.recover(c);
  engine.wait(c);
  int value = 0;
  engine.push([&](Context& x) { x.stream()->launch([&] { value = 4; }); }, {update(c)}, {.on = sim(1)});
  engine.wait(c);
  EXPECT_EQ(value, 4);
  EXPECT_TRUE(engine.stop());
}

TEST(Devices, ADeviceThatNeverAnswersIsGivenUpAtTheLimit) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine(
      {.providers = {sim_devices(1, {.control = control})}, .device_limit = std::chrono::milliseconds(50)});
  const Variable v = engine.variable();
  control->silence(0);
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(v)}, {.on = sim(0), .name = "kernel"});
  const std::string said = failure([&] { engine.wait(v); });
  EXPECT_NE(said.find("has not answered for 50 ms"), std::string::npos) << said;
  EXPECT_NE(said.find("'kernel'"), std::string::npos) << said;
  EXPECT_TRUE(engine.stop());
  control->release();
}

TEST(Devices, AWaitForASilentDeviceEndsWithItsTime) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine({.providers = {sim_devices(1, {.control = control})}});
  const Variable v = engine.variable();
  control->silence(0);
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(v)}, {.on = sim(0), .name = "kernel"});
  EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(20)));
  EXPECT_NE(engine.explain(v).find("was issued to sim(0)"), std::string::npos) << engine.explain(v);
  control->release();
  engine.wait(v);
}

/// Holds whoever finishes ops of the provider, by the end of a closure that it destroys, until it is opened.
struct HeldWatcher {
  HeldWatcher(Engine& engine, Place place) {
    auto last = std::make_unique<End>(*this);
    engine.push([end = std::move(last)](Context& c) { c.stream()->launch([] {}); }, {}, {.on = place});
    begun.wait();
  }
  struct End {
    explicit End(HeldWatcher& of) : held(of) {}
    ~End() { held.begun.raise(), held.gate.pass(); }
    HeldWatcher& held;
  };
  Signal begun;
  Gate gate;
};

void report_a_thousand_errors() {
  for (int i = 0; i < 1000; ++i) report_late_error(std::make_exception_ptr(std::runtime_error("out of range")));
}

/// The device keeps 256 reports: where more came, each of its unconfirmed ops may have had one.
TEST(Devices, ErrorsThatTheDeviceLostMakeSuspects) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable a = engine.variable(), b = engine.variable();
  HeldWatcher held(engine, sim(1));
  Signal reported, issued;
  engine.push([&](Context& c) { c.stream()->launch([&] { report_a_thousand_errors(), reported.raise(); }); },
              {write(a)}, {.on = sim(0)});
  engine.push([&](Context& c) { c.stream()->launch([] {}); }, {write(b)}, {.on = sim(0)});
  engine.push([&] { issued.raise(); }, {}, {.on = sim(0)});
  reported.wait();
  issued.wait();
  held.gate.open();
  EXPECT_NE(failure([&] { engine.wait(a); }), "");
  EXPECT_NE(failure([&] { engine.wait(b); }).find("more errors than it could keep"), std::string::npos);
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(a), write(b)}, {.on = sim(0)});
  engine.wait(a);
}

/// The same where the body that launched the kernel is not over when the engine learns of lost errors.
TEST(Devices, AnOpWhoseBodyIsNotOverIsSuspectToo) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable a = engine.variable(), b = engine.variable();
  HeldWatcher held(engine, sim(1));
  Signal reported, launched;
  Gate body;
  engine.push([&](Context& c) { c.stream()->launch([&] { report_a_thousand_errors(), reported.raise(); }); },
              {write(a)}, {.on = sim(0)});
  engine.push([&](Context& c) { c.stream()->launch([] {}), launched.raise(), body.pass(); }, {write(b)},
              {.on = sim(0)});
  reported.wait();
  launched.wait();
  held.gate.open();
  EXPECT_NE(failure([&] { engine.wait(a); }), "");
  body.open();
  EXPECT_NE(failure([&] { engine.wait(b); }).find("more errors than it could keep"), std::string::npos);
}

/// docs/semantics.md, 14: a kernel may say that it wrote nothing, and then the old value is whole.
TEST(Devices, ALateErrorMaySayThatNothingWasWritten) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  engine.push(
      [](Context& c) {
        c.stream()->launch([] { report_late_error(std::make_exception_ptr(std::runtime_error("no")), true); });
      },
      {update(v)}, {.on = sim(0)});
  EXPECT_NE(failure([&] { engine.wait(v); }), "");
  engine.recover(v);
  engine.wait(v);
}

/// A captured op as a pushed one: intact where the report says that nothing was written, torn else.
TEST(Devices, ALateErrorSaysTheSameOfAReplay) {
  for (const bool wrote_nothing : {true, false}) {
    QuietEngine engine({.providers = {sim_devices(1)}});
    const Variable v = engine.variable();
    const auto body = [=](Context& c) {
      c.stream()->launch([=] { report_late_error(std::make_exception_ptr(std::runtime_error("no")), wrote_nothing); });
    };
    const Program program = engine.capture([&] { engine.push(body, {update(v)}, {.on = sim(0)}); });
    for (int run = 0; run < 2; ++run) {
      engine.replay(program);
      EXPECT_NE(failure([&] { engine.wait(v); }), "");
      engine.recover(v);
      EXPECT_EQ(failure([&] { engine.wait(v); }) == "", wrote_nothing);
      engine.push([] {}, {write(v)}).wait();
    }
  }
}

}  // namespace
}  // namespace sluice
