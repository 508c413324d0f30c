// Bounded: the caps on ops and bytes in flight (docs/semantics.md, 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "support.h"

namespace sluice {
namespace {
using testing::Gate;
using testing::Held;
using testing::QuietEngine;

TEST(Caps, Rule4AnOutsidePusherBlocksAtTheCapWhileSomethingRuns) {
  QuietEngine engine({.threads = 1, .max_ops = 4});
  Gate gate;
  std::atomic<int> pushed{0};
  std::atomic<std::size_t> most{0};
  std::thread pusher([&] {
    for (int i = 0; i < 20; ++i) {
      engine.push([&] { gate.pass(); }, {});
      pushed.fetch_add(1);
      most.store(std::max(most.load(), engine.in_flight()));
    }
  });
  while (pushed.load() < 4) std::this_thread::yield();
  const Variable v = engine.variable();
  EXPECT_FALSE(engine.wait_for(v, std::chrono::milliseconds(0)) && pushed.load() > 4);
  gate.open();
  pusher.join();
  engine.wait_all();
  EXPECT_LE(most.load(), 4u);
}

TEST(Caps, Rule4PushesFromOpsNeverBlockAndThrowAtTheHardCap) {
  QuietEngine engine({.threads = 1, .max_ops = 4});
  int pushed = 0;
  std::string what;
  engine.push(
      [&] {
        try {
          for (;; ++pushed) engine.push([] {}, {}, {.name = "inner"});
        } catch (const CapError& e) {
          what = e.what();
        }
      },
      {});
  while (engine.in_flight() > 0) engine.wait_all({.help = false});
  EXPECT_EQ(pushed, 15);
  EXPECT_NE(what.find("[inner] caps_test.cc:"), std::string::npos) << what;
  engine.push([] {}, {}).wait();
}

TEST(Caps, APushThatNeverBlocksGoesOnToTheHardCap) {
  QuietEngine engine({.threads = 1, .max_ops = 4});
  Gate gate;
  int pushed = 0;
  for (; pushed < 4; ++pushed) engine.push([&] { gate.pass(); }, {});
  EXPECT_THROW(
      {
        for (;; ++pushed) engine.push([] {}, {}, {.never_blocks = true});
      },
      CapError);
  EXPECT_EQ(pushed, 16);
  gate.open();
  engine.wait_all();
}

TEST(Caps, Rule4WhereAllAwaitsACompletionPushesGoOnToTheHardCap) {
  QuietEngine engine({.threads = 1, .max_ops = 4});
  const Variable v = engine.variable();
  Held held;
  engine.push(held.body(), {write(v)});
  held.begun.wait();
  int pushed = 1;
  EXPECT_THROW(
      {
        for (;; ++pushed) engine.push([] {}, {read(v)});
      },
      CapError);
  EXPECT_EQ(pushed, 16);
  held.completion.done();
  engine.wait_all();
  engine.push([] {}, {}).wait();
}

TEST(Caps, Rule4WhereAllAwaitsABorrowPushesGoOnToTheHardCap) {
  QuietEngine engine({.threads = 1, .max_ops = 4});
  const Variable v = engine.variable();
  Borrow held = engine.borrow(update(v));
  int pushed = 0;
  EXPECT_THROW(
      {
        for (;; ++pushed) engine.push([] {}, {read(v)});
      },
      CapError);
  EXPECT_EQ(pushed, 16);
  held.release();
  engine.wait_all();
}

TEST(Caps, Rule4BytesAreCappedAndAnOpAboveTheCapRunsAlone) {
  QuietEngine engine({.threads = 4, .max_bytes = 1000});
  std::atomic<int> bytes{0}, most{0}, alone{0};
  for (int i = 0; i < 200; ++i) {
    const int mine = i % 10 == 0 ? 5000 : 300;
    engine.push(
        [&, mine] {
          const int now = bytes.fetch_add(mine) + mine;
          if (mine > 1000) {
            alone.fetch_add(now == mine);
          } else {
            most.store(std::max(most.load(), now));
          }
          std::this_thread::yield();
          bytes.fetch_sub(mine);
        },
        {}, {.bytes = static_cast<std::size_t>(mine)});
  }
  engine.wait_all();
  EXPECT_EQ(alone.load(), 20);
  EXPECT_LE(most.load(), 1000);
}

TEST(Caps, Rule4BytesHaveAHardCapToo) {
  QuietEngine engine({.threads = 1, .max_bytes = 100});
  const Variable v = engine.variable();
  Borrow held = engine.borrow(update(v));
  int pushed = 0;
  EXPECT_THROW(
      {
        for (;; ++pushed) engine.push([] {}, {read(v)}, {.bytes = 50});
      },
      CapError);
  EXPECT_EQ(pushed, 8);
  held.release();
  engine.wait_all();
}

/// Sums of declared bytes do not come round.
TEST(Caps, Rule4BytesBeyondAllMeasure) {
  QuietEngine engine({.threads = 1, .max_bytes = 1000});
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  const auto by_an_op = [&](std::size_t bytes, int times) {
    int pushed = 0;
    engine
        .push(
            [&] {
              EXPECT_THROW(
                  {
                    for (; pushed < times; ++pushed) engine.push([] {}, {}, {.bytes = bytes});
                    throw CapError("none");
                  },
                  CapError);
            },
            {}, {.bytes = 600})
        .wait();
    engine.wait_all();
    return pushed;
  };
  for (const std::size_t bytes : {most, most - 100, most - 599, most / 2, std::size_t{5000}})
    EXPECT_EQ(by_an_op(bytes, 5), 1) << bytes;
  // And none is left behind.
  EXPECT_EQ(by_an_op(1, 400), 400);

  // A program's are the sum of its pushes'.
  const Program program = engine.capture([&] {
    for (int i = 0; i < 2; ++i) engine.push([] {}, {}, {.bytes = most / 2 + 51});
  });
  engine
      .push(
          [&] {
            engine.replay(program);
            EXPECT_THROW(engine.replay(program), CapError);
          },
          {}, {.bytes = 600})
      .wait();
  engine.wait_all();
  EXPECT_THROW(Engine({.mode_given = true, .max_bytes = (std::size_t{1} << 60) + 1}), UsageError);
}

/// However the thread that asks is held up.
TEST(Caps, Rule4WhatIsInFlightIsWithinTheCap) {
  QuietEngine engine({.threads = 2, .max_ops = 64});
  std::atomic<bool> over{false};
  std::vector<std::thread> pushers;
  for (int t = 0; t < 3; ++t)
    pushers.emplace_back([&] {
      const Variable v = engine.variable();
      while (!over.load()) engine.push([] {}, {update(v)});
    });
  std::size_t most = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 100; ++i) most = std::max(most, engine.in_flight());
  over.store(true);
  for (std::thread& t : pushers) t.join();
  EXPECT_LE(most, 64u);
}

/// What is pushed and has not run: counted from the moment that its closure is made, when the push has passed the cap.
class Counted {
 public:
  Counted(std::atomic<int>& now, std::atomic<int>& most) : now_(now), most_(most) {}
  Counted(Counted&& other) noexcept : now_(other.now_), most_(other.most_) {
    const int now = now_.fetch_add(1) + 1;
    for (int most = most_.load(); most < now && !most_.compare_exchange_weak(most, now);) {
    }
  }
  void operator()() const { now_.fetch_sub(1); }

 private:
  std::atomic<int>&now_, &most_;
};

/// The cap holds at every moment, also where pushers and workers are in each other's way.
TEST(Caps, Rule4ManyPushersAtASmallCap) {
  QuietEngine engine({.threads = 2, .max_ops = 3});
  std::atomic<int> now{0}, most{0};
  std::vector<std::thread> pushers;
  const Variable v = engine.variable();
  for (int p = 0; p < 6; ++p)
    pushers.emplace_back([&, p] {
      for (int i = 0; i < 2000; ++i)
        if ((i + p) % 3) {
          engine.push(Counted(now, most), {update(v)});
        } else {
          engine.push(Counted(now, most), {});
        }
    });
  for (auto& t : pushers) t.join();
  engine.wait_all();
  EXPECT_EQ(now.load(), 0);
  EXPECT_LE(most.load(), 3);
}

}  // namespace
}  // namespace sluice
