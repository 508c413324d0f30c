// The failure cases that dependency engines meet in real life, by their numbers in the collection that the design
// names.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Gate;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;

void fail(const char* what) { throw std::runtime_error(what); }

TEST(Failures, Case1PushesOverSeveralVariablesAreAtomic) {
  QuietEngine engine({.threads = 2});
  const Variable a = engine.variable(), b = engine.variable();
  std::vector<int> seen_a, seen_b;
  std::vector<std::thread> pushers;
  constexpr int kEach = 2000;
  for (int p = 0; p < 4; ++p)
    pushers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        const auto both = [&, id = p * kEach + i] { seen_a.push_back(id), seen_b.push_back(id); };
        if (p % 2) {
          engine.push(both, {update(a), update(b)});
        } else {
          engine.push(both, {update(b), update(a)});
        }
      }
    });
  for (auto& t : pushers) t.join();
  engine.wait_all();
  EXPECT_EQ(seen_a.size(), 4u * kEach);
  EXPECT_EQ(seen_a, seen_b);
}

TEST(Failures, Case2AVariableReadAndWrittenByOneOp) {
  QuietEngine engine;
  const Variable v = engine.variable();
  int n = 0;
  for (int i = 0; i < 100; ++i) engine.push([&] { ++n; }, {read(v), write(v), read(v)});
  engine.wait(v);
  EXPECT_EQ(n, 100);
}

/// A closure that throws while it is moved in: nothing was pushed, and nothing is held.
TEST(Failures, Case3APushThatThrowsLeavesNothingBehind) {
  QuietEngine engine({.max_ops = 8});
  const Variable v = engine.variable();
  struct Throws {
    Throws() = default;
    Throws(const Throws&) { throw std::bad_alloc(); }
    void operator()() const {}
  };
  const Throws closure;
  for (int i = 0; i < 100; ++i)
    EXPECT_THROW(engine.push(closure, {write(v)}, {.bytes = std::size_t{1} << 30}), std::bad_alloc);
  EXPECT_EQ(engine.in_flight(), 0u);
  bool ran = false;
  engine.push([&] { ran = true; }, {write(v)}, {.bytes = std::size_t{1} << 30});
  engine.wait_all();
  EXPECT_TRUE(ran);
}

TEST(Failures, Case4And5VariablesLiveAsLongAsTheirOps) {
  QuietEngine engine;
  Gate gate;
  int value = 0;
  {
    const Var<int> v(engine.variable(), 5);
    engine.push([&, v] { gate.pass(), *v += 1, value = *v; }, {update(v)});
    engine.push([&, v] { value = *v * 10; }, {read(v)});
  }
  gate.open();
  engine.wait_all();
  EXPECT_EQ(value, 60);
  EXPECT_THROW(engine.push([] {}, {read(Variable())}), UsageError);
}

TEST(Failures, Case6ACompletionAnswersOnce) {
  QuietEngine engine;
  const Variable v = engine.variable(), w = engine.variable();
  engine.push([](Completion done) { done.done(), done.done(), done.fail(nullptr), fail("after its answer"); },
              {write(v)}, {.name = "a"});
  EXPECT_EQ(failure([&] { engine.wait(v); }), "");
  Completion held;
  Signal begun;
  engine.push([&](Completion done) { held = std::move(done), begun.raise(), fail("thrown while held"); }, {write(w)},
              {.name = "b"});
  begun.wait();
  EXPECT_FALSE(engine.wait_for(w, std::chrono::milliseconds(2))) << "its work may still be going on elsewhere";
  held.done();
  EXPECT_EQ(failure([&] { engine.wait(w); }), "b: thrown while held");
  engine.push([](Completion done) { done.fail(nullptr); }, {write(v)}, {.name = "c"});
  EXPECT_EQ(failure([&] { engine.wait(v); }), "c: its Completion failed without an exception");
}

