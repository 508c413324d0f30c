// What devices find out late or never answer, where it meets other threads: reports that come while others are read,
// limits for silent devices, what is settled, and replays across two kinds of devices.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "sluice/resources/providers/null.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;
using namespace std::chrono_literals;

/// Another provider, with a test's hooks.
class Hooked : public Provider {
 public:
  struct Hooks {
    std::function<void()> before_late_errors, before_await;
  };
  Hooked(std::shared_ptr<Provider> inner, std::shared_ptr<Hooks> hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}
  DeviceKind kind() const override { return inner_->kind(); }
  int devices() const override { return inner_->devices(); }
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override { return inner_->make_stream(device, lane); }
  void enter(int device) noexcept override { inner_->enter(device); }
  std::uint64_t progress() const noexcept override { return inner_->progress(); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    if (hooks_->before_await) hooks_->before_await();
    inner_->await_progress(seen, limit);
  }
  std::uint64_t errors(int device) const noexcept override { return inner_->errors(device); }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override {
    if (hooks_->before_late_errors) hooks_->before_late_errors();
    return inner_->late_errors(device, from);
  }
  std::exception_ptr lost(int device) const noexcept override { return inner_->lost(device); }
  void give_up(int device) noexcept override { inner_->give_up(device); }
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override {
    return inner_->allocate(device, bytes, stream);
  }
  void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept override {
    inner_->free(device, block, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    inner_->copy(to, from, bytes, stream);
  }
  void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) override {
    inner_->fill(to, value, bytes, stream);
  }

 private:
  const std::shared_ptr<Provider> inner_;
  const std::shared_ptr<Hooks> hooks_;
};

ProviderFactory hooked(ProviderFactory inner, std::shared_ptr<Hooked::Hooks> hooks) {
  return [inner = std::move(inner), hooks = std::move(hooks)] { return std::make_shared<Hooked>(inner(), hooks); };
}

void launch(Context& c, std::function<void()> kernel) { c.stream()->launch(std::move(kernel)); }

/// The device keeps 256 reports. The first is lost by those that come between the engine's look at their number and at
/// the reports themselves.
TEST(DeviceErrors, AReportThatIsLostWhileReportsAreReadIsNoticed) {
  const auto hooks = std::make_shared<Hooked::Hooks>();
  Gate many;
  Signal reported;
  hooks->before_late_errors = [&] { many.open(), reported.wait(); };
  QuietEngine engine({.providers = {hooked(sim_devices(1), hooks)}});
  const Variable a = engine.variable(), b = engine.variable();
  Signal issued;
  engine.push(
      [&](Context& c) {
        launch(c, [&] {
          many.pass();
          for (int i = 0; i < 256; ++i) report_late_error(std::make_exception_ptr(std::runtime_error("b")));
          reported.raise();
        });
        issued.raise();
      },
      {write(b)}, {.on = Place(sim(0), LaneKind::copy_in)});
  issued.wait();
  engine.push([](Context& c) { launch(c, [] { throw std::runtime_error("a"); }); }, {write(a)}, {.on = sim(0)});
  EXPECT_NE(failure([&] { engine.wait(a); }).find("more errors than it could keep"), std::string::npos);
  EXPECT_NE(failure([&] { engine.wait(b); }), "");
}

/// A device that had nothing to do has not been silent meanwhile.
TEST(DeviceErrors, TheLimitForSilentDevicesBeginsWithALookAtWhatIsInFlight) {
  constexpr auto kLimit = 400ms;
  const auto hooks = std::make_shared<Hooked::Hooks>();
  QuietEngine engine({.providers = {hooked(sim_devices(1), hooks)}, .device_limit = kLimit});
  const Variable v = engine.variable(), held = engine.variable();
  engine.push([](Context& c) { launch(c, [] {}); }, {write(v)}, {.on = sim(0)});
  engine.wait(v);
  Gate host, device;
  engine.push([&] { host.pass(); }, {write(held)});
  EXPECT_FALSE(engine.wait_for(held, kLimit + 100ms));
  host.open();
  engine.wait(held);
  // The kernel ends after the watcher's first look.
  hooks->before_await = [&] { device.open(); };
  engine.push([&](Context& c) { launch(c, [&] { device.pass(); }); }, {write(v)}, {.on = sim(0)});
  EXPECT_EQ(failure([&] { engine.wait(v); }), "");
}

