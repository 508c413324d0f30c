// Capture and replay: a replay does what the same pushes do one by one.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::QuietEngine;
using testing::thrown;

TEST(Replay, RunsTheCapturedPushesEachTime) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  int x = 1, y = 0;
  const Program program = engine.capture([&] {
    EXPECT_TRUE(engine.push([&] { x *= 2; }, {update(a)}).done());
    engine.push([&] { y = x + 1; }, {read(a), write(b)});
    engine.push([&] { x += y; }, {update(a), read(b)});
  });
  EXPECT_EQ(program.size(), 3u);
  EXPECT_EQ(x, 1) << "a capture runs nothing";
  for (int i = 0; i < 3; ++i) engine.replay(program);
  engine.push([&] { x += 1000; }, {update(a)});
  engine.replay(program).wait();
  engine.wait(b);
  int u = 1, v = 0;
  for (int i = 0; i < 4; ++i) {
    if (i == 3) u += 1000;
    u *= 2, v = u + 1, u += v;
  }
  EXPECT_EQ(x, u);
  EXPECT_EQ(y, v);
}

TEST(Replay, StandsInItsPlaceInTheOrder) {
  QuietEngine engine;
  const Variable a = engine.variable();
  testing::Held held;
  int x = 0, seen = -1;
  engine.push(held.body(), {write(a)});
  const Program program = engine.capture([&] { engine.push([&] { ++x; }, {update(a)}); });
  const Ticket replay = engine.replay(program);
  engine.push([&] { seen = x; }, {read(a)});
  held.begun.wait();
  EXPECT_FALSE(replay.done());
  EXPECT_EQ(x, 0);
  held.completion.done();
  engine.wait_all();
  EXPECT_EQ(seen, 1);
}

/// One thread could run nothing beside anything, so no counts are needed. By its edges alone the first chain would run
/// to its end before the second.
TEST(Replay, OnOneThreadRunsInTheOrderOfThePushes) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable(), b = engine.variable();
  std::vector<int> order, expected;
  const Program program = engine.capture([&] {
    for (int i = 0; i < 10; ++i) engine.push([&order, i] { order.push_back(i); }, {update(i % 2 ? a : b)});
  });
  for (int k = 0; k < 100; ++k) {
    engine.replay(program);
    for (int i = 0; i < 10; ++i) expected.push_back(i);
  }
  engine.wait_all({.help = false});
  EXPECT_EQ(order, expected);
}

TEST(Replay, OnOneThreadAnOpenCompletionHoldsNothingElseUp) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable(), b = engine.variable();
  Completion open;
  testing::Gate ran;
  const Program program = engine.capture([&] {
    engine.push([&](Completion c) { open = std::move(c); }, {update(a)});
    engine.push([&] { ran.open(); }, {update(b)});
  });
  const Ticket replay = engine.replay(program);
  ran.pass();
  EXPECT_FALSE(replay.done());
  open.done();
  replay.wait();
}

TEST(Replay, OnOneThreadPrioritiesStillCount) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable(), b = engine.variable();
  std::vector<int> order;
  const Program program = engine.capture([&] {
    engine.push([&] { order.push_back(0); }, {update(a)});
    engine.push([&] { order.push_back(7); }, {update(b)}, {.priority = 7});
  });
  testing::Signal begun;
  testing::Gate both_are_queued;
  engine.push([&] { begun.raise(), both_are_queued.pass(); }, {});
  begun.wait();
  const Ticket replay = engine.replay(program);
  both_are_queued.open();
  replay.wait();
  EXPECT_EQ(order, (std::vector{7, 0}));
}

