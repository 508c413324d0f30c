// Failure cases 35 and 36: the process ends while ops are in flight. Each exit in a process of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "support.h"

namespace sluice {
namespace {

void exit_with_ops_in_flight() {
  static std::atomic<int> ran{0};
  static const Variable v = Engine::instance().variable();
  for (int i = 0; i < 1000; ++i) Engine::instance().push([] { ran.fetch_add(1); }, {update(v)});
  std::exit(0);
}

void exit_with_a_static_engine() {
  static Engine engine({.mode_given = true, .threads = 2});
  static const Variable v = engine.variable();
  static thread_local const Variable mine = v;
  const CancelScope scope;
  const CancelScope::Guard guard(scope);
  for (int i = 0; i < 1000; ++i) engine.push([] {}, {update(mine)});
  std::exit(0);
}

void exit_with_a_serial_engine() {
  static Engine engine({.mode = EngineMode::serial, .mode_given = true});
  static Completion held;
  static const Variable v = engine.variable();
  engine.push([](Completion done) { held = std::move(done); }, {write(v)});
  engine.push([] {}, {read(v)});
  std::atexit([] { held.done(); });
  std::exit(0);
}

/// A library's own static object, made at its first use by an op, and so younger than the engine: gone before any exit
/// handler of the engine's.
struct Library {
  ~Library() { alive = false; }
  std::atomic<bool> alive{true};
};

void exit_with_ops_that_use_a_library(Engine& engine) {
  const Variable v = engine.variable();
  const auto use = [] {
    static Library library;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
    while (std::chrono::steady_clock::now() < end) {
    }
    if (!library.alive) std::_Exit(3);
  };
  engine.push(use, {update(v)}).wait();
  for (int i = 0; i < 200; ++i) engine.push(use, {update(v)});
  std::exit(0);
}

void exit_with_a_static_engine_that_uses_a_library() {
  static Engine engine({.mode_given = true, .threads = 1});
  exit_with_ops_that_use_a_library(engine);
}

void exit_from_an_op() {
  Engine::instance().push([] { std::quick_exit(0); }, {});
  Engine::instance().wait_all();
}

TEST(FailuresDeathTest, Case35And36ExitWithOpsInFlight) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_ops_in_flight(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_a_static_engine(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_a_serial_engine(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_ops_that_use_a_library(Engine::instance()), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_a_static_engine_that_uses_a_library(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_from_an_op(), ::testing::ExitedWithCode(0), "");
}

// ---- ops that do not end: said after a second, and waited for no longer than SLUICE_EXIT_SECONDS

void never_return() {
  for (;;) ::pause();
}

/// Such a process, from its own exit on.
void exit_with_a_stuck_op(Engine& engine) {
  testing::Signal begun;
  engine.push([&] { begun.raise(), never_return(); }, {}, {.name = "stuck"});
  begun.wait();
  std::exit(0);
}

void exit_with_a_stuck_op_of_the_default_engine() {
  setenv("SLUICE_EXIT_SECONDS", "1.5", 1);
  exit_with_a_stuck_op(Engine::instance());
}

void exit_with_a_stuck_op_of_a_static_engine() {
  setenv("SLUICE_EXIT_SECONDS", "1.5", 1);
  static Engine engine({.mode_given = true, .threads = 1});
  exit_with_a_stuck_op(engine);
}

void exit_with_an_open_completion() {
  setenv("SLUICE_EXIT_SECONDS", "1.5", 1);
  static testing::Held held;
  Engine::instance().push(held.body(), {}, {.name = "stuck"});
  held.begun.wait();
  std::exit(0);
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST(FailuresDeathTest, AnExitSaysWhatItWaitsForAndHasALimit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto exits : {exit_with_a_stuck_op_of_the_default_engine, exit_with_a_stuck_op_of_a_static_engine,
                           exit_with_an_open_completion}) {
    const Stopwatch watch;
    EXPECT_EXIT(exits(), ::testing::ExitedWithCode(0), "the end waits for 1 op in flight, for 0.* 'stuck' .*deadline");
    EXPECT_LT(watch.seconds(), 15);
  }
}

struct EngineWithALimit {
  explicit EngineWithALimit(const char* limit) {
    setenv("SLUICE_EXIT_SECONDS", limit, 1);
    engine.emplace(EngineOptions{.mode_given = true, .threads = 1});
    unsetenv("SLUICE_EXIT_SECONDS");
    engine->watch(std::chrono::hours(1), [this](const std::string& report) { told += report + "\n"; });
  }
  std::string told;
  std::optional<Engine> engine;
};

TEST(Failures, TheEndOfAnEngineSaysWhatItWaitsFor) {
  EngineWithALimit with("1.5");
  const Variable v = with.engine->variable("frame");
  Borrow held = with.engine->borrow(update(v));
  bool ran = false;
  with.engine->push([&] { ran = true; }, {read(v)}, {.name = "behind"});
  const Stopwatch watch;
  with.engine.reset();
  EXPECT_LT(watch.seconds(), 15);
  EXPECT_NE(with.told.find("the end waits for 2 ops in flight, for 0."), std::string::npos) << with.told;
  EXPECT_NE(with.told.find("'behind'"), std::string::npos) << with.told;
  EXPECT_NE(with.told.find("borrow"), std::string::npos) << with.told;
  held.release();
  EXPECT_FALSE(ran) << "cancelled";
}

TEST(Failures, TheEndOfACancelledEngineWaitsForBodiesAlone) {
  EngineWithALimit with("30");
  const Variable v = with.engine->variable("frame");
  Borrow held = with.engine->borrow(update(v));
  testing::Gate gate;
  std::atomic<bool> returned{false};
  testing::Signal begun;
  with.engine->push([&] { begun.raise(), gate.pass(), returned.store(true); }, {});
  begun.wait();
  EXPECT_FALSE(with.engine->stop(StopMode::cancel, std::chrono::milliseconds(1)));
  std::thread opens([&] { gate.open(); });
  const Stopwatch watch;
  with.engine.reset();
  EXPECT_LT(watch.seconds(), 15);
  EXPECT_TRUE(returned.load());
  opens.join();
}

TEST(Failures, TheLimitOfAnExitIsChecked) {
  for (const char* bad : {"soon", "-1", "1e9", "1s"}) {
    setenv("SLUICE_EXIT_SECONDS", bad, 1);
    EXPECT_THROW(Engine({.mode_given = true}), UsageError) << bad;
  }
  unsetenv("SLUICE_EXIT_SECONDS");
}

}  // namespace
}  // namespace sluice
