// Destructors of closures: they run before their op is over, and may push and wait as its body may.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;
using namespace std::chrono_literals;

/// Calls a function when it is destroyed.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> f) : f_(std::move(f)) {}
  AtEnd(AtEnd&& other) noexcept : f_(std::exchange(other.f_, nullptr)) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  AtEnd& operator=(AtEnd&&) = delete;
  ~AtEnd() {
    if (f_) f_();
  }

 private:
  std::function<void()> f_;
};

/// How an op differs from the common one: each ends its closure in another place.
struct Form {
  const char* name;
  EngineOptions options;
  PushOptions push;
  bool later = false;     ///< it has a Completion
  bool poisoned = false;  ///< its body is skipped
  bool throws = false;
};
class Closures : public ::testing::TestWithParam<Form> {
 protected:
  Closures() : engine(with_threads(GetParam().options)) {
    if (GetParam().poisoned) engine.push([] { throw std::runtime_error("first"); }, {write(input)});
  }
  static EngineOptions with_threads(EngineOptions options) {
    options.threads = options.threads ? options.threads : 1;
    return options;
  }
  /// An op on `v` whose closure calls f when it is destroyed.
  Ticket push(const Variable& v, std::function<void()> f,
              std::source_location where = std::source_location::current()) {
    const Form& form = GetParam();
    if (form.later)
      return engine.push([end = AtEnd(std::move(f))](Completion done) { done.done(); }, {read(input), write(v)},
                         form.push, where);
    return engine.push(
        [end = AtEnd(std::move(f)), throws = form.throws] {
          if (throws) throw std::runtime_error("body");
        },
        {read(input), write(v)}, form.push, where);
  }
  QuietEngine engine;
  const Variable input = engine.variable("input"), own = engine.variable("own");
};

TEST_P(Closures, AWaitForTheirOwnVariableThrows) {
  std::string said, ticket;
  Ticket self;
  Gate pushed;
  const bool serial = GetParam().options.mode == EngineMode::serial;
  self = push(own, [&] {
    if (!serial) pushed.pass();
    said = failure([&] { engine.wait(own); });
    if (!serial) ticket = failure([&] { self.wait(); });
  });
  pushed.open();
  engine.push([] {}, {write(own)}).wait();
  EXPECT_NE(said.find("can never end"), std::string::npos) << said;
  EXPECT_EQ(ticket.find("can never end") != std::string::npos, !serial) << ticket;
}

TEST_P(Closures, AWaitThroughOthersThrows) {
  const Variable other = engine.variable();
  std::string said;
  Gate pushed;
  push(own, [&] {
    if (GetParam().options.mode == EngineMode::threaded) {
      pushed.pass();
    } else {
      engine.push([] {}, {read(own), write(other)}, {.on_poison = OnPoison::run});
    }
    said = failure([&] { engine.wait(other); });
  });
  if (GetParam().options.mode == EngineMode::threaded)
    engine.push([] {}, {read(own), write(other)}, {.name = "behind", .on_poison = OnPoison::run});
  pushed.open();
  engine.push([] {}, {write(own)}).wait();
  EXPECT_NE(said.find("can never end"), std::string::npos) << said;
}

/// The lane's only thread waits for an op of its lane, whose closure waits for another: each gets a substitute.
TEST_P(Closures, AWaitForAnotherOpGetsASubstitute) {
  std::atomic<int> ended{0};
  const auto wait_for = [&](const Variable& v) {
    return [&, v] {
      EXPECT_EQ(failure([&] { engine.wait(v); }), "");
      ++ended;
    };
  };
  const Variable a = engine.variable(), b = engine.variable();
  Gate pushed;
  push(own, [&, first = wait_for(a)] {
    if (GetParam().options.mode == EngineMode::threaded) pushed.pass();
    engine.push([&, end = AtEnd(wait_for(b))] {}, {write(a)});
    engine.push([&] { ++ended; }, {write(b)});
    first();
  });
  pushed.open();
  engine.push([] {}, {write(own)}).wait();
  EXPECT_EQ(ended.load(), 3);
}

INSTANTIATE_TEST_SUITE_P(Forms, Closures,
                         ::testing::Values(Form{"Plain", {}, {}}, Form{"TwoThreads", {.threads = 2}, {}},
                                           Form{"Throws", {}, {}, false, false, true},
                                           Form{"Skipped", {}, {}, false, true},
                                           Form{"WithBytes", {}, {.bytes = 1 << 20}}, Form{"Later", {}, {}, true},
                                           Form{"SeesPoison", {}, {.on_poison = OnPoison::run}, false, true},
                                           Form{"Serial", {.mode = EngineMode::serial}, {}},
                                           Form{"SerialLater", {.mode = EngineMode::serial}, {}, true}),
                         [](const auto& form) { return std::string(form.param.name); });

/// An op on a device: its closure ends when the device is over with it, on a thread that confirms what devices do.
TEST(ClosuresOfDevices, AWaitForTheirOwnVariableThrows) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable();
  std::string said;
  engine.push(
      [&, end = AtEnd([&] { said = failure([&] { engine.wait(v); }); })](Context& c) { c.stream()->launch([] {}); },
      {write(v)}, {.on = sim(0)});
  engine.wait(v);
  EXPECT_NE(said.find("can never end"), std::string::npos) << said;
}

TEST(ClosuresOfDevices, AWaitForTheHostEnds) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable(), host = engine.variable();
  Gate gate;
  std::atomic<bool> waited{false};
  engine.push([&] { gate.pass(); }, {write(host)});
  engine.push([&, end = AtEnd([&] {
                    gate.open();
                    EXPECT_EQ(failure([&] { engine.wait(host); }), "");
                    waited = true;
                  })](Context& c) { c.stream()->launch([] {}); },
              {write(v)}, {.on = sim(0)});
  engine.wait(v);
  EXPECT_TRUE(waited.load());
}

/// What the device does next is not confirmed before the destructor returns.
TEST(ClosuresOfDevices, AWaitForWhatTheDeviceDoesNextThrows) {
  QuietEngine engine({.providers = {sim_devices(1)}});
  const Variable v = engine.variable(), next = engine.variable();
  Gate pushed;
  std::string said;
  engine.push([&, end = AtEnd([&] {
                    pushed.pass();
                    said = failure([&] { engine.wait(next); });
                  })](Context& c) { c.stream()->launch([] {}); },
              {write(v)}, {.on = sim(0)});
  engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(next)}, {.on = sim(0)});
  pushed.open();
  engine.wait(v);
  EXPECT_NE(said.find("not confirmed before"), std::string::npos) << said;
  engine.wait(next);
}

/// A captured closure ends with its program, when the last replay is over.
TEST(ClosuresOfPrograms, AWaitWhereTheLastReplayEnds) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  Signal ended;
  Gate gate;
  std::string said = "nothing";
  engine.push([&] { gate.pass(); }, {write(v)});
  {
    const Program program = engine.capture([&] {
      engine.push([&, end = AtEnd([&] {
                        engine.push([] {}, {write(w)});
                        said = failure([&] { engine.wait(v), engine.wait(w); });
                        ended.raise();
                      })] {},
                  {update(v)});
    });
    engine.replay(program);
  }
  gate.open();
  ended.wait();
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace sluice