/// Two readers meet inside their bodies, behind a writer, in each replay.
TEST(Replay, RunsInParallel) {
  QuietEngine engine({.threads = 2});
  const Variable a = engine.variable(), b = engine.variable(), c = engine.variable();
  std::unique_ptr<testing::Meeting> meeting;
  const Program program = engine.capture([&] {
    engine.push([&] { meeting = std::make_unique<testing::Meeting>(2); }, {write(a)});
    engine.push([&] { meeting->arrive_and_wait(); }, {read(a), write(b)});
    engine.push([&] { meeting->arrive_and_wait(); }, {read(a), write(c)});
  });
  for (int i = 0; i < 200; ++i) engine.replay(program);
  engine.wait_all();
}

TEST(Replay, NeverRunsBesideItself) {
  QuietEngine engine({.threads = 2});
  std::atomic<int> inside{0}, runs{0};
  const Program program = engine.capture([&] {
    engine.push(
        [&] {
          EXPECT_EQ(inside.fetch_add(1), 0);
          ++runs;
          inside.fetch_sub(1);
        },
        {});
  });
  std::thread other([&] {
    for (int i = 0; i < 300; ++i) engine.replay(program);
  });
  for (int i = 0; i < 300; ++i) engine.replay(program);
  other.join();
  engine.wait_all();
  EXPECT_EQ(runs, 600);
}

// ---- errors and cancellation

TEST(Replay, ThrowsTheFirstErrorOfTheCaptureAndGoesOnWhereItCan) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b"), c = engine.variable("c");
  bool bad = true;
  int ran = 0;
  const Program program = engine.capture([&] {
    engine.push(
        [&] {
          if (bad) throw std::runtime_error("no");
        },
        {write(a)}, {.name = "first"});
    engine.push(
        [&] {
          if (bad) throw std::runtime_error("neither");
        },
        {write(b)}, {.name = "second"});
    engine.push([&] { ++ran; }, {read(a)});
    engine.push([&] { ran += 10; }, {write(c)});
  });
  const Ticket first = engine.replay(program);
  EXPECT_EQ(failure([&] { first.wait(); }), "first: no");
  EXPECT_EQ(failure([&] { engine.wait(b); }), "second: neither");
  EXPECT_EQ(ran, 10);
  bad = false;
  const Ticket second = engine.replay(program);
  second.wait();
  engine.wait(a), engine.wait(b);
  EXPECT_EQ(ran, 21);
}

/// What one run says of itself is not taken for the next.
TEST(Replay, IntactOrTornIsToldAnewInEachRun) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  bool bad = false;
  const Program program = engine.capture([&] {
    engine.push(
        [&](Context& context) {
          if (bad) throw std::runtime_error("torn");
          context.wrote_nothing();
        },
        {read(b), update(a)});
  });
  const auto stays = [&] {
    engine.recover(a);
    return failure([&] { engine.wait(a); });
  };
  engine.replay(program).wait();
  bad = true;
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_NE(stays(), "") << "the run before said that it wrote nothing";
  engine.push([] {}, {write(a)});
  engine.push([] { throw std::runtime_error("x"); }, {write(b)});
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_EQ(stays(), "") << "skipped";
  engine.push([] {}, {write(b)});
  EXPECT_NE(failure([&] { engine.replay(program).wait(); }), "");
  EXPECT_NE(stays(), "") << "the run before was skipped";
}

