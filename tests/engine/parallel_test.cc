// That things really run at once, on few threads, and in which order they are taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "sluice/engine/loops.h"
#include "support.h"

namespace sluice {
namespace {
using testing::Gate;
using testing::Meeting;
using testing::QuietEngine;
using testing::Signal;

TEST(Parallel, TwoReadersOfOneVariableMeet) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  Meeting meeting(2);
  for (int i = 0; i < 2; ++i) engine.push([&] { meeting.arrive_and_wait(); }, {read(v)});
  engine.wait_all();
}

TEST(Parallel, TwoDevicesMeetOnOneThread) {
  QuietEngine engine({.threads = 1, .logical_cpus = 2});
  Meeting meeting(2);
  for (int i = 0; i < 2; ++i) engine.push([&] { meeting.arrive_and_wait(); }, {}, {.on = cpu(i)});
  engine.wait_all();
}

TEST(Parallel, EveryDeviceAndLaneMeetsOnFewThreads) {
  QuietEngine engine({.threads = 2, .logical_cpus = 8});
  Meeting meeting(25);
  for (int i = 0; i < 8; ++i)
    for (LaneKind lane : kDeviceLanes) engine.push([&] { meeting.arrive_and_wait(); }, {}, {.on = Place(cpu(i), lane)});
  engine.push([&] { meeting.arrive_and_wait(); }, {}, {.on = io()});
  engine.wait_all();
}

TEST(Parallel, NoMoreOpsAtOnceThanThreads) {
  for (int threads : {1, 2, 3}) {
    QuietEngine engine({.threads = threads});
    EXPECT_EQ(engine.threads(), threads);
    std::atomic<int> now{0}, most{0};
    for (int i = 0; i < 300; ++i)
      engine.push(
          [&] {
            const int n = now.fetch_add(1) + 1;
            for (int m = most.load(); n > m && !most.compare_exchange_weak(m, n);) {
            }
            std::this_thread::yield();
            now.fetch_sub(1);
          },
          {});
    engine.wait_all({.help = false});
    EXPECT_LE(most.load(), threads);
  }
}

/// Failure case 16: a wait inside an op keeps its lane going, even where that lane has one thread.
TEST(Parallel, BlockedOpsDoNotStarveTheirLane) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  Gate gate;
  std::atomic<int> waited{0};
  engine.push(
      [&](Completion done) {
        std::thread([&gate, held = std::move(done)]() mutable {
          gate.pass();
          held.done();
        }).detach();
      },
      {write(v)});
  for (int i = 0; i < 8; ++i) engine.push([&] { engine.wait(v), waited.fetch_add(1); }, {});
  Signal ran;
  engine.push([&] { ran.raise(); }, {});
  ran.wait();
  EXPECT_EQ(waited.load(), 0);
  gate.open();
  engine.wait_all();
  EXPECT_EQ(waited.load(), 8);
}

double harmonic(int threads, std::vector<std::thread::id>* ids) {
  QuietEngine engine({.threads = threads});
  double sum = 0;
  std::mutex mutex;
  engine.push(
      [&] {
        std::vector<double> parts(1000);
        parallel_for(100'000, 100, [&](std::int64_t begin, std::int64_t end) {
          double part = 0;
          for (std::int64_t i = begin; i < end; ++i) part += 1.0 / static_cast<double>(i + 1);
          parts[static_cast<std::size_t>(begin / 100)] = part;
          if (!ids) return;
          std::lock_guard lock(mutex);
          ids->push_back(std::this_thread::get_id());
        });
        sum = std::accumulate(parts.begin(), parts.end(), 0.0);
      },
      {});
  engine.wait_all({.help = false});  // this thread would be one more for the loop
  return sum;
}

TEST(Parallel, LoopsGiveTheSameBitsOnAnyNumberOfThreads) {
  const double one = harmonic(1, nullptr);
  for (int threads : {2, 3, 8}) EXPECT_EQ(harmonic(threads, nullptr), one);
}

TEST(Parallel, LoopsStayWithinTheLanesThreads) {
  std::vector<std::thread::id> ids;
  harmonic(2, &ids);
  EXPECT_LE(std::set(ids.begin(), ids.end()).size(), 2u);
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(Parallel, LoopsUseTwoThreads) {
  QuietEngine engine({.threads = 2});
  Meeting meeting(2);
  engine.push([&] { parallel_for(2, 1, [&](std::int64_t, std::int64_t) { meeting.arrive_and_wait(); }); }, {});
  engine.wait_all();
}

TEST(Parallel, LoopsOutsideOfOpsUseTheCallingThreadAlone) {
  const auto me = std::this_thread::get_id();
  int chunks = 0;
  EXPECT_EQ(parallel_width(), 1);
  parallel_for(10, 3, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), me);
    EXPECT_EQ(end, std::min<std::int64_t>(begin + 3, 10));
    ++chunks;
  });
  parallel_for(0, 3, [&](std::int64_t, std::int64_t) { ++chunks; });
  EXPECT_EQ(chunks, 4);
}

