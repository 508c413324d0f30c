// Many ops blocked in waits at once, and waits on threads that the engine did not start.
#include <gtest/gtest.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/detail/sanitizers.h"
#include "sluice/engine/detail/tsan.h"
#include "support.h"

namespace sluice {
namespace {

using testing::Gate;
using testing::Held;
using testing::QuietEngine;
using testing::Signal;
using testing::thrown;
using namespace std::chrono_literals;

#if defined(SLUICE_ASAN) || defined(SLUICE_TSAN)
constexpr int kDeep = 300, kMany = 200;
#else
constexpr int kDeep = 1500, kMany = 700;
#endif

/// A task_group whose hand-over ThreadSanitizer is told of: it does not see inside oneTBB.
class Tasks {
 public:
  void run(std::function<void()> body) {
    bodies_.push_back(std::move(body));
    SLUICE_HANDS_OVER(this);
    group_.run([this, task = &bodies_.back()]() SLUICE_UNSEEN { call(this, task); });
  }
  void wait() {
    group_.wait();
    SLUICE_TAKES_OVER(this);
  }

 private:
  static void call([[maybe_unused]] Tasks* tasks, const std::function<void()>* task) {
    SLUICE_TAKES_OVER(tasks);
    (*task)();
    SLUICE_HANDS_OVER(tasks);
  }
  std::deque<std::function<void()>> bodies_;
  tbb::task_group group_;
};

/// How often threads of this process have gone to sleep.
long sleeps() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_nvcsw;
}

/// Each op pushes another and waits for it. No thread that is blocked keeps credits: the caps hold that many ops.
TEST(Blocked, NestedPushAndWaitGoesDeep) {
  QuietEngine engine({.max_ops = 2048});
  std::atomic<int> ran{0};
  std::function<void(int)> go = [&](int depth) {
    ran.fetch_add(1);
    if (depth > 1) engine.push([&go, depth] { go(depth - 1); }, {}).wait();
  };
  EXPECT_NO_THROW(engine.push([&] { go(kDeep); }, {}).wait());
  EXPECT_EQ(ran.load(), kDeep);
}

/// A lane of one thread begins an op when the one before it is blocked. What a waiter costs is what it does when it
/// wakes; how often that is does not depend on how busy the machine is, as CPU time does.
TEST(Blocked, ManyWaitersWakeSeldom) {
  QuietEngine engine;
  const Variable v = engine.variable("v");
  Held held;
  engine.push(held.body(), {write(v)});
  std::atomic<int> waiting{0};
  for (int i = 0; i < kMany; ++i)
    engine.push(
        [&] {
          waiting.fetch_add(1);
          waiting.notify_all();
          engine.wait(v);
        },
        {}, {.on = io()});
  for (int n = waiting.load(); n < kMany; n = waiting.load()) waiting.wait(n);
  const long before = sleeps();
  std::this_thread::sleep_for(2s);  // the time that is looked at
  std::printf("%.1f sleeps of each\n", static_cast<double>(sleeps() - before) / kMany);
  EXPECT_LT(sleeps() - before, 20 * kMany) << "it is 200 of each where they wake at every tick";
  held.completion.done();
  engine.wait_all();
}

/// Those who are blocked look less and less often, and yet a new circle among them is found at once.
TEST(Blocked, ACircleAmongManyWaiters) {
  constexpr int kWaiters = kMany / 4;
  QuietEngine engine;
  const Variable v = engine.variable("v"), a = engine.variable("a");
  Held held;
  engine.push(held.body(), {write(v)});
  std::atomic<int> waiting{0};
  for (int i = 0; i < kWaiters; ++i)
    engine.push(
        [&] {
          waiting.fetch_add(1);
          waiting.notify_all();
          engine.wait(v);
        },
        {}, {.on = io()});
  for (int n = waiting.load(); n < kWaiters; n = waiting.load()) waiting.wait(n);
  const Ticket t = engine.push([&] { engine.push([] {}, {read(a)}).wait(); }, {write(a)}, {.on = io()});
  const ErrorRef root = thrown([&] { EXPECT_TRUE(t.wait_for(30s)); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->kind, ErrorKind::deadlock);
  held.completion.done();
  (void)thrown([&] { engine.wait(v); });
}

/// The body's own thread stands in the group's wait, and the group's tasks push and wait on threads of oneTBB.
TEST(Blocked, WaitsInTasksOfABodyOnOtherThreads) {
  QuietEngine engine({.threads = 1});
  std::atomic<int> ran{0};
  std::vector<Ticket> ops;
  for (int k = 0; k < 2; ++k)
    ops.push_back(engine.push(
        [&] {
          tbb::task_arena arena(3);
          arena.execute([&] {
            Tasks tasks;
            Signal begun[2];
            for (Signal& b : begun)
              tasks.run([&] {
                b.raise();
                engine.push([&] { ++ran; }, {}).wait();
              });
            for (Signal& b : begun) b.wait();  // on two other threads
            tasks.wait();
          });
        },
        {}));
  for (const Ticket& t : ops) ASSERT_TRUE(t.wait_for(30s)) << engine.explain(t);
  EXPECT_EQ(ran.load(), 4);
}

/// The same in whatever arena the body happens to run in.
TEST(Blocked, WaitsInTaskGroupsOfBodies) {
  for (const int threads : {1, 2}) {
    QuietEngine engine({.threads = threads});
    const Variable v = engine.variable();
    std::atomic<int> ran{0};
    std::vector<Ticket> ops;
    for (int k = 0; k < 20; ++k)
      ops.push_back(engine.push(
          [&] {
            Tasks tasks;
            for (int i = 0; i < 2; ++i)
              tasks.run([&, i] {
                const Ticket t = engine.push([&] { ++ran; }, {update(v)});
                i ? t.wait() : engine.wait(v);
              });
            tasks.wait();
          },
          {}));
    for (const Ticket& t : ops) ASSERT_TRUE(t.wait_for(30s)) << engine.explain(t);
    EXPECT_EQ(ran.load(), 40);
  }
}

// ---- two engines

TEST(Blocked, AWaitInAnotherEngineLeavesRoomInTheLane) {
  QuietEngine one({.threads = 1}), two({.threads = 1});
  Ticket y, z;
  Gate pushed;
  const Ticket x = one.push([&] { pushed.pass(), y.wait(); }, {});
  z = one.push([] {}, {});
  y = two.push([&] { pushed.pass(), z.wait(); }, {});
  pushed.open();
  ASSERT_TRUE(x.wait_for(30s)) << one.explain(x);
  y.wait();
}

TEST(Blocked, TwoEnginesThatWaitForEachOtherAreNamed) {
  QuietEngine one({.threads = 1}), two({.threads = 1});
  const Variable a = one.variable("a");
  Ticket y, z;
  Gate pushed;
  const Ticket x = one.push([&] { pushed.pass(), y.wait(); }, {write(a)}, {.name = "x"});
  z = one.push([] {}, {read(a)}, {.name = "z"});
  // Gives up when it has been seen: for ever would be too long for a test.
  y = two.push([&] { pushed.pass(), z.wait_for(3s); }, {}, {.name = "y"});
  pushed.open();
  std::string text;
  const auto end = std::chrono::steady_clock::now() + 2s;
  while (text.find("circle") == std::string::npos && std::chrono::steady_clock::now() < end) {
    text = one.explain(x);
    std::this_thread::yield();
  }
  EXPECT_NE(text.find("'x'"), std::string::npos) << text;
  EXPECT_NE(text.find("blocked in its body by another engine, where 'y'"), std::string::npos) << text;
  EXPECT_NE(text.find("by another engine, where 'z'"), std::string::npos) << text;
  EXPECT_NE(text.find("waits for a behind 'x'"), std::string::npos) << text;
  EXPECT_NE(text.find("a circle through several engines, which can never end"), std::string::npos) << text;
  const auto now = std::chrono::steady_clock::now();
  one.overdue(1s, now);
  const std::string report = one.overdue(1s, now + 2s);
  EXPECT_NE(report.find("a circle through several engines"), std::string::npos) << report;
  two.overdue(1s, now);
  EXPECT_NE(two.overdue(1s, now + 2s).find("a circle through several engines"), std::string::npos);
  y.wait();
  x.wait();
}

}  // namespace
}  // namespace sluice
