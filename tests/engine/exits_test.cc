// Failure cases 35 and 36: the process ends while ops are in flight. Each exit in a process of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

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

}  // namespace
}  // namespace sluice