TEST(Failures, Case6WhatABodyThrowsAfterItsAnswerIsLate) {
  for (const EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    QuietEngine engine({.mode = mode, .threads = 1, .providers = {sim_devices(1)}});
    for (const Device on : {cpu(0), sim(0)}) {
      const Variable v = engine.variable();
      const auto outcome = [&](auto body) {
        const Ticket ticket = engine.push(body, {write(v)}, {.on = on, .name = "op"});
        const std::string direct = failure([&] { ticket.wait(); });
        EXPECT_EQ(failure([&] { engine.wait(v); }), direct);
        const Program program = engine.capture([&] { engine.push(body, {write(v)}, {.on = on, .name = "op"}); });
        for (int i = 0; i < 2; ++i) {
          const Ticket replay = engine.replay(program);
          EXPECT_EQ(failure([&] { replay.wait(); }), direct) << "captured";
        }
        return direct;
      };
      const auto late = [] { throw std::runtime_error("late"); };
      const auto first = std::make_exception_ptr(std::runtime_error("first"));
      EXPECT_EQ(outcome([&](Completion c) { c.done(), late(); }), "");
      EXPECT_EQ(outcome([&](Completion c) { c.fail(first), late(); }), "op: first");
      EXPECT_EQ(outcome([&](Completion) { late(); }), "op: late");
      EXPECT_EQ(outcome([&](Completion c) { Completion(std::move(c)), late(); }), "op: late");
      Completion kept;
      const Ticket ticket = engine.push(
          [&](Completion c) {
            kept = std::move(c);
            late();
          },
          {write(v)}, {.on = on, .name = "op"});
      if (mode == EngineMode::threaded) engine.push([] {}, {}, {.on = on}).wait();  // behind it in its lane
      kept.done();
      EXPECT_EQ(failure([&] { ticket.wait(); }), "op: late") << "and the answer came after it";
    }
  }
}

