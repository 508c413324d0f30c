// Promise 5 on simulated streams: issued is not completed, and the host waits for no device on another's behalf.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;

void launch(Context& c, std::function<void()> kernel) { c.stream()->launch(std::move(kernel)); }

TEST(Streams, IssuedIsNotCompleted) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  Gate device;
  Signal issued;
  const Ticket t =
      engine.push([&](Context& c) { launch(c, [&] { device.pass(); }), issued.raise(); }, {write(v)}, {.on = sim(0)});
  issued.wait();
  EXPECT_FALSE(t.done());
  EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(5)));
  EXPECT_EQ(engine.in_flight(), 1u);
  device.open();
  engine.wait(v);
  t.wait();
  EXPECT_TRUE(t.done());
}

TEST(Streams, ASuccessorOnTheSameStreamIsIssuedAtOnce) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  Gate device;
  Signal issued;
  int value = 0;
  engine.push([&](Context& c) { launch(c, [&] { device.pass(), value = 1; }); }, {write(v)}, {.on = sim(0)});
  engine.push([&](Context& c) { launch(c, [&] { value = value * 10 + 2; }), issued.raise(); }, {update(v)},
              {.on = sim(0)});
  issued.wait();  // while the first kernel still stands
  device.open();
  engine.wait(v);
  EXPECT_EQ(value, 12);
}

TEST(Streams, AnotherStreamWaitsOnTheDeviceNotOnTheHost) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable v = engine.variable(), w = engine.variable();
  Gate device;
  Signal issued;
  int value = 0, copy = 0;
  engine.push([&](Context& c) { launch(c, [&] { device.pass(), value = 1; }); }, {write(v)}, {.on = sim(0)});
  engine.push([&](Context& c) { launch(c, [&] { copy = value; }), issued.raise(); }, {read(v), write(w)},
              {.on = sim(1)});
  issued.wait();  // the host did not wait for sim(0)
  Signal other;
  engine.push([&](Context& c) { launch(c, [] {}), other.raise(); }, {}, {.on = sim(1)});
  other.wait();
  device.open();
  engine.wait(w);
  EXPECT_EQ(copy, 1);
}

/// A later write on one stream waits, on the device, for readers on others.
TEST(Streams, WritersWaitForReadersOfOtherStreams) {
  QuietEngine engine({.providers = {sim_devices(3)}});
  const Variable v = engine.variable();
  Gate readers;
  Signal issued;
  int value = 7, seen[2] = {0, 0};
  for (int i = 0; i < 2; ++i)
    engine.push([&, i](Context& c) { launch(c, [&, i] { readers.pass(), seen[i] = value; }); }, {read(v)},
                {.on = sim(i)});
  engine.push([&](Context& c) { launch(c, [&] { value = 8; }), issued.raise(); }, {write(v)}, {.on = sim(2)});
  issued.wait();
  readers.open();
  engine.wait(v);
  EXPECT_EQ(seen[0] * 10 + seen[1], 77);
  EXPECT_EQ(value, 8);
}

/// A variable remembers the lanes of six readers. A write waits, on the device, for the one that found no place too.
TEST(Streams, WritersWaitForMoreReadersThanAVariableRemembers) {
  QuietEngine engine({.providers = {sim_devices(3)}});
  const Variable v = engine.variable();
  std::vector<Place> lanes;
  for (int i = 0; i < 3; ++i)
    for (const LaneKind lane : kDeviceLanes) lanes.push_back({sim(i), lane});
  const Place last_lane = lanes[6], writer = lanes[8];
  for (std::size_t i = 0; i < 6; ++i)
    engine.push([&](Context& c) { launch(c, [] {}); }, {read(v)}, {.on = lanes[i]}).wait();
  Gate last;
  Signal read_issued, write_issued;
  int value = 7, seen = 0;
  engine.push([&](Context& c) { launch(c, [&] { last.pass(), seen = value; }), read_issued.raise(); }, {read(v)},
              {.on = last_lane});
  read_issued.wait();
  engine.push([&](Context& c) { launch(c, [&] { value = 8; }), write_issued.raise(); }, {write(v)}, {.on = writer});
  write_issued.wait();
  EXPECT_EQ(engine.lane_stats(writer).waits, 1u) << "the others are over";
  last.open();
  engine.wait(v);
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(value, 8);
}