/// It is lost although another device works on, which is not; and with several lanes in flight it has one error.
TEST(DeviceErrors, ASilentDeviceIsGivenUpBesideABusyOne) {
  std::atomic<int> unobserved{0};
  const auto control = std::make_shared<SimControl>();
  {
    QuietEngine engine({.providers = {sim_devices(2, {.control = control})}, .device_limit = 300ms});
    engine.on_unobserved_error([&](const ErrorRoot&) { ++unobserved; });
    const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
    control->silence(0);
    const Ticket first = engine.push([](Context& x) { launch(x, [] {}); }, {write(a)}, {.on = sim(0)});
    const Ticket second =
        engine.push([](Context& x) { launch(x, [] {}); }, {write(b)}, {.on = Place(sim(0), LaneKind::copy_in)});
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!first.done() && std::chrono::steady_clock::now() < end)
      engine.push([](Context& x) { launch(x, [] {}); }, {update(c)}, {.on = sim(1)}).wait();
    ASSERT_TRUE(first.done());
    const ErrorRef root = thrown([&] { first.wait(); });
    ASSERT_TRUE(root);
    EXPECT_NE(root->message.find("has not answered"), std::string::npos) << root->message;
    EXPECT_EQ(thrown([&] { second.wait(); }), root);
    control->release();
  }
  EXPECT_EQ(unobserved.load(), 0);
}

/// When nothing else is in flight no look comes after the one that gives the device up: that one settles the loss.
TEST(DeviceErrors, TheLossOfASilentDeviceIsSettledAndAnotherDeviceGoesOn) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine({.providers = {sim_devices(2, {.control = control})}, .device_limit = 100ms});
  const Variable a = engine.variable(), b = engine.variable();
  int runs = 0;
  const auto work = [&](Device device, const Variable& v) {
    return engine.push([&](Context& c) { launch(c, [&] { ++runs; }); }, {update(v)}, {.on = device, .name = "kernel"});
  };
  work(sim(1), b).wait();
  control->silence(0);
  EXPECT_EQ(failure([&] { work(sim(0), a).wait(); }).find("kernel: sim(0) was lost: it has not answered for 100 ms"),
            0u);
  EXPECT_NE(failure([&] { engine.wait(a); }).find("sim(0) was lost"), std::string::npos);
  Provider& provider = *engine.provider(sim(0));
  EXPECT_EQ(provider.errors(0), 1u);
  bool settled = false;
  engine.push(
      [&](Context& c) {
        const auto end = std::chrono::steady_clock::now() + 30s;
        while (!(settled = c.settled_errors(sim(0)) == 1) && std::chrono::steady_clock::now() < end)
          std::this_thread::yield();
      },
      {});
  while (engine.in_flight() > 0) std::this_thread::yield();  // looks at nothing
  EXPECT_TRUE(settled);
  for (int i = 0; i < 3; ++i) work(sim(1), b);
  EXPECT_EQ(failure([&] { engine.wait(b); }), "");
  EXPECT_EQ(runs, 4);
  EXPECT_NE(failure([&] { work(sim(0), a).wait(); }).find("sim(0) was lost"), std::string::npos) << "later ones too";
  control->release();
}

/// What is settled is known to be so for the inputs of who asks, although it began before the error was known.
TEST(DeviceErrors, WhatIsSettledIsKnownOfTheInputsOfWhoAsks) {
  QuietEngine engine({.providers = {sim_devices(2)}});
  const Variable v = engine.variable();
  Provider& provider = *engine.provider(sim(0));
  Gate begun;
  bool acted = false;
  engine.push(
      [&](Context& c) {
        launch(c, [&] {
          begun.pass();
          throw std::runtime_error("late");
        });
      },
      {write(v)}, {.on = sim(0)});
  const Ticket gate = engine.push(
      [&](Context& c) {
        begun.open();
        std::uint64_t known = 0;
        while ((known = c.settled_errors(sim(0))) == 0) std::this_thread::yield();
        launch(c, [&, known] { acted = provider.errors(0) == known; });
      },
      {read(v)}, {.on = sim(1)});
  EXPECT_NE(failure([&] { gate.wait(); }).find("late"), std::string::npos);
  EXPECT_FALSE(acted);
}

