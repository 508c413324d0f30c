// WaitOptions::help: a thread that waits outside of ops runs some of them meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/loops.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

EngineOptions workers(int n) { return {.mode = EngineMode::threaded, .mode_given = true, .threads = n}; }
EngineOptions one_worker() { return workers(1); }

/// An engine whose workers are each in a body until they are let go.
class Occupied {
 public:
  explicit Occupied(int threads = 1) : engine(workers(threads)) {
    for (int i = 0; i < threads; ++i)
      engine.push(
          [this] {
            ++inside;
            while (!release) std::this_thread::yield();
          },
          {});
    while (inside < threads) std::this_thread::yield();
  }
  ~Occupied() { release = true; }

  Engine engine;
  std::atomic<int> inside{0};
  std::atomic<bool> release{false};
};

TEST(Help, WaitAllRunsOpsThatTheWorkersDoNotComeTo) {
  for (const int threads : {1, 2}) {
    Occupied o(threads);
    std::atomic<int> ran{0};
    const auto me = std::this_thread::get_id();
    for (int i = 0; i < 100; ++i) o.engine.push([&] { ran += std::this_thread::get_id() == me; }, {});
    // The last one lets the workers go: without help this would not end.
    o.engine.push([&] { o.release = true; }, {});
    o.engine.wait_all();
    EXPECT_EQ(ran, 100);
  }
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

TEST(Help, ALoopInWhatAWaiterRunsHasTheLanesThreads) {
  Occupied o(2);
  const Variable x = o.engine.variable("x");
  std::atomic<int> here{0}, width{0};
  std::thread::id ran;
  o.engine.push(
      [&] {
        ran = std::this_thread::get_id();
        width = parallel_width();
        o.release = true;
        // Each chunk waits for the other: it takes two threads.
        parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
          ++here;
          while (here < 2) std::this_thread::yield();
        });
      },
      {write(x)});
  o.engine.wait(x, {.help = true});
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_EQ(width, 2);
}

/// One waiter at a time is a guest among the lane's threads; another's loop runs on it alone.
TEST(Help, SeveralWaitersWithLoopsAtOnce) {
  Engine engine(workers(2));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      const Variable x = engine.variable("x");
      for (int i = 0; i < 300; ++i) {
        std::atomic<int> sum{0};
        engine.push(
            [&] {
              parallel_for(8, 1, [&](std::int64_t outer, std::int64_t) {
                parallel_for(4, 1,
                             [&](std::int64_t inner, std::int64_t) { sum += static_cast<int>(4 * outer + inner); });
              });
            },
            {update(x)});
        engine.wait(x, {.help = true});
        wrong += sum != 496;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Help, ALoopsErrorComesOutOfTheOp) {
  Occupied o(2);
  const Variable x = o.engine.variable("x");
  for (int i = 0; i < 2; ++i) {
    o.engine.push(
        [] {
          parallel_for(8, 1, [](std::int64_t begin, std::int64_t) {
            if (begin == 3) throw std::runtime_error("chunk 3");
          });
        },
        {write(x)}, {.name = "loop"});
    EXPECT_THROW(o.engine.wait(x, {.help = true}), Error);  // and the next one can join again
  }
}

}  // namespace
}  // namespace sluice
