// The simulator against the formulas, and the figures of a timeline.
#include "sluice/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <vector>

#include "schedules.h"

namespace sluice::parallel {
namespace {

std::vector<StageCost> uniform(int stages, double forward, double backward) {
  return std::vector<StageCost>(static_cast<std::size_t>(stages), StageCost{forward, backward});
}

// Each box after what it reads, and after the box before it on its stage.
void expect_possible(const Schedule& schedule, const Simulation& simulation) {
  std::size_t actions = 0;
  for (const auto& list : schedule.per_device) actions += list.size();
  ASSERT_EQ(simulation.boxes.size(), actions);
  const Order order(schedule);
  std::map<Action, SimulatedBox> at;
  for (const SimulatedBox& box : simulation.boxes) at[box.action] = box;
  for (const auto& lane : schedule.per_device) {
    for (std::size_t i = 0; i < lane.size(); ++i) {
      const SimulatedBox& box = at.at(lane[i]);
      EXPECT_LE(box.start, box.end);
      if (i > 0) {
        EXPECT_LE(at.at(lane[i - 1]).end, box.start) << to_text(lane[i]);
      }
      for (const Action& needed : order.needs(lane[i])) {
        EXPECT_LE(at.at(needed).end, box.start) << to_text(lane[i]) << " and " << to_text(needed);
      }
    }
  }
  EXPECT_TRUE(std::ranges::is_sorted(simulation.boxes, {}, &SimulatedBox::start));
}

TEST(Simulate, MakespanOfTheReference) {
  const Simulation simulation = simulate(one_f_one_b(4, 8), uniform(4, 1, 2));
  EXPECT_EQ(simulation.span, 33);
  EXPECT_EQ(simulation.busy, 4 * 8 * 3);
  EXPECT_DOUBLE_EQ(simulation.bubble, bubble_formula(4, 8));
}

TEST(Simulate, BubbleIsTheFormulaForEqualStages) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, std::max(1, p - 1), p, 2 * p, 4 * p}) {
      for (const auto& [f, b] : {std::pair{1.0, 2.0}, {2.0, 3.0}, {10.0, 21.0}, {1.0, 1.0}, {3.0, 1.0}, {0.1, 0.23}}) {
        for (const char* name : {"gpipe", "1f1b"}) {
          SCOPED_TRACE(std::string(name) + " p=" + std::to_string(p) + " m=" + std::to_string(m) +
                       " F=" + std::to_string(f) + " B=" + std::to_string(b));
          const Schedule schedule = make_schedule(name, p, m);
          const Simulation simulation = simulate(schedule, uniform(p, f, b));
          EXPECT_NEAR(simulation.bubble, bubble_formula(p, m), 1e-12);
          EXPECT_NEAR(simulation.span, (m + p - 1) * (f + b), 1e-9);
          expect_possible(schedule, simulation);
        }
      }
    }
  }
}

TEST(Simulate, UnequalStagesWaitForTheSlowest) {
  const std::vector<StageCost> costs{{1, 1}, {4, 6}};
  const Simulation simulation = simulate(one_f_one_b(2, 5), costs);
  EXPECT_EQ(simulation.span, 1 + 5 * (4 + 6) + 1);
  EXPECT_EQ(simulation.busy, 5 * (1 + 1 + 4 + 6));
  expect_possible(one_f_one_b(2, 5), simulation);
}

TEST(Simulate, OneCoreDoesAllTheWorkInASumOfCosts) {
  for (const int p : {1, 2, 4}) {
    const Schedule schedule = one_f_one_b(p, 6);
    const Simulation simulation = simulate(schedule, uniform(p, 1, 2), {.cores = 1});
    EXPECT_NEAR(simulation.span, p * 6 * 3, 1e-9);
    expect_possible(schedule, simulation);
  }
}