TEST(Failures, Case7ALostCompletionPoisons) {
  QuietEngine engine;
  const Variable v = engine.variable();
  engine.push([](Completion) {}, {write(v)}, {.name = "lost"});
  const ErrorRef root = thrown([&] { engine.wait(v); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::abandoned);
  EXPECT_EQ(root->operation, "lost");
  Completion a, b;
  Signal begun;
  engine.push([&](Completion done) { a = std::move(done), begun.raise(); }, {write(v)});
  begun.wait();
  a = std::move(b);  // overwritten without an answer
  EXPECT_EQ(thrown([&] { engine.wait(v); })->kind, ErrorKind::abandoned);
}

TEST(Failures, Case8And9WhatIsThrownNeedNotBeAnException) {
  QuietEngine engine;
  const Variable v = engine.variable();
  engine.push([] { throw 42; }, {write(v)}, {.name = "int"});
  const ErrorRef root = thrown([&] { engine.wait(v); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->message, "an exception that is not a std::exception");
  EXPECT_THROW(std::rethrow_exception(root->cause), int);
  engine.push([] {}, {write(v)});
  engine.wait(v);
}

TEST(Failures, Case10And11PoisonStaysOnSiblings) {
  QuietEngine engine;
  const Variable a = engine.variable(), b = engine.variable();
  engine.push([] { fail("x"); }, {write(a), write(b)}, {.name = "root"});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(failure([&] { engine.wait(a); }), "root: x");
    EXPECT_THROW(engine.wait_all(), AggregateError);
    EXPECT_EQ(failure([&] { engine.wait(b); }), "root: x");
  }
  engine.push([] {}, {write(a)});
  engine.wait(a);
  EXPECT_EQ(failure([&] { engine.wait(b); }), "root: x");
}

TEST(Failures, Case12ManyErrorsAtOnce) {
  QuietEngine engine({.threads = 4});
  std::vector<Variable> v;
  for (int i = 0; i < 64; ++i) v.push_back(engine.variable());
  std::vector<std::thread> pushers;
  for (std::size_t p = 0; p < 4; ++p)
    pushers.emplace_back([&, p] {
      for (std::size_t i = 0; i < 500; ++i) {
        engine.push([] { fail("x"); }, {write(v[(i * 7 + p) % 64])});
        if (i % 50 == 0) (void)thrown([&] { engine.wait_all(); });
        if (i % 71 == 0) engine.clear_errors();
      }
    });
  for (auto& t : pushers) t.join();
  try {
    engine.wait_all();
    FAIL();
  } catch (const AggregateError& e) {
    EXPECT_GE(e.roots().size(), 64u);
  }
}

TEST(Failures, Case13ErrorsThatNobodyWaitedForAreReported) {
  ::testing::internal::CaptureStderr();
  {
    Engine engine({.mode_given = true, .threads = 1});
    engine.push([] { fail("gone wrong"); }, {write(engine.variable())}, {.name = "silent"});
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("[silent] failures_test.cc:"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Failures, Case15OpsSkippedAtAStopDidNotSucceed) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable(), w = engine.variable();
  Gate gate;
  Signal begun;
  bool told = false;
  engine.push([&](Context& c) { begun.raise(), gate.pass(), told = c.cancelled(); }, {write(v)});
  const Ticket queued = engine.push([] { ADD_FAILURE(); }, {write(w)});
  begun.wait();
  EXPECT_FALSE(engine.stop(StopMode::cancel, std::chrono::milliseconds(5))) << "one body still runs";
  gate.open();
  EXPECT_TRUE(engine.stop(StopMode::cancel));
  EXPECT_TRUE(engine.stop(StopMode::drain, std::chrono::nanoseconds::max())) << "again";
  EXPECT_TRUE(told);
  engine.wait(v);
  EXPECT_EQ(thrown([&] { engine.wait(w); })->kind, ErrorKind::stopped);
  EXPECT_EQ(thrown([&] { queued.wait(); })->kind, ErrorKind::stopped);
  EXPECT_THROW(engine.push([] {}, {}), StoppedError);
  EXPECT_THROW(engine.recover(w), StoppedError);
}

TEST(Failures, Case15AStopThatDrainsLetsOpsPush) {
  QuietEngine engine({.threads = 1});
  std::atomic<int> ran{0};
  std::function<void(int)> again = [&](int n) {
    ran.fetch_add(1);
    if (n > 0) engine.push([&, n] { again(n - 1); }, {});
  };
  engine.push([&] { again(50); }, {});
  EXPECT_TRUE(engine.stop());
  EXPECT_EQ(ran.load(), 51);
}

TEST(Failures, Case16WaitsInsideOpsOnEveryThreadAtOnce) {
  QuietEngine engine({.threads = 2});
  std::atomic<int> done{0};
  for (int i = 0; i < 50; ++i)
    engine.push(
        [&] {
          const Variable v = engine.variable();
          int value = 0;
          engine.push([&] { value = 1; }, {write(v)});
          engine.wait(v);
          done.fetch_add(value);
        },
        {});
  while (engine.in_flight() > 0) engine.wait_all();
  EXPECT_EQ(done.load(), 50);
}

TEST(Failures, Case22TicketsOfAReusedRecordStayApart) {
  QuietEngine engine({.threads = 1});
  const Ticket bad = engine.push([] { fail("x"); }, {}, {.name = "old"});
  (void)thrown([&] { bad.wait(); });
  for (int i = 0; i < 3000; ++i) {
    const Ticket t = engine.push([] {}, {});
    t.wait();
    ASSERT_NE(t.id(), bad.id());
    ASSERT_FALSE(bad.cancel());
  }
  EXPECT_TRUE(bad.done());
  EXPECT_EQ(failure([&] { bad.wait(); }), "old: x");
}

TEST(Failures, Case23And27NoWakeUpIsLost) {
  QuietEngine engine({.threads = 2, .logical_cpus = 2});
  const Variable v = engine.variable();
  for (int i = 0; i < 3000; ++i) {
    engine.push([] {}, {update(v)}, {.on = cpu(i % 2)});
    engine.wait(v);
  }
}

TEST(Failures, Case24And29ManyStartsAndStops) {
  for (int i = 0; i < 500; ++i) {
    QuietEngine engine({.threads = 1 + i % 3});
    const Variable v = engine.variable();
    std::atomic<int> ran{0};
    for (int k = 0; k < 5; ++k) engine.push([&] { ran.fetch_add(1); }, {update(v)});
    if (i % 2) engine.wait(v);
    ASSERT_TRUE(engine.stop());
    ASSERT_EQ(ran.load(), 5);
  }
}

TEST(Failures, Case29WaitersThatLeaveEarly) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  for (int i = 0; i < 500; ++i) {
    const Ticket t = engine.push([] { std::this_thread::yield(); }, {write(v)});
    engine.wait_for(v, std::chrono::microseconds(i % 20));
    t.wait_for(std::chrono::microseconds(i % 20));
  }
  engine.wait_all();
}

TEST(Failures, Case30AFloodStaysBounded) {
  QuietEngine engine({.threads = 1, .max_ops = 100});
  std::size_t most = 0;
  for (int i = 0; i < 20'000; ++i) {
    engine.push([] {}, {});
    if (i % 16 == 0) most = std::max(most, engine.in_flight());
  }
  EXPECT_LE(most, 100u);
}

TEST(Failures, ThreadsThatComeAndGo) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  int n = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; ++k) threads.emplace_back([&] { engine.push([&] { ++n; }, {update(v)}); });
    for (auto& t : threads) t.join();
  }
  engine.wait(v);
  EXPECT_EQ(n, 600);
}

