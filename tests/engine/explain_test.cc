// What explain says, and the watchdog's own thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "watched.h"

namespace sluice {
namespace {

using testing::at;
using testing::Held;
using testing::kLimit;
using testing::QuietEngine;
using testing::Signal;
using testing::Site;
using testing::Watched;

/// The explanation of an op has the whole way to the root.
TEST(Explain, TheWholeWay) {
  Watched engine({.threads = 1});
  const Variable frame = engine.variable("frame"), thumb = engine.variable("thumb"), page = engine.variable("page");
  Held held;
  const Site one = Site::current(), two = Site::current(), three = Site::current();
  engine.until(engine.push(held.body(), {write(frame)}, {.name = "decode"}, one), "Completion");
  held.begun.wait();
  engine.push([] {}, {read(frame), write(thumb)}, {.name = "resize"}, two);
  const Ticket last = engine.push([] {}, {read(thumb), write(page)}, {.name = "place"}, three);
  const std::string way = "'place' " + at(three) + ", reads thumb, writes page) waits for thumb behind 'resize' " +
                          at(two) + ", reads frame, writes thumb), which waits for frame behind 'decode' " + at(one) +
                          ", writes frame), which has returned, but its Completion is not answered.";
  EXPECT_EQ(engine.explain(last), way);
  EXPECT_EQ(engine.explain(page), "page: 1 op in flight. " + way + " Its value as of now: no error.");
  held.completion.done();
  engine.wait_all();
}

TEST(Explain, IdleAndPoisonedVariables) {
  QuietEngine engine;
  const Variable fresh = engine.variable("fresh", false), frame = engine.variable("frame"), unnamed = engine.variable();
  EXPECT_EQ(engine.explain(fresh), "fresh: idle, no value yet");
  EXPECT_EQ(engine.explain(frame), "frame: idle, no error");
  EXPECT_EQ(engine.explain(unnamed), "variable 2: idle, no error");
  const Site here = Site::current();
  const Ticket op =
      engine.push([] { throw std::runtime_error("no such file"); }, {write(frame)}, {.name = "decode"}, here);
  EXPECT_THROW(engine.wait(frame), Error);
  const std::string root = "[decode] " + to_string(here) + ": no such file";
  EXPECT_EQ(engine.explain(frame), "frame: poisoned (torn) by " + root);
  while (!op.done()) std::this_thread::yield();
  EXPECT_EQ(engine.explain(op), "done, with the error " + root);
  EXPECT_EQ(engine.explain(Ticket()), "the ticket of no op");
  QuietEngine other;
  const Variable foreign = other.variable();
  EXPECT_THROW(engine.explain(foreign), UsageError);
  EXPECT_THROW(engine.explain(Variable()), UsageError);
}

/// While ops run, records are given out again and variables go.
TEST(Explain, AtAnyTime) {
  QuietEngine engine({.threads = 2});
  const Variable shared = engine.variable("shared");
  std::atomic<bool> over{false};
  std::thread asks([&] {
    std::chrono::steady_clock::time_point now{};
    while (!over.load()) {
      EXPECT_THAT(engine.explain(shared), ::testing::StartsWith("shared: "));
      engine.overdue(kLimit, now += kLimit);
    }
  });
  std::vector<Access> many;
  for (int i = 0; i < 3000; ++i) {
    const Variable mine = engine.variable("mine"), other = engine.variable();
    engine.push([] {}, {write(mine), update(other)}, {.name = "made"});
    engine.push([] {}, {read(mine), update(shared)}, {.name = "used"});
    engine.push([](Completion done) { done.done(); }, {read(shared), read(other)});
    if (i % 16 == 0) {
      std::vector<Variable> v;
      for (int k = 0; k < 9; ++k) v.push_back(engine.variable());
      many.clear();
      for (const Variable& x : v) many.push_back(update(x));
      engine.push([] {}, many);
      engine.wait(shared);
    }
  }
  over.store(true);
  asks.join();
  engine.wait_all();
  EXPECT_EQ(engine.explain(shared), "shared: idle, no error");
}

TEST(Explain, InEveryMode) {
  for (const EngineMode mode : {EngineMode::threaded, EngineMode::serial, EngineMode::explore}) {
    QuietEngine engine({.mode = mode, .explore_seed = 3});
    const Variable frame = engine.variable("frame");
    Held held;
    const Ticket op = engine.push(held.body(), {write(frame)}, {.name = "download"});
    held.begun.wait();
    EXPECT_THAT(engine.explain(frame), ::testing::StartsWith("frame: 1 op in flight. 'download' (explain_test.cc:"));
    EXPECT_THAT(engine.explain(op), ::testing::HasSubstr("writes frame)"));
    held.completion.done();
    engine.wait(frame);
    op.wait();
    EXPECT_EQ(engine.explain(frame), "frame: idle, no error");
  }
}

// ---- the thread, and stop

TEST(Watchdog, ItsThreadReportsToTheHook) {
  QuietEngine engine;
  Held held;
  Signal told;
  std::string text;
  engine.push(held.body(), {}, {.name = "download"});
  held.begun.wait();
  engine.watch(std::chrono::milliseconds(20), [&](const std::string& report) {
    if (told.raised()) return;
    text = report;
    told.raise();
  });
  told.wait();
  EXPECT_THAT(text, ::testing::HasSubstr("1 op has not moved for 0.02 s.\n  'download' (explain_test.cc:"));
  engine.watch(std::chrono::milliseconds(5));
  engine.watch(std::chrono::nanoseconds(0));
  engine.watch(std::chrono::nanoseconds(0));
  held.completion.done();
}

/// In a process of its own: waits until the report stands on stderr, then lets go.
void exit_after_a_report() {
  setenv("SLUICE_WATCHDOG", "0.02", 1);
  static Held held;
  int ends[2];
  if (::pipe(ends) != 0) std::_Exit(1);
  const int real = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  Engine::instance().push(held.body(), {}, {.name = "download"});
  char text[400];
  const auto size = ::read(ends[0], text, sizeof text);
  ::dup2(real, STDERR_FILENO);
  if (size > 0) std::fwrite(text, 1, static_cast<std::size_t>(size), stderr);
  held.begun.wait();
  held.completion.done();
  std::exit(0);
}

TEST(WatchdogDeathTest, TheEnvironmentSwitchesItOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_after_a_report(), ::testing::ExitedWithCode(0),
              "sluice: 1 op has not moved for 0.02 s.\n  'download' .explain_test.cc:");
  const auto bad = [] {
    setenv("SLUICE_WATCHDOG", "soon", 1);
    try {
      Engine::instance();
    } catch (const UsageError& e) {
      std::fprintf(stderr, "%s", e.what());
      std::_Exit(3);
    }
  };
  EXPECT_EXIT(bad(), ::testing::ExitedWithCode(3), "SLUICE_WATCHDOG=soon: seconds");
  const auto off = [] {
    setenv("SLUICE_WATCHDOG", "0", 1);
    Engine::instance().push([] {}, {}).wait();
    std::_Exit(4);
  };
  EXPECT_EXIT(off(), ::testing::ExitedWithCode(4), "^$");
}

TEST(Watchdog, ItsHookMayChangeItOrThrow) {
  QuietEngine engine;
  Held first, second;
  Signal told;
  engine.push(first.body(), {}, {.name = "first"});
  first.begun.wait();
  engine.watch(std::chrono::milliseconds(5), [&](const std::string&) {
    engine.watch(std::chrono::milliseconds(4), [&](const std::string&) {
      told.raise();
      throw 7;
    });
    engine.push(second.body(), {}, {.name = "second"});
  });
  told.wait();
  first.completion.done();
  second.begun.wait();
  second.completion.done();
  engine.watch(std::chrono::nanoseconds(0));
}

TEST(Watchdog, AForkedChildEndsWithoutIt) {
  QuietEngine engine;
  Held held;
  engine.watch(std::chrono::hours(1));
  engine.push(held.body(), {});
  held.begun.wait();
  const pid_t child = ::fork();
  if (child == 0) {
    engine.watch(std::chrono::milliseconds(1));
    engine.watch(std::chrono::nanoseconds(0));
    engine.overdue(kLimit);
    std::_Exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  held.completion.done();
}

TEST(Watchdog, StopNamesWhatIsOpenAtItsDeadline) {
  Watched engine;
  const Variable frame = engine.variable("frame");
  Held held;
  std::string text;
  engine.watch(std::chrono::hours(1), [&](const std::string& report) { text += report; });
  const Site here = Site::current();
  engine.until(engine.push(held.body(), {write(frame)}, {.name = "download"}, here), "Completion");
  held.begun.wait();
  EXPECT_FALSE(engine.stop(StopMode::drain, std::chrono::milliseconds(5)));
  EXPECT_THAT(text, ::testing::StartsWith("stop: the deadline came with 1 op in flight.\n  'download' " + at(here) +
                                          ", writes frame) has returned, but its Completion is not answered"));
  held.completion.done();
  EXPECT_TRUE(engine.stop());
}

}  // namespace
}  // namespace sluice