TEST(Simulate, SharedCoresStretchBoxes) {
  // Two stages, two microbatches, one core. F(0,0) runs alone; then F(0,1) and F(1,0) share and take 2 each.
  const Simulation simulation = simulate(gpipe(2, 2), uniform(2, 1, 1), {.cores = 1});
  std::map<Action, SimulatedBox> at;
  for (const SimulatedBox& box : simulation.boxes) at[box.action] = box;
  EXPECT_EQ((at[{F, 0, 0}].end), 1);
  EXPECT_EQ((at[{F, 0, 1}].start), 1);
  EXPECT_EQ((at[{F, 0, 1}].end), 3);
  EXPECT_EQ((at[{F, 1, 0}].end), 3);
  EXPECT_EQ((at[{F, 1, 1}].end), 4);
  EXPECT_EQ((at[{B, 1, 0}].end), 5);
  EXPECT_EQ((at[{B, 0, 0}].end), 7);
  EXPECT_EQ((at[{B, 1, 1}].end), 7);
  EXPECT_EQ(simulation.span, 8);
  // Six of the sixteen stage-seconds are idle, although the core never was.
  EXPECT_EQ(simulation.busy, 12);
  EXPECT_DOUBLE_EQ(simulation.bubble, 0.25);
}

TEST(Simulate, CoresBoundTheSpan) {
  for (const int p : {2, 3, 4, 8}) {
    const Schedule schedule = one_f_one_b(p, 2 * p);
    const double work = p * 2 * p * 3.0;
    const double alone = simulate(schedule, uniform(p, 1, 2)).span;
    double before = std::numeric_limits<double>::infinity();
    for (int cores = 1; cores <= p + 2; ++cores) {
      const Simulation simulation = simulate(schedule, uniform(p, 1, 2), {.cores = cores});
      expect_possible(schedule, simulation);
      EXPECT_LE(simulation.span, before + 1e-9) << p << " stages on " << cores << " cores";
      EXPECT_GE(simulation.span, std::max(alone, work / cores) - 1e-9);
      if (cores >= p) {
        EXPECT_EQ(simulation.span, alone);
      }
      before = simulation.span;
    }
  }
}

TEST(Simulate, TheThreadThatPushesSharesTheCores) {
  const std::vector<StageCost> costs = uniform(1, 1, 1);
  // 4 s of work and 2 s of pushing.
  EXPECT_DOUBLE_EQ(simulate(gpipe(1, 2), costs, {.cores = 1, .push = 2}).span, 6);
  EXPECT_DOUBLE_EQ(simulate(gpipe(1, 2), costs, {.cores = 2, .push = 2}).span, 4);
  EXPECT_DOUBLE_EQ(simulate(gpipe(1, 2), costs, {.push = 2}).span, 4);
  EXPECT_DOUBLE_EQ(simulate(gpipe(1, 2), costs, {.cores = 2, .push = 5}).span, 5) << "then pushing takes longest";
  // One stage after the other.
  const std::vector<StageCost> forwards{{3, 0}, {3, 0}};
  EXPECT_DOUBLE_EQ(simulate(gpipe(2, 1), forwards, {.cores = 2, .push = 2}).span, 6);
  EXPECT_DOUBLE_EQ(simulate(gpipe(2, 1), forwards, {.cores = 1, .push = 2}).span, 8);
  EXPECT_THROW(simulate(gpipe(1, 2), costs, {.push = -1}), std::invalid_argument);
}

TEST(Simulate, ACopyTakesACore) {
  // Forwards of 1 s, and 4 bytes over at 2 a second. On one core the copy of one microbatch and what runs meanwhile
  // take their times one after the other, in sum.
  const std::vector<StageCost> forwards{{1, 0}, {1, 0}};
  SimulateOptions machine{.cores = 1, .link = {.latency = 0, .bandwidth = 2}, .link_takes_cores = true};
  machine.output_bytes = {4, 0};
  const Schedule two = gpipe(2, 1);
  EXPECT_DOUBLE_EQ(simulate(two, forwards, machine).span, 1 + 2 + 1 + 2) << "and the gradient back";
  const Schedule four = gpipe(2, 2);
  EXPECT_DOUBLE_EQ(simulate(four, forwards, machine).span, 4 + 4 * 2);
  machine.link_takes_cores = false;
  EXPECT_LT(simulate(four, forwards, machine).span, 4 + 4 * 2);
}