TEST(Failures, ManyEnginesAtOnce) {
  std::vector<std::unique_ptr<QuietEngine>> engines;
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) engines.push_back(std::make_unique<QuietEngine>(EngineOptions{.threads = 1}));
  testing::Meeting meeting(20);
  for (auto& e : engines) e->push([&] { meeting.arrive_and_wait(), ran.fetch_add(1); }, {});
  engines.clear();
  EXPECT_EQ(ran.load(), 20);
}

TEST(Failures, Case35HandlesOutliveTheirEngine) {
  Variable v;
  Completion held;
  {
    QuietEngine engine({.threads = 1});
    v = engine.variable("v");
    engine.push([] { fail("x"); }, {write(v)});
    Signal begun;
    engine.push([&](Completion done) { held = std::move(done), begun.raise(); }, {});
    begun.wait();
    EXPECT_FALSE(engine.stop(StopMode::cancel, std::chrono::milliseconds(1)));
    std::thread([&] { held.done(); }).join();
  }
  EXPECT_STREQ(v.name(), "v");
  const Variable copy = v;
  v = {};
}

TEST(Failures, Case35ACompletionAnsweredAfterItsEngine) {
  Completion held;
  {
    QuietEngine engine({.threads = 1});
    const Variable v = engine.variable();
    Signal begun;
    engine.push([&](Completion done) { held = std::move(done), begun.raise(); }, {write(v)});
    begun.wait();
    engine.stop(StopMode::cancel, std::chrono::milliseconds(1));
    std::thread late([&] {
      while (engine.in_flight() > 0) std::this_thread::yield();
    });
    held.done();
    late.join();
  }
  held.done();
}

TEST(Failures, Case42NoSignalHandlersAreInstalled) {
  Engine::instance().push([] {}, {}).wait();
  for (int signal : {SIGSEGV, SIGFPE, SIGBUS, SIGINT, SIGPIPE}) {
    struct sigaction before {};
    struct sigaction now {};
    ASSERT_EQ(sigaction(signal, nullptr, &now), 0);
#ifdef SLUICE_SANITIZED
    if (signal == SIGSEGV || signal == SIGFPE || signal == SIGBUS) continue;  // the sanitizers' own
#endif
    EXPECT_EQ(now.sa_handler, before.sa_handler) << signal;
  }
}

}  // namespace
}  // namespace sluice