/// A captured op writes what more lanes have read than a variable has places for, while one of these lanes has
/// something else in flight. Devices of its kind cannot wait for that one, and need not.
TEST(DeviceErrors, AReplayGoesOnBesideAnotherKindOfDevice) {
  QuietEngine engine({.providers = {sim_devices(3), null_devices(1)}});
  const Variable v = engine.variable(), other = engine.variable();
  std::atomic<int> reads{0};
  for (int i = 0; i < 3; ++i)
    for (const LaneKind lane : kDeviceLanes)
      engine.push([&](Context& c) { launch(c, [&] { ++reads; }); }, {read(v)}, {.on = {sim(i), lane}});
  std::atomic<int> runs{0};
  const Program program = engine.capture([&] { engine.push([&](Context&) { ++runs; }, {write(v)}, {.on = null(0)}); });
  engine.wait_all();
  EXPECT_EQ(reads.load(), 3 * static_cast<int>(std::size(kDeviceLanes)));
  Gate device;
  Signal issued;
  engine.push([&](Context& c) { launch(c, [&] { device.pass(); }), issued.raise(); }, {write(other)}, {.on = sim(0)});
  issued.wait();
  engine.replay(program).wait();
  device.open();
  engine.wait(other);
  engine.push([](Context&) {}, {write(other)}, {.on = null(0)}).wait();
  EXPECT_EQ(runs.load(), 1);
}

/// Ops that are each far below the limit, of which the last ends long after it: progress is an op.
TEST(DeviceErrors, ADeviceThatWorksIsNotSilent) {
  constexpr auto kLimit = 1s;
  constexpr int kOps = 14;
  QuietEngine engine({.providers = {sim_devices(1, {.delay = 100ms})}, .device_limit = kLimit});
  const Variable v = engine.variable();
  int runs = 0;
  Gate host;
  engine.push([&] { host.pass(); }, {write(v)});
  for (int i = 0; i < kOps; ++i)
    engine.push([&](Context& c) { launch(c, [&] { ++runs; }); }, {update(v)}, {.on = sim(0)});
  host.open();
  EXPECT_EQ(failure([&] { engine.wait(v); }), "");
  EXPECT_EQ(runs, kOps);
  EXPECT_GE(engine.lane_stats(sim(0)).points, std::uint64_t{kOps});
}

/// One that waits for another is not slow, however long that works; and is not lost with the other.
TEST(DeviceErrors, ADeviceThatWaitsForAnotherIsNotSilent) {
  constexpr auto kLimit = 1s;
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine({.providers = {sim_devices(2, {.delay = 100ms, .control = control})}, .device_limit = kLimit});
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
  Gate host;
  const auto work = [&](int device, std::vector<Access> accesses) {
    engine.push([](Context& x) { launch(x, [] {}); }, accesses, {.on = sim(device)});
  };
  engine.push([&] { host.pass(); }, {write(a), write(b)});
  for (int i = 0; i < 14; ++i) work(0, {update(a)});
  work(1, {read(a), update(b)});
  work(0, {read(b), update(c)});  // and back again
  host.open();
  for (const Variable& v : {a, b, c}) EXPECT_EQ(failure([&] { engine.wait(v); }), "");
  // The one that waits for a silent one gets the silent one's error, and goes on.
  control->silence(0);
  work(0, {update(a)});
  work(1, {read(a), update(b)});
  for (const Variable& v : {a, b})
    EXPECT_NE(failure([&] { engine.wait(v); }).find("sim(0) was lost: it has not answered"), std::string::npos);
  engine.push([](Context& x) { launch(x, [] {}); }, {write(b)}, {.on = sim(1)});
  EXPECT_EQ(failure([&] { engine.wait(b); }), "");
}

}  // namespace
}  // namespace sluice