TEST(Simulate, AGradientIsSentBeforeABackwardPassEnds) {
  // F 1, B 2 on each stage; the upper stage's gradient is there after a quarter of its B.
  const std::vector<StageCost> costs = uniform(2, 1, 2);
  const SimulateOptions early{.gradient_share = {1, .25}};
  const Simulation one = simulate(gpipe(2, 1), costs, early);
  EXPECT_DOUBLE_EQ(one.span, 1 + 1 + .5 + 2);
  EXPECT_DOUBLE_EQ(one.busy, 6) << "no more work than before";
  for (const SimulatedBox& box : one.boxes) EXPECT_DOUBLE_EQ(box.end - box.start, box.action.kind == F ? 1 : 2);
  EXPECT_DOUBLE_EQ(simulate(gpipe(2, 1), costs, {.link = {.latency = .25}, .gradient_share = {1, .25}}).span, 5);
  // What I and W do one behind the other: so 1F1B's steady state is as long, and its start and end are shorter.
  for (const int m : {1, 2, 3, 8}) {
    const Schedule schedule = one_f_one_b(4, m);
    const double whole = simulate(schedule, uniform(4, 1, 2)).span;
    EXPECT_DOUBLE_EQ(simulate(schedule, uniform(4, 1, 2), {.gradient_share = {1, 1, 1, 1}}).span, whole);
    EXPECT_LT(simulate(schedule, uniform(4, 1, 2), {.gradient_share = {.5, .5, .5, .5}}).span, whole) << m;
  }
  EXPECT_THROW(simulate(gpipe(2, 1), costs, {.gradient_share = {1}}), std::invalid_argument);
  EXPECT_THROW(simulate(gpipe(2, 1), costs, {.gradient_share = {1, 1.5}}), std::invalid_argument);
}

TEST(Simulate, MemoryOverTimeIsThatOfTheBoxes) {
  const std::vector<StageBytes> bytes(
      2, {.weights = 1000, .saved = 100, .kept = 30, .input = 10, .both = 20, .gradients = 400});
  std::vector<StageCost> costs(2, cost_of_halves(1, 2, 3));
  for (StageCost& cost : costs) cost.recompute = 1;
  for (const Schedule& schedule : {gpipe(2, 3), zb_h1(2, 4), with_recompute(one_f_one_b(2, 4), {true, false})}) {
    const Simulation run = simulate(schedule, costs, {.bytes = bytes});
    std::vector<TimelineBox> boxes = to_timeline(run);
    for (TimelineBox& box : boxes) box.start += 7, box.end += 7;
    const auto memory = memory_over_time(schedule, boxes, bytes);
    const std::vector<PeakBytes> peaks = peak_bytes(schedule, bytes);
    ASSERT_EQ(memory.size(), 2U);
    for (std::size_t d = 0; d < 2; ++d) {
      ASSERT_EQ(memory[d].size(), run.memory[d].size());
      double most = 0;
      for (std::size_t i = 0; i < memory[d].size(); ++i) {
        EXPECT_EQ(memory[d][i].time, run.memory[d][i].time + 7);
        EXPECT_EQ(memory[d][i].bytes, run.memory[d][i].bytes);
        most = std::max(most, memory[d][i].bytes);
      }
      EXPECT_EQ(memory[d].front().time, 7);
      EXPECT_EQ(memory[d].back().bytes, 1000);
      EXPECT_EQ(most, peaks[d].bytes) << schedule.name;
    }
  }
  // The first stage's I has no box where it does nothing.
  const Schedule one = zb_h1(1, 1);
  const auto memory =
      memory_over_time(one, std::vector<TimelineBox>{{F, 0, 0, 0, 1}, {ActionKind::weight_gradient, 0, 0, 1, 2}},
                       std::vector<StageBytes>{{.saved = 8, .kept = 8, .both = 8}});
  EXPECT_EQ(memory[0].back().bytes, 0);
  EXPECT_THROW(memory_over_time(one, std::vector<TimelineBox>{{F, 0, 1, 0, 1}}, std::vector<StageBytes>(1)),
               std::invalid_argument);
  EXPECT_THROW(memory_over_time(one, {}, bytes), std::invalid_argument);
}