TEST(Streams, AHostOpWaitsForTheDevice) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable(), w = engine.variable();
  Gate device;
  int value = 0, host = 0;
  std::atomic<bool> begun{false};
  engine.push([&](Context& c) { launch(c, [&] { device.pass(), value = 5; }); }, {write(v)}, {.on = sim(0)});
  engine.push([&] { begun = true, host = value; }, {read(v), write(w)});
  Signal idle;
  engine.push([&] { idle.raise(); }, {});  // the lane is free meanwhile
  idle.wait();
  EXPECT_FALSE(begun.load());
  device.open();
  engine.wait(w);
  EXPECT_EQ(host, 5);
}

TEST(Streams, ADeviceOpWaitsForTheHost) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  int value = 0;
  engine.push([&] { value = 3; }, {write(v)});
  engine.push([&](Context& c) { launch(c, [&] { value *= 2; }); }, {update(v)}, {.on = sim(0)});
  engine.push([&] { value += 1; }, {update(v)});
  engine.wait(v);
  EXPECT_EQ(value, 7);
}

TEST(Streams, LanesOfADeviceAreStreamsOfTheirOwn) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  Gate device;
  engine.push([&](Context& c) { launch(c, [&] { device.pass(); }); }, {}, {.on = sim(0)});
  const Ticket copy = engine.push([&](Context& c) { launch(c, [] {}); }, {}, {.on = Place(sim(0), LaneKind::copy_in)});
  copy.wait();
  device.open();
  engine.wait_all();
}

/// docs/semantics.md, 16: a late error poisons, along the edges, everything made from what the kernel made.
TEST(Streams, ALateKernelErrorPoisonsAllThatWasMadeFromIt) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable(), other = engine.variable();
  Gate device;
  Signal issued;
  int value = 0;
  engine.push(
      [&](Context& x) {
        launch(x, [&] {
          device.pass();
          throw std::runtime_error("illegal address");
        });
      },
      {write(a)}, {.on = sim(0), .name = "kernel"});
  engine.push([&](Context& x) { launch(x, [] {}), issued.raise(); }, {read(a), write(b)}, {.on = sim(1)});
  engine.push([&] { ADD_FAILURE() << "a host op looked before it delivered"; }, {read(b), write(c)});
  engine.push([&](Context& x) { launch(x, [&] { value = 1; }); }, {write(other)}, {.on = sim(1)});
  issued.wait();
  device.open();
  for (const Variable& v : {a, b, c}) EXPECT_EQ(failure([&] { engine.wait(v); }), "kernel: illegal address");
  engine.wait(other);
  EXPECT_EQ(value, 1);
  engine.recover(a);
  engine.recover(b);
  engine.recover(c);
  EXPECT_NE(failure([&] { engine.wait(a); }), "") << "torn";
  EXPECT_NE(failure([&] { engine.wait(b); }), "") << "torn: it was issued";
  EXPECT_EQ(failure([&] { engine.wait(c); }), "") << "skipped: intact";
  engine.push([](Context& x) { launch(x, [] {}); }, {write(a), write(b)}, {.on = sim(0)});
  engine.wait(a);
  engine.wait(b);
}

TEST(Streams, ABodyThatThrowsBeforeItIssues) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable(), w = engine.variable();
  engine.push([](Context&) { throw std::runtime_error("no launch"); }, {write(v)}, {.on = sim(0), .name = "bad"});
  engine.push([](Context& c) { launch(c, [] {}); }, {read(v), write(w)}, {.on = sim(0)});
  EXPECT_EQ(failure([&] { engine.wait(w); }), "bad: no launch");
}

TEST(Streams, StreamOpsCompleteLateToo) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  Completion held;
  Signal issued;
  const Ticket t =
      engine.push([&](Context& c, Completion done) { launch(c, [] {}), held = std::move(done), issued.raise(); },
                  {write(v)}, {.on = sim(0)});
  issued.wait();
  EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(2)));
  held.done();
  engine.wait(v);
  t.wait();
}

/// The stream's own thread may be the last that holds the engine.
TEST(Streams, EnginesGoWhileTheirStreamsReport) {
  for (int i = 0; i < 200; ++i) {
    QuietEngine engine({.providers = {sim_devices(1)}});
    engine.push([](Context& c) { launch(c, [] {}); }, {}, {.on = sim(0)});
  }
}

TEST(Streams, DelaysAreTheDevices) {
  QuietEngine engine({.providers = {sim_devices(1, {.delay = std::chrono::milliseconds(20)})}});
  const Variable v = engine.variable();
  const auto begin = std::chrono::steady_clock::now();
  engine.push([](Context& c) { launch(c, [] {}); }, {write(v)}, {.on = sim(0)});
  engine.wait(v);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace sluice
