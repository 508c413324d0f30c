// Errors that nobody looks at: how many the engine keeps, and that those it lets go reach the hook
// (docs/decisions/0005-kept-errors.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "faults.h"
#include "support.h"

namespace sluice {
namespace {

constexpr std::size_t kKept = 4096;  ///< of those that poison nothing, of each kind

/// An engine whose hook writes down what it is told. Few ops are in flight, so that many have failed when one is
/// pushed.
struct Listening : Engine {
  Listening() : Engine({.mode_given = true, .threads = 1, .max_ops = 1024}) {
    on_unobserved_error([this](const ErrorRoot& root) { told.push_back(root.sequence); });
  }
  ~Listening() { stop(); }  // tells `told`
  /// Ops that fail and are healed by the next write.
  void fail(const Variable& v, int times) {
    for (int i = 0; i < times; ++i) push([] { throw std::runtime_error("x"); }, {write(v)}, {.name = "healed"});
    push([] {}, {write(v)});
    wait(v);
  }
  /// Ops that fail and write nothing.
  void fail(int times) {
    const Variable v = variable();
    for (int i = 0; i < times; ++i) push([] { throw std::runtime_error("x"); }, {order(v)}, {.name = "wrote nothing"});
    push([] {}, {write(v)}).wait();
  }
  /// Of so many pushes one looks whether errors have to go.
  void push_some() {
    const Variable v = variable();
    for (int i = 0; i < 100; ++i) push([] {}, {update(v)});
  }
  std::size_t thrown_by_wait_all() {
    try {
      wait_all();
    } catch (const AggregateError& e) {
      return e.roots().size();
    }
    return 0;
  }
  bool told_each_once() {
    std::vector<std::uint64_t> sorted = told;
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  }
  std::vector<std::uint64_t> told;
};

TEST(KeptErrors, HealedOnesAreToldEarlyAndNoneIsLost) {
#ifdef SLUICE_SANITIZED
  constexpr int kErrors = 30'000;
#else
  constexpr int kErrors = 200'000;
#endif
  Listening engine;
  const Variable v = engine.variable();
  engine.fail(v, kErrors / 2);
  const long live = testing::Allocations::live.load();
  const std::size_t early = engine.told.size();
  EXPECT_GE(early + 3 * kKept, kErrors / 2);
  EXPECT_TRUE(std::is_sorted(engine.told.begin(), engine.told.end())) << "the oldest first";
  engine.fail(v, kErrors / 2);
#ifndef SLUICE_SANITIZED  // with fewer errors tickets remember more and more of them, up to 65,536
  EXPECT_LE(testing::Allocations::live.load() - live, 4 * static_cast<long>(kKept));
#else
  static_cast<void>(live);
#endif
  EXPECT_EQ(engine.thrown_by_wait_all(), 0u);
  engine.stop();
  EXPECT_EQ(engine.told.size(), static_cast<std::size_t>(kErrors));
  EXPECT_TRUE(engine.told_each_once());
}

TEST(KeptErrors, OfOpsThatWroteNothingWaitAllThrowsTheLatest) {
  Listening engine;
  constexpr std::size_t kErrors = 9 * kKept / 4;
  engine.fail(static_cast<int>(kErrors));
  engine.push_some();
  const std::size_t told = engine.told.size(), thrown = engine.thrown_by_wait_all();
  EXPECT_GT(told, 0u);
  EXPECT_GE(thrown, kKept);
  EXPECT_EQ(told + thrown, kErrors) << "each is thrown or told";
  engine.stop();
  EXPECT_EQ(engine.told.size(), told) << "a throw is an observation";
}

/// However many healed errors come and go, what wait_all has to throw stays.
TEST(KeptErrors, WhatPoisonsALiveVariableStays) {
  Listening engine;
  std::vector<Variable> live;
  const Variable turns = engine.variable();
  for (std::size_t i = 0; i < 3 * kKept / 2; ++i) {
    live.push_back(engine.variable());
    engine.push([] { throw std::runtime_error("x"); }, {write(live.back()), order(turns)}, {.name = "live"});
  }
  engine.fail(100);
  engine.fail(engine.variable(), static_cast<int>(4 * kKept));
  engine.push_some();
  EXPECT_GT(engine.told.size(), 0u);
  EXPECT_EQ(engine.thrown_by_wait_all(), live.size() + 100);
  for (const Variable& v : live) EXPECT_THROW(engine.wait(v), Error);
  live.clear();
  EXPECT_EQ(engine.thrown_by_wait_all(), 100u);
  EXPECT_TRUE(engine.told_each_once());
}

TEST(KeptErrors, ObservedOnesGoInSilence) {
  Listening engine;
  const Variable v = engine.variable();
  std::size_t thrown = 0;
  for (std::size_t i = 0; i < 9 * kKept / 4; ++i) {
    engine.push([] { throw std::runtime_error("x"); }, {write(v)});
    thrown += testing::thrown([&] { engine.wait(v); }) != nullptr;
  }
  engine.push_some();
  engine.stop();
  EXPECT_EQ(thrown, 9 * kKept / 4);
  EXPECT_EQ(engine.told.size(), 0u);
}

/// The oldest go first, so what is thrown and poisons again has been told of once.
TEST(KeptErrors, AnErrorThatWasToldMayStillBeThrown) {
  Listening engine;
  const Variable v = engine.variable(), late = engine.variable();
  const Ticket first = engine.push([] { throw std::runtime_error("x"); }, {write(v)}, {.name = "first"});
  testing::Held held;
  // Skipped for the first error, and so poisons with it; but only later.
  engine.push(held.body(), {update(late)});
  held.begun.wait();
  const Ticket carrier = engine.push([] {}, {read(v), update(late)});
  engine.fail(engine.variable(), static_cast<int>(4 * kKept));
  engine.push_some();
  held.completion.done();
  EXPECT_THROW(carrier.wait(), Error);
  EXPECT_THROW(engine.wait(late), Error);
  EXPECT_THROW(engine.wait(v), Error);
  EXPECT_THROW(first.wait(), Error);
  EXPECT_EQ(engine.thrown_by_wait_all(), 1u);
  engine.stop();
  EXPECT_TRUE(engine.told_each_once());
}

/// What the hook throws comes out of the push that called it, and nothing was pushed.
TEST(KeptErrors, TheHookMayThrowAndPush) {
  Engine engine({.mode_given = true, .threads = 1, .max_ops = 1024});
  const Variable v = engine.variable(), of_hook = engine.variable();
  int told = 0, thrown = 0, pushed_by_hook = 0, ran = 0, pushed = 0;
  engine.on_unobserved_error([&](const ErrorRoot&) {
    engine.push([&] { ++pushed_by_hook; }, {update(of_hook)});
    engine.wait(of_hook);
    if (++told % 1000 == 0) throw std::runtime_error("of the hook");
  });
  const auto push_or_catch = [&](auto&& push) {
    try {
      push();
      return true;
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "of the hook");
      ++thrown;
      return false;
    }
  };
  for (int i = 0; i < 3 * static_cast<int>(kKept); ++i) {
    push_or_catch([&] { engine.push([] { throw std::runtime_error("x"); }, {write(v)}); });
    pushed += push_or_catch([&] { engine.push([&] { ++ran; }, {write(v)}); });
  }
  engine.wait(v);
  engine.on_unobserved_error([](const ErrorRoot&) {});
  EXPECT_GT(thrown, 0);
  EXPECT_EQ(thrown, told / 1000);
  EXPECT_EQ(ran, pushed);
  EXPECT_EQ(pushed_by_hook, told);
}

/// Where only ops push, their pushes tell.
TEST(KeptErrors, PushesFromOpsTellToo) {
  Engine engine({.mode_given = true, .threads = 1, .max_ops = 1024});
  std::atomic<std::size_t> told{0};
  engine.on_unobserved_error([&](const ErrorRoot&) { told.fetch_add(1); });
  const Variable v = engine.variable();
  const Variable turns = engine.variable();
  std::atomic<int> left{3 * static_cast<int>(kKept)};
  std::function<void()> again = [&] {
    if (left.fetch_sub(1) <= 0) return;
    engine.push([] { throw std::runtime_error("x"); }, {write(engine.variable()), order(turns)});
    engine.push([&] { again(); }, {update(v), order(turns)});  // no faster than those that fail
  };
  engine.push([&] { again(); }, {update(v)});
  while (engine.in_flight() > 0) engine.wait_for(v, std::chrono::milliseconds(100));
  EXPECT_GT(told.load(), 0u);
  engine.stop();
}

TEST(KeptErrors, SeveralPushersAtOnce) {
  Engine engine({.mode_given = true, .threads = 2, .max_ops = 1024});
  std::atomic<std::size_t> told{0};
  std::atomic<int> at_once{0}, most{0};
  engine.on_unobserved_error([&](const ErrorRoot&) {
    most.store(std::max(most.load(), at_once.fetch_add(1) + 1));
    told.fetch_add(1);
    at_once.fetch_sub(1);
  });
  constexpr std::size_t kEach = kKept;
  const Variable turns = engine.variable();
  std::vector<std::thread> pushers;
  for (int p = 0; p < 3; ++p)
    pushers.emplace_back([&] {
      for (std::size_t i = 0; i < kEach; ++i)
        engine.push([] { throw std::runtime_error("x"); }, {write(engine.variable()), order(turns)});
    });
  for (auto& t : pushers) t.join();
  EXPECT_EQ(most.load(), 1) << "one at a time";
  engine.stop();
  EXPECT_EQ(told.load(), 3 * kEach);
}

}  // namespace
}  // namespace sluice