TEST(Parallel, LoopsHaveChunksOfAnySize) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto chunks = [](std::int64_t n, std::int64_t grain) {
    std::mutex mutex;
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      all.emplace_back(begin, end);
    });
    std::sort(all.begin(), all.end());
    return all;
  };
  using Chunks = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const auto check = [&] {
    EXPECT_EQ(chunks(1000, most), (Chunks{{0, 1000}}));
    EXPECT_EQ(chunks(most, most), (Chunks{{0, most}}));
    EXPECT_EQ(chunks(most, most - 1), (Chunks{{0, most - 1}, {most - 1, most}}));
    EXPECT_EQ(chunks(most, most / 2 + 1), (Chunks{{0, most / 2 + 1}, {most / 2 + 1, most}}));
    EXPECT_EQ(chunks(7, -most), chunks(7, 1));
  };
  check();
  QuietEngine engine({.threads = 2});
  engine.push(check, {});
  engine.wait_all({.help = false});
}

TEST(Parallel, LoopsThrowWhatABodyThrows) {
  QuietEngine engine({.threads = 2});
  const Ticket t = engine.push(
      [] {
        parallel_for(64, 1, [](std::int64_t i, std::int64_t) {
          if (i == 17) throw std::runtime_error("chunk 17");
        });
      },
      {}, {.name = "loop"});
  EXPECT_EQ(testing::failure([&] { t.wait(); }), "loop: chunk 17");
}

/// Failure case 20: the thread that waits for its loop's last chunk picks up no other op.
TEST(Parallel, NoForeignOpRunsOnAWaitingStack) {
  QuietEngine engine({.threads = 2});
  thread_local bool inside = false;
  std::atomic<int> nested{0}, ran{0};
  for (int i = 0; i < 400; ++i)
    engine.push(
        [&] {
          if (std::exchange(inside, true)) nested.fetch_add(1);
          std::atomic<int> sum{0};
          parallel_for(16, 1, [&](std::int64_t begin, std::int64_t) { sum.fetch_add(static_cast<int>(begin)); });
          ran.fetch_add(sum.load() == 120);
          inside = false;
        },
        {});
  engine.wait_all();
  EXPECT_EQ(nested.load(), 0);
  EXPECT_EQ(ran.load(), 400);
}

TEST(Parallel, TheScopeTravelsIntoALoopsHelpers) {
  QuietEngine engine({.threads = 2});
  Meeting meeting(2);
  std::atomic<int> right{0};
  const TagScope tag(42);
  engine.push(
      [&] {
        parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
          meeting.arrive_and_wait();
          right.fetch_add(current_scope().tag == 42);
        });
      },
      {});
  engine.wait_all();
  EXPECT_EQ(right.load(), 2);
}

TEST(Parallel, HigherPriorityRunsFirst) {
  QuietEngine engine({.threads = 1});
  Gate gate;
  Signal begun;
  engine.push([&] { begun.raise(), gate.pass(); }, {});
  begun.wait();
  std::vector<int> order;
  for (int priority : {0, 3, 7, 1, 6, 2, 5, 4})
    engine.push([&, priority] { order.push_back(priority); }, {}, {.priority = priority});
  gate.open();
  engine.wait_all({.help = false});  // one thread, one op at a time
  EXPECT_EQ(order, (std::vector<int>{7, 6, 5, 4, 3, 2, 1, 0}));
}

/// Failure case 43.
TEST(Parallel, WithinOnePriorityPushOrderRules) {
  QuietEngine engine({.threads = 1});
  Gate gate;
  engine.push([&] { gate.pass(); }, {});
  std::vector<int> order, expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  for (int i = 0; i < 200; ++i) engine.push([&, i] { order.push_back(i); }, {});
  gate.open();
  engine.wait_all({.help = false});  // one thread, one op at a time
  EXPECT_EQ(order, expected);
}

/// Failure case 43, ageing: under a flood of high priorities that never ends by itself the low ones run too.
TEST(Parallel, LowPrioritiesRunUnderAFlood) {
  QuietEngine engine({.threads = 1});
  std::atomic<int> low{0};
  std::function<void()> flood = [&] {
    if (low.load() < 3) engine.push([&] { flood(); }, {}, {.priority = 7});
  };
  for (int i = 0; i < 8; ++i) engine.push([&] { flood(); }, {}, {.priority = 7});
  for (int priority : {0, 2, 4}) engine.push([&] { low.fetch_add(1); }, {}, {.priority = priority});
  while (engine.in_flight() > 0) engine.wait_all();
  EXPECT_EQ(low.load(), 3);
}

}  // namespace
}  // namespace sluice
