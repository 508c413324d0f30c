// Failure cases 9, 14, 20, 25, 26 and 28: who is woken, by whom, and what a waiter costs meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "process.h"
#include "sluice/engine/detail/policy.h"
#include "sluice/engine/detail/slot.h"
#include "support.h"

namespace sluice {
namespace {
using testing::Gate;
using testing::QuietEngine;

/// A lane whose first threads cannot be started.
TEST(WakeUps, Case9AThreadThatCannotBeStartedFailsNoOp) {
  static std::atomic<int> failures{0};
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  failures.store(2);
  detail::SystemPolicy::before_start.store([] {
    if (failures.fetch_sub(1) > 0)
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  int ran = 0;
  for (int i = 0; i < 10; ++i) engine.push([&] { ++ran; }, {update(v)});
  engine.wait(v);
  detail::SystemPolicy::before_start.store(nullptr);
  EXPECT_EQ(ran, 10);
  EXPECT_LT(failures.load(), 0);
}

/// Where no thread can be had at all, the thread that waits runs the ops: never the stack of an op that waits.
TEST(WakeUps, Case20WithoutThreadsAnOutsideWaiterRunsTheOps) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  detail::SystemPolicy::before_start.store(
      [] { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); });
  std::thread::id ran_on;
  bool on_its_stack = false, inside = false;
  engine.push([&] { ran_on = std::this_thread::get_id(); }, {update(v)});
  const Ticket waits = engine.push(
      [&] {
        inside = true;
        engine.push([&] { on_its_stack = inside; }, {update(w)});
        engine.wait(w);  // throws: there is no thread for what it waits for
      },
      {update(v)}, {.name = "waits"});
  const std::string why = testing::failure([&] { waits.wait(); });
  detail::SystemPolicy::before_start.store(nullptr);
  EXPECT_EQ(why, "waits: wait: no thread can be started to end it");
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  inside = false;
  engine.wait(w);
  EXPECT_FALSE(on_its_stack);
  engine.push([] {}, {write(v)});
  engine.wait(v);
}

TEST(WakeUps, Case14EveryKindOfWaitReturnsWhenABodyThrows) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  for (int i = 0; i < 200; ++i) {
    const Ticket t = engine.push([] { throw std::runtime_error("x"); }, {write(v)}, {.name = "op"});
    const auto wait = [&] {
      switch (i % 5) {
        case 0:
          return engine.wait(v);
        case 1:
          return t.wait();
        case 2:
          return static_cast<void>(engine.wait_for(v, std::chrono::hours(1)));
        case 3:
          return static_cast<void>(t.wait_for(std::chrono::hours(1)));
        default:
          engine.borrow(read(v)).release();
      }
    };
    ASSERT_EQ(testing::failure(wait), "op: x") << i;
  }
  EXPECT_THROW(engine.wait_all(), AggregateError);
  EXPECT_EQ(engine.in_flight(), 0u);
}

TEST(WakeUps, Case25NobodySleepsWithoutAnEnd) {
  detail::SystemPolicy::Parker parker;
  const auto begin = std::chrono::steady_clock::now();
  parker.wait(std::chrono::nanoseconds::max());  // nobody signals, as when the C library loses a wake-up
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

/// Ops that a worker took in one go, taken out by all at once: each once, over the end of the counters.
TEST(WakeUps, Case26AnOpInABatchIsTakenOnce) {
  using Op = detail::Runnable<detail::SystemPolicy>;
  detail::Batch<detail::SystemPolicy> batch;
  batch.begin_at(~std::uint32_t{0} - 1000);
  constexpr int kRounds = 5'000;
  constexpr std::size_t kEach = detail::Batch<detail::SystemPolicy>::kSize;
  std::vector<Op> ops(kEach);
  std::vector<std::atomic<int>> taken(kEach);
  std::atomic<bool> ended{false};
  const auto take = [&] {
    if (Op* op = batch.take()) taken[static_cast<std::size_t>(op - ops.data())].fetch_add(1);
  };
  std::vector<std::thread> thieves;
  for (int t = 0; t < 3; ++t)
    thieves.emplace_back([&] {
      while (!ended.load()) take();
    });
  std::vector<Op*> all;
  for (Op& op : ops) all.push_back(&op);
  for (int round = 1; round <= kRounds; ++round) {
    const std::size_t count = 1 + static_cast<std::size_t>(round * 7) % kEach;
    batch.put(all.data(), count);
    while (!batch.empty()) take();
    for (std::size_t i = 0; i < kEach; ++i) {
      while (i < count && taken[i].load() == 0) std::this_thread::yield();  // its thief is about to say so
      ASSERT_EQ(taken[i].exchange(0), i < count) << "round " << round;
    }
  }
  ended.store(true);
  for (auto& t : thieves) t.join();
}

/// Waiters who spin would keep the one that they wait for from its core.
TEST(WakeUps, Case28WaitersYieldAndPark) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  Gate gate;
  const Ticket t = engine.push([&] { gate.pass(); }, {update(v)});
  std::vector<std::thread> waiters;
  for (int i = 0; i < 16; ++i)
    waiters.emplace_back([&, i] {
      if (i % 2) return engine.wait(v);
      t.wait();
    });
  double least = 1;  // of several spans: a busy machine adds what is not the engine's
  for (int span = 0; span < 10 && least > 0.25; ++span) {
    const double before = testing::cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the time that is measured
    least = std::min(least, testing::cpu_seconds() - before);
  }
  gate.open();
  for (auto& w : waiters) w.join();
  EXPECT_LT(least, 0.25) << "of 1 s that two cores have in that time";
}

}  // namespace
}  // namespace sluice
