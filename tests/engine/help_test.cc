// WaitOptions::help: a thread that waits outside of ops runs some of them meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "sluice/engine/engine.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

EngineOptions one_worker() { return {.mode = EngineMode::threaded, .mode_given = true, .threads = 1}; }

/// An engine whose only worker is in a body until it is let go.
class Occupied {
 public:
  Occupied() {
    engine.push(
        [this] {
          inside = true;
          while (!release) std::this_thread::yield();
        },
        {});
    while (!inside) std::this_thread::yield();
  }
  ~Occupied() { release = true; }

  Engine engine{one_worker()};
  std::atomic<bool> inside{false}, release{false};
};

TEST(Help, WaitAllRunsOpsThatTheWorkersDoNotComeTo) {
  Occupied o;
  std::atomic<int> ran{0};
  const auto me = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) o.engine.push([&] { ran += std::this_thread::get_id() == me; }, {});
  // The last one lets the worker go: without help this would not end.
  o.engine.push([&] { o.release = true; }, {});
  o.engine.wait_all();
  EXPECT_EQ(ran, 100);
}

TEST(Help, AWaitHelpsWhereItIsToldTo) {
  Occupied o;
  const Variable x = o.engine.variable("x");
  std::thread::id ran;
  o.engine.push([&] { ran = std::this_thread::get_id(); }, {write(x)});
  EXPECT_FALSE(o.engine.wait_for(x, 20ms));  // by itself it does not
  o.engine.wait(x, {.help = true});
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST(Help, AWaitThatIsNotToHelpRunsNothing) {
  Engine engine(one_worker());
  std::atomic<int> here{0};
  const auto me = std::this_thread::get_id();
  const Variable x = engine.variable("x");
  for (int i = 0; i < 2'000; ++i) {
    engine.push([&] { here += std::this_thread::get_id() == me; }, {update(x)});
    if (i % 100 == 0) engine.wait(x);
  }
  engine.wait_all({.help = false});
  EXPECT_EQ(here, 0);
}

TEST(Help, NotWhileTheThreadHasABorrow) {
  Occupied o;
  const Variable x = o.engine.variable("x"), y = o.engine.variable("y");
  const Borrow held = o.engine.borrow(read(x));
  std::atomic<bool> ran{false};
  const Ticket ticket = o.engine.push([&] { ran = true; }, {write(y)});
  std::thread later([&] {
    EXPECT_FALSE(ticket.wait_for(20ms));
    EXPECT_FALSE(ran);
    o.release = true;
  });
  o.engine.wait(y, {.help = true});
  later.join();
  EXPECT_TRUE(ran);
}

TEST(Help, ErrorsAndNestedPushesAreAsOnAWorker) {
  Occupied o;
  const Variable x = o.engine.variable("x"), y = o.engine.variable("y");
  std::atomic<int> nested{0};
  o.engine.push(
      [&](Context&) {
        o.engine.push([&] { ++nested; }, {update(y)});
        throw std::runtime_error("thrown here");
      },
      {write(x)}, {.name = "thrower"});
  EXPECT_THROW(o.engine.wait(x, {.help = true}), Error);
  o.engine.wait(y, {.help = true});
  EXPECT_EQ(nested, 1);
  // What an op waits for inside is run by a substitute, not on this stack.
  std::thread::id inner, outer;
  o.engine.push(
      [&] {
        outer = std::this_thread::get_id();
        o.engine.push([&] { inner = std::this_thread::get_id(); }, {update(y)});
        o.engine.wait(y);
      },
      {});
  o.release = true;
  EXPECT_THROW(o.engine.wait_all(), AggregateError);
  EXPECT_NE(inner, outer);
}

}  // namespace
}  // namespace sluice
