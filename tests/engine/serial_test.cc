// Serial mode: what a wait inside an op runs on that op's stack, and in which order (docs/semantics.md, 1, 3, 18).
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support.h"

namespace sluice {
namespace {

using testing::failure;
using testing::QuietEngine;
using testing::thrown;
using namespace std::chrono_literals;

struct SerialEngine : QuietEngine {
  SerialEngine() : QuietEngine({.mode = EngineMode::serial, .logical_cpus = 2}) {}
};

/// U waits for what W writes, and Z for what U writes: Z on U's stack could never end.
TEST(Serial, AWaitInsideAnOpRunsOnlyWhatItNeeds) {
  for (const bool waits_for_z : {false, true}) {
    SerialEngine engine;
    const Variable u = engine.variable("u"), w = engine.variable("w"), z = engine.variable("z");
    std::string log;
    engine.push(
        [&] {
          engine.push([&] { log += 'u', engine.wait(w), log += 'U'; }, {write(u)}, {.name = "U"});
          engine.push([&] { log += 'z', engine.wait(u), log += 'Z'; }, {write(z)}, {.name = "Z"});
          engine.push([&] { log += 'W'; }, {write(w)}, {.name = "W"});
          waits_for_z ? engine.wait(z) : engine.wait(u);
          log += '.';
        },
        {});
    EXPECT_NO_THROW(engine.wait_all());
    // Z, when it is run, needs U; U, when it is run, needs W.
    EXPECT_EQ(log, waits_for_z ? "zuWUZ." : "uWU.zZ");
  }
}

TEST(Serial, WhatAWaitNeedsIsRunInItsOrder) {
  SerialEngine engine;
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
  std::string log;
  const auto note = [&log](char what) { return [&log, what] { log += what; }; };
  engine.push(
      [&] {
        engine.push(note('x'), {});
        engine.push(note('1'), {read(a)});
        engine.push(note('y'), {update(c)});
        engine.push(note('2'), {read(a)}, {.on = cpu(1)});
        engine.push(note('3'), {update(a), write(b)}, {.priority = 0});
        engine.push(note('z'), {read(a)});
        const Ticket t = engine.push(note('4'), {read(b)});
        engine.push(note('v'), {update(b)});
        t.wait();
        log += '.';
        engine.wait(c);
        log += '.';
      },
      {});
  EXPECT_EQ(log, "1234.y.xzv");
}

TEST(Serial, AWaitWithALimitRunsOnlyWhatItNeedsToo) {
  SerialEngine engine;
  const Variable a = engine.variable(), b = engine.variable();
  std::string log;
  engine.push(
      [&] {
        engine.push([&] { log += 'b'; }, {update(b)});
        engine.push([&] { log += 'a'; }, {update(a)});
        EXPECT_TRUE(engine.wait_for(a, 10s));
        log += '.';
      },
      {});
  EXPECT_EQ(log, "a.b");
}

TEST(Serial, ACircleIsFoundThroughTheStack) {
  for (const bool bounded : {false, true}) {
    SerialEngine engine;
    const Variable a = engine.variable("a"), b = engine.variable("b");
    std::string inner, outer;
    engine.push(
        [&] {
          const Ticket t = engine.push(
              [&] {
                engine.push([] {}, {read(a), write(b)});
                inner = failure([&] { engine.wait(b); });
              },
              {}, {.name = "inner"});
          outer = failure([&] { bounded ? (void)t.wait_for(60s) : t.wait(); });
        },
        {write(a)}, {.name = "outer"});
    EXPECT_TRUE(inner.starts_with("inner: wait can never end")) << inner;
    EXPECT_EQ(outer, "");
    engine.wait_all();
  }
}

TEST(Serial, AnOpThatWaitsForItselfThroughItsCompletionThrows) {
  SerialEngine engine;
  const Variable a = engine.variable("a");
  engine.push(
      [&](Completion c) {
        engine.push([] {}, {read(a)}).wait();
        c.done();
      },
      {write(a)}, {.name = "waiter"});
  const ErrorRef root = thrown([&] { engine.wait(a); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::deadlock);
}

/// What answers the Completion that a wait is for stands behind nothing.
TEST(Serial, AQueuedOpMayAnswerWhatAWaitIsFor) {
  SerialEngine engine;
  const Variable a = engine.variable();
  std::string log;
  Completion held;
  engine.push(
      [&] {
        engine.push([&](Completion c) { held = std::move(c); }, {write(a)});
        engine.push([&] { log += '1'; }, {});
        engine.push([&] { log += '2', held.done(); }, {});
        engine.wait(a);
        log += '.';
      },
      {});
  EXPECT_EQ(log, "12.");
}

TEST(Serial, AReplayIsRunWhereItIsNeeded) {
  SerialEngine engine;
  const Variable a = engine.variable(), b = engine.variable();
  std::string log;
  const Program program = engine.capture([&] {
    engine.push([&] { log += '1'; }, {update(a)});
    engine.push([&] { log += '2'; }, {update(a)});
  });
  engine.push(
      [&] {
        engine.push([&] { log += 'b'; }, {update(b)});
        engine.replay(program);
        engine.wait(a);
        log += '.';
      },
      {});
  EXPECT_EQ(log, "12.b");
}

TEST(Serial, ManyOpsWaitedForOneByOne) {
  SerialEngine engine;
  constexpr int kOps = 2000;
  std::vector<int> ran;
  engine.push(
      [&] {
        std::vector<Ticket> tickets;
        for (int i = 0; i < kOps; ++i) tickets.push_back(engine.push([&ran, i] { ran.push_back(i); }, {}));
        for (int i = kOps; i-- > 0;) tickets[static_cast<std::size_t>(i)].wait();
      },
      {});
  ASSERT_EQ(ran.size(), kOps);
  for (int i = 0; i < kOps; ++i) ASSERT_EQ(ran[static_cast<std::size_t>(i)], kOps - 1 - i);
}

/// The processor's time that the calling thread has had, which other load does not change.
std::chrono::nanoseconds thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// Each op pushes the next and waits for it; now and then there is one that is not needed. Returns the least time of
/// three runs, all of it this thread's.
std::chrono::nanoseconds deep_stack(int depth) {
  auto least = std::chrono::nanoseconds::max();
  for (int run = 0; run < 3; ++run) {
    SerialEngine engine;
    const Variable other = engine.variable();
    std::vector<Variable> v(static_cast<std::size_t>(depth));
    for (Variable& x : v) x = engine.variable();
    int deepest = 0, others = 0;
    std::function<void(int)> go = [&](int i) {
      deepest = std::max(deepest, i + 1);
      if (i + 1 == depth) return;
      const auto at = static_cast<std::size_t>(i + 1);
      if (i % 100 == 0) engine.push([&] { ++others; }, {update(other)});
      engine.push([&go, i] { go(i + 1); }, {write(v[at])}, {.name = "deeper"});
      if (i % 10 == 0) {
        EXPECT_TRUE(engine.wait_for(v[at], 100s));
      } else {
        engine.wait(v[at]);
      }
    };
    const auto start = thread_time();
    engine.push([&] { go(0); }, {write(v[0])});
    least = std::min(least, thread_time() - start);
    EXPECT_EQ(deepest, depth);
    EXPECT_EQ(others, (depth + 98) / 100);
  }
  return least;
}

/// Each wait looks at what is below it: four times the depth may take sixteen times the time, and not 64 times.
TEST(Serial, DeepStacksOfWaits) {
#ifdef SLUICE_SANITIZED
  constexpr int kDepth = 100;
#else
  constexpr int kDepth = 500;
#endif
  const auto shallow = deep_stack(kDepth), deep = deep_stack(4 * kDepth);
  std::printf("%d waits: %.4f s, %d: %.4f s\n", kDepth, 1e-9 * static_cast<double>(shallow.count()), 4 * kDepth,
              1e-9 * static_cast<double>(deep.count()));
#ifndef SLUICE_SANITIZED
  EXPECT_LT(deep.count(), 40 * shallow.count());
#endif
}

/// At the bottom of a deep stack a wait for an op further up can never end, and is told so.
TEST(Serial, ACircleAtTheBottomOfADeepStack) {
  constexpr int kDepth = 50;
  SerialEngine engine;
  std::vector<Variable> v(kDepth);
  for (Variable& x : v) x = engine.variable();
  std::string said;
  std::function<void(int)> go = [&](int i) {
    if (i + 1 == kDepth) {
      said = failure([&] { engine.wait(v[7]); });
      return;
    }
    const auto at = static_cast<std::size_t>(i + 1);
    engine.push([&go, i] { go(i + 1); }, {write(v[at])}, {.name = "deeper"});
    engine.wait(v[at]);
  };
  engine.push([&] { go(0); }, {write(v[0])});
  EXPECT_NE(said.find("can never end"), std::string::npos) << said;
  EXPECT_EQ(failure([&] { engine.wait(v[0]); }), "");
}

}  // namespace
}  // namespace sluice