TEST(Replay, CanBeCancelledBeforeItBegins) {
  QuietEngine engine;
  const Variable a = engine.variable("a"), b = engine.variable("b");
  testing::Held held;
  std::atomic<int> ran = 0;  // the two may run beside each other
  const Program program = engine.capture([&] {
    engine.push([&] { ++ran; }, {update(a)});
    engine.push([&] { ++ran; }, {update(b)});
  });
  engine.push(held.body(), {update(a)});
  const Ticket replay = engine.replay(program);
  EXPECT_TRUE(replay.cancel());
  held.begun.wait();
  held.completion.done();
  const ErrorRef root = thrown([&] { replay.wait(); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::cancelled);
  EXPECT_EQ(thrown([&] { engine.wait(b); }), root);
  EXPECT_EQ(ran, 0);
  engine.recover(a), engine.recover(b);  // intact: nothing was written
  engine.wait(a), engine.wait(b);
  engine.replay(program).wait();
  EXPECT_EQ(ran, 2);
}

TEST(Replay, AScopeCancelsWhatHasNotBegun) {
  QuietEngine engine({.threads = 1});
  const Variable a = engine.variable("a");
  CancelScope scope;
  int ran = 0;
  const Program program = engine.capture([&] {
    engine.push([&] { ++ran, scope.cancel(); }, {update(a)});
    engine.push([&] { ++ran; }, {update(a)});
    engine.push([&] { ++ran; }, {update(a)});
  });
  {
    const CancelScope::Guard guard(scope);
    engine.replay(program);
  }
  const ErrorRef root = thrown([&] { engine.wait(a); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::cancelled);
  EXPECT_EQ(ran, 1);
}

TEST(Replay, CompletionsAndStreams) {
  QuietEngine engine(EngineOptions{.threads = 2, .providers = {sim_devices(2)}});
  const Variable a = engine.variable("a"), b = engine.variable("b");
  testing::Held held;
  int x = 0, y = 0;
  const Program program = engine.capture([&] {
    engine.push(held.body(), {write(a)});
    engine.push([&](Context& context) { context.stream()->launch([&] { y = 10 * ++x; }); }, {read(a), write(b)},
                {.on = sim(0)});
    engine.push(
        [&](Context& context) {
          context.stream()->launch([&] {
            ++y;
            if (x == 2) throw std::runtime_error("late");
          });
        },
        {update(b)}, {.on = sim(1), .name = "kernel"});
  });
  const Ticket one = engine.replay(program);
  held.begun.wait();
  EXPECT_FALSE(one.done());
  held.completion.done();
  one.wait();
  EXPECT_EQ(y, 11);
  held.begun.lower();
  const Ticket two = engine.replay(program);
  held.begun.wait();
  held.completion.done();
  EXPECT_EQ(failure([&] { two.wait(); }), "kernel: late");
  EXPECT_EQ(failure([&] { engine.wait(b); }), "kernel: late");
}

TEST(Replay, StopSkipsWhatHasNotBegun) {
  QuietEngine engine;
  const Variable a = engine.variable("a");
  testing::Held held;
  int ran = 0;
  engine.push(held.body(), {write(a)});
  const Program program = engine.capture([&] { engine.push([&] { ++ran; }, {update(a)}); });
  engine.replay(program);
  held.begun.wait();
  EXPECT_FALSE(engine.stop(StopMode::cancel, std::chrono::milliseconds(1)));
  held.completion.done();
  EXPECT_TRUE(engine.stop(StopMode::cancel));
  EXPECT_EQ(ran, 0);
  EXPECT_THROW(engine.replay(program), StoppedError);
}

// ---- use and misuse

std::string usage(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Replay, MisuseThrows) {
  QuietEngine engine, other;
  const Variable a = engine.variable(), b = other.variable();
  EXPECT_NE(usage([&] { engine.replay(Program()); }).find("no program"), std::string::npos);
  const Program program = engine.capture([&] { engine.push([] {}, {write(a)}); });
  EXPECT_NE(usage([&] { other.replay(program); }).find("another engine"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.wait(a); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.wait_all(); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.recover(a); }); }).find("inside a capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.replay(program); }); }).find("inside a capture"),
            std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { engine.capture([] {}); }); }).find("another capture"), std::string::npos);
  EXPECT_NE(usage([&] { engine.capture([&] { other.push([] {}, {write(b)}); }); }).find("another engine"),
            std::string::npos);
  EXPECT_THROW(engine.capture([] { throw std::runtime_error("x"); }), std::runtime_error);
  const Program pushes = engine.capture([&] { engine.push([&] { engine.push([] {}, {}); }, {}, {.name = "outer"}); });
  EXPECT_NE(failure([&] { engine.replay(pushes).wait(); }).find("may not push"), std::string::npos);
  const Program waits = engine.capture([&] { engine.push([&] { engine.wait(a); }, {update(a)}, {.name = "self"}); });
  EXPECT_EQ(thrown([&] { engine.replay(waits).wait(); })->kind, ErrorKind::deadlock);
  engine.push([] {}, {write(a)});
  engine.wait(a);  // and all goes on as before
  engine.replay(engine.capture([] {})).wait();
}