TEST(Simulate, ZeroCostsEnd) {
  const Simulation free = simulate(gpipe(3, 4), uniform(3, 0, 0));
  EXPECT_EQ(free.span, 0);
  EXPECT_EQ(free.bubble, 0);
  EXPECT_EQ(simulate(one_f_one_b(3, 4), uniform(3, 0, 1), {.cores = 2}).boxes.size(), 24u);
}

TEST(Simulate, RefusesBadArguments) {
  const Schedule schedule = gpipe(2, 2);
  EXPECT_THROW(simulate(schedule, uniform(3, 1, 1)), std::invalid_argument);
  EXPECT_THROW(simulate(schedule, uniform(2, -1, 1)), std::invalid_argument);
  EXPECT_THROW(simulate(schedule, uniform(2, 1, std::numeric_limits<double>::quiet_NaN())), std::invalid_argument);
  EXPECT_THROW(simulate(schedule, uniform(2, 1, 1), {.cores = -1}), std::invalid_argument);
  EXPECT_THROW(simulate(Schedule{1, 1, "empty", {{}}}, uniform(1, 1, 1)), std::invalid_argument);
}

TEST(Timeline, FiguresOfASimulationAreTheSimulations) {
  const std::vector<StageCost> costs{{1, 2}, {2, 3}, {1.5, 2.5}};
  const Simulation simulation = simulate(one_f_one_b(3, 5), costs);
  const TimelineFigures figures = measure(to_timeline(simulation), 3);
  EXPECT_DOUBLE_EQ(figures.span, simulation.span);
  EXPECT_DOUBLE_EQ(figures.busy, simulation.busy);
  EXPECT_DOUBLE_EQ(figures.bubble, simulation.bubble);
  for (std::size_t s = 0; s < costs.size(); ++s) {
    EXPECT_DOUBLE_EQ(figures.mean[s].forward, costs[s].forward);
    EXPECT_DOUBLE_EQ(figures.mean[s].backward, costs[s].backward);
  }
}

TEST(Timeline, MeasuresFromAnyOriginAndRefusesNonsense) {
  const std::vector<TimelineBox> boxes{{B, 0, 0, 102, 103}, {F, 0, 0, 100, 101}};
  const TimelineFigures figures = measure(boxes, 2);
  EXPECT_EQ(figures.span, 3);
  EXPECT_EQ(figures.busy, 2);
  EXPECT_DOUBLE_EQ(figures.bubble, 1 - 2.0 / 6);
  EXPECT_EQ(figures.mean[1].forward, 0);
  // A free order's boxes overlap.
  EXPECT_EQ(measure(std::vector<TimelineBox>{{F, 0, 0, 0, 3}, {B, 0, 0, 1, 2}, {F, 0, 1, 2, 5}}, 1).busy, 5);
  EXPECT_EQ(measure({}, 2).span, 0);
  EXPECT_EQ(measure({}, 2).mean.size(), 2u);
  EXPECT_THROW(measure(boxes, 0), std::invalid_argument);
  EXPECT_THROW(measure(std::vector<TimelineBox>{{F, 2, 0, 0, 1}}, 2), std::invalid_argument);
  EXPECT_THROW(measure(std::vector<TimelineBox>{{F, 0, 0, 1, 0}}, 2), std::invalid_argument);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(measure(std::vector<TimelineBox>{{F, 0, 0, nan, 1}}, 2), std::invalid_argument);
}

TEST(Timeline, BubbleFormula) {
  EXPECT_DOUBLE_EQ(bubble_formula(1, 5), 0);
  EXPECT_DOUBLE_EQ(bubble_formula(4, 8), 3.0 / 11);
  EXPECT_THROW(bubble_formula(0, 1), std::invalid_argument);
  EXPECT_THROW(bubble_formula(1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::parallel
