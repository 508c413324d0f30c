// The simulators' core: devices, shared links, ranks.
#include "sluice/schedule/task_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace sluice::parallel {
namespace {

TEST(TaskGraph, ADeviceRunsOneTaskAtATimeTheLeastRankFirst) {
  TaskGraph graph;
  const int device = graph.add_device();
  const int late = graph.add_task({.device = device, .work = 1, .rank = 2});
  const int soon = graph.add_task({.device = device, .work = 2, .rank = 1});
  const int again = graph.add_task({.device = device, .work = 4, .rank = 1});
  const TaskGraph::Times times = graph.run();
  EXPECT_EQ(times.start[static_cast<std::size_t>(soon)], 0);
  EXPECT_EQ(times.start[static_cast<std::size_t>(again)], 2);
  EXPECT_EQ(times.start[static_cast<std::size_t>(late)], 6);
  EXPECT_EQ(times.span, 7);
}

// What becomes ready at a moment is seen by whoever becomes free at that moment.
TEST(TaskGraph, AllEndsOfAMomentComeBeforeItsStarts) {
  TaskGraph graph;
  const int a = graph.add_device(), b = graph.add_device();
  const int first = graph.add_task({.device = a, .work = 1});
  const int other = graph.add_task({.device = b, .work = 1});
  const int waiting = graph.add_task({.device = a, .work = 1, .rank = 5});
  const int urgent = graph.add_task({.device = a, .work = 1, .rank = 1});
  graph.add_dependency(urgent, other);
  const TaskGraph::Times times = graph.run();
  EXPECT_EQ(times.end[static_cast<std::size_t>(first)], 1);
  EXPECT_EQ(times.start[static_cast<std::size_t>(urgent)], 1);
  EXPECT_EQ(times.start[static_cast<std::size_t>(waiting)], 2);
}

TEST(TaskGraph, JobsShareAPool) {
  TaskGraph graph;
  const int link = graph.add_pool(10);
  graph.add_task({.pool = link, .work = 10});
  graph.add_task({.pool = link, .work = 30});
  graph.add_task({.pool = link, .delay = 3, .work = 20});
  // Alone 10 a second. Two share until 2 s; then the second has 20 left, 10 of them at 3 s, when the third begins.
  const TaskGraph::Times times = graph.run();
  EXPECT_DOUBLE_EQ(times.end[0], 2);
  EXPECT_DOUBLE_EQ(times.end[1], 5);
  EXPECT_DOUBLE_EQ(times.end[2], 6);
  TaskGraph cores;
  const int two = cores.add_pool(2, 1);
  for (int i = 0; i < 3; ++i) cores.add_task({.pool = two, .work = 2});
  EXPECT_DOUBLE_EQ(cores.run().span, 3);
  TaskGraph instant;
  const int free = instant.add_pool(std::numeric_limits<double>::infinity());
  instant.add_task({.pool = free, .delay = 2, .work = 1e9});
  EXPECT_EQ(instant.run().span, 2);
}

TEST(TaskGraph, RefusesWhatCannotBe) {
  TaskGraph graph;
  EXPECT_THROW(graph.add_task({.device = 0}), std::invalid_argument);
  EXPECT_THROW(graph.add_task({.pool = 0}), std::invalid_argument);
  EXPECT_THROW(graph.add_task({.work = -1}), std::invalid_argument);
  EXPECT_THROW(graph.add_task({.delay = std::numeric_limits<double>::quiet_NaN()}), std::invalid_argument);
  EXPECT_THROW(graph.add_pool(0), std::invalid_argument);
  const int a = graph.add_task({.work = 1}), b = graph.add_task({.work = 1});
  EXPECT_THROW(graph.add_dependency(a, 7), std::invalid_argument);
  EXPECT_THROW(graph.set_work(7, 1), std::invalid_argument);
  EXPECT_THROW(graph.set_work(a, -1), std::invalid_argument);
  graph.add_dependency(a, b);
  graph.add_dependency(b, a);
  EXPECT_THROW(graph.run(), std::invalid_argument);
  EXPECT_EQ(TaskGraph().run().span, 0);
}

// Against a simulation in small steps of time.
TEST(TaskGraph, AgreesWithSmallSteps) {
  std::mt19937 random(17);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("seed 17, round " + std::to_string(round));
    TaskGraph graph;
    constexpr int kTasks = 12;
    const int devices = 1 + round % 3;
    for (int d = 0; d < devices; ++d) graph.add_device();
    const double capacity = 2, most = round % 2 ? 1 : 2;
    graph.add_pool(capacity, most);
    std::vector<TaskGraph::Task> tasks;
    std::vector<std::vector<int>> before(kTasks);
    for (int t = 0; t < kTasks; ++t) {
      TaskGraph::Task task{.work = static_cast<double>(1 + random() % 4), .rank = static_cast<int>(random() % 3)};
      if (random() % 3) task.device = static_cast<int>(random() % static_cast<unsigned>(devices));
      if (random() % 2) task.pool = 0;
      if (random() % 4 == 0) task.delay = 1;
      graph.add_task(task);
      tasks.push_back(task);
      for (int b = 0; b < t; ++b) {
        if (random() % 5 != 0) continue;
        before[static_cast<std::size_t>(t)].push_back(b);
        graph.add_dependency(t, b);
      }
    }
    const TaskGraph::Times times = graph.run();
    // Steps of 1/240: all moments of these tasks are multiples of fractions with small denominators only at first, so
    // the end may differ by some steps.
    constexpr double kStep = 1.0 / 2400;
    std::vector<double> delay(kTasks), work(kTasks), end(kTasks, -1);
    std::vector<bool> started(kTasks);
    std::vector<int> busy(static_cast<std::size_t>(devices), -1);
    for (double now = 0; std::ranges::count(end, -1.0) > 0 && now < 100; now += kStep) {
      for (std::size_t t = 0; t < kTasks; ++t) {
        if (!started[t] || end[t] >= 0 || delay[t] > 1e-9 || work[t] > 1e-9) continue;
        end[t] = now;
        if (tasks[t].device >= 0) busy[static_cast<std::size_t>(tasks[t].device)] = -1;
      }
      for (int rank = 0; rank < 3; ++rank) {
        for (std::size_t t = 0; t < kTasks; ++t) {
          const bool ready =
              std::ranges::all_of(before[t], [&](int b) { return end[static_cast<std::size_t>(b)] >= 0; });
          if (started[t] || tasks[t].rank != rank || !ready) continue;
          if (tasks[t].device >= 0) {
            if (busy[static_cast<std::size_t>(tasks[t].device)] >= 0) continue;
            busy[static_cast<std::size_t>(tasks[t].device)] = static_cast<int>(t);
          }
          started[t] = true;
          delay[t] = tasks[t].delay;
          work[t] = tasks[t].work;
        }
      }
      int jobs = 0;
      for (std::size_t t = 0; t < kTasks; ++t) {
        jobs += started[t] && end[t] < 0 && delay[t] <= 1e-9 && work[t] > 1e-9 && tasks[t].pool == 0;
      }
      for (std::size_t t = 0; t < kTasks; ++t) {
        if (!started[t] || end[t] >= 0) continue;
        if (delay[t] > 1e-9) {
          delay[t] -= kStep;
        } else {
          work[t] -= kStep * (tasks[t].pool == 0 ? std::min(most, capacity / jobs) : 1);
        }
      }
    }
    for (std::size_t t = 0; t < kTasks; ++t) EXPECT_NEAR(times.end[t], end[t], 0.05) << "task " << t;
  }
}

}  // namespace
}  // namespace sluice::parallel