/// A closure that counts its lives.
struct Counted {
  std::shared_ptr<int> lives;
  char rest[96];
  void operator()() const {}
};

TEST(Replay, ClosuresLiveAsLongAsTheProgram) {
  auto lives = std::make_shared<int>(0);
  testing::Held held;
  Program kept;
  {
    QuietEngine engine;
    const Variable a = engine.variable();
    engine.push(held.body(), {write(a)});
    {
      const Program program = engine.capture([&] {
        engine.push([lives] {}, {update(a)});
        engine.push(Counted{lives, {}}, {update(a)});
      });
      engine.replay(program);
      EXPECT_EQ(lives.use_count(), 3);
      kept = engine.capture([&] { engine.push([lives] {}, {read(a)}); });
    }
    EXPECT_EQ(lives.use_count(), 4) << "a replay in flight keeps it";
    held.begun.wait();
    held.completion.done();
    engine.wait_all();
    while (lives.use_count() != 2) std::this_thread::yield();  // the op is over a moment before its record is
  }
  EXPECT_EQ(lives.use_count(), 2);
  kept = Program();  // after its engine
  EXPECT_EQ(lives.use_count(), 1);
}

TEST(Replay, IsTracedOpByOp) {
  QuietEngine engine;
  const Variable a = engine.variable();
  const Program program = engine.capture([&] {
    engine.push([] {}, {write(a)}, {.name = "one"});
    engine.push([] {}, {read(a)}, {.name = "two"});
  });
  engine.start_trace();
  engine.replay(program);
  engine.replay(program).wait();
  const auto events = engine.stop_trace();
  int one = 0, two = 0;
  for (const TraceEvent& e : events) one += e.name == std::string("one"), two += e.name == std::string("two");
  EXPECT_EQ(one, 2);
  EXPECT_EQ(two, 2);
}

/// What restores a scope restores no capture: neither one that is over, nor one that goes on.
TEST(Replay, AScopeThatOutlivesACaptureEndsNothingAndBeginsNothing) {
  QuietEngine engine;
  const Variable v = engine.variable();
  int runs = 0;
  std::optional<ScopeGuard> before, inside;
  ScopeState copy;
  before.emplace();
  const Program program = engine.capture([&] {
    inside.emplace();
    copy = current_scope();
    before.reset();
    engine.push([&] { ++runs; }, {update(v)});  // recorded all the same
  });
  EXPECT_EQ(runs, 0);
  inside.reset();
  engine.push([&] { runs += 10; }, {update(v)}).wait();
  EXPECT_EQ(runs, 10);
  current_scope() = copy;
  engine.push([&] { runs += 10; }, {update(v)}).wait();
  EXPECT_EQ(runs, 20);
  engine.replay(program).wait();
  EXPECT_EQ(runs, 21);
}

/// In serial mode the answer of a Completion runs what waits for it, on the thread that answers; its pushes are its
/// own.
TEST(Replay, AnOpThatRunsDuringACaptureIsNotInIt) {
  QuietEngine engine({.mode = EngineMode::serial});
  const Variable v = engine.variable(), w = engine.variable();
  testing::Held held;
  int runs = 0, pushed = 0;
  engine.push(held.body(), {write(v)});
  engine.push([&] { engine.push([&] { ++pushed; }, {update(w)}); }, {read(v)});
  const Program program = engine.capture([&] {
    held.completion.done();
    engine.push([&] { ++runs; }, {update(w)});
  });
  engine.wait_all();
  EXPECT_EQ(pushed, 1);
  engine.replay(program).wait();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(pushed, 1);
}

}  // namespace
}  // namespace sluice
