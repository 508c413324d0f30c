#include "sluice/parallel/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "sluice/parallel/verify.h"

namespace sluice::parallel {
namespace {

void check_arguments(const Schedule& schedule, std::span<const StageCost> costs, int cores) {
  verify(schedule);
  if (costs.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("simulating " + std::to_string(schedule.stages) + " stages needs as many costs, not " +
                                std::to_string(costs.size()));
  }
  for (std::size_t s = 0; s < costs.size(); ++s) {
    for (const double cost : {costs[s].forward, costs[s].backward}) {
      if (!std::isfinite(cost) || cost < 0) {
        throw std::invalid_argument("stage " + std::to_string(s) + " has a cost of " + std::to_string(cost));
      }
    }
  }
  if (cores < 0) throw std::invalid_argument("cannot simulate on " + std::to_string(cores) + " cores");
}

}  // namespace

Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs, int cores) {
  check_arguments(schedule, costs, cores);
  constexpr std::size_t kIdle = std::numeric_limits<std::size_t>::max();
  struct Stage {
    std::size_t next = 0;         // position in the stage's list
    std::size_t running = kIdle;  // its box in result.boxes
    double work_end = 0;          // where the work clock stands when the running box is done
  };
  std::vector<Stage> stages(schedule.per_stage.size());
  std::vector<bool> done(static_cast<std::size_t>(action_count(schedule)));
  const auto is_done = [&](const Action& a) { return done[static_cast<std::size_t>(index_of(schedule, a))]; };

  Simulation result;
  result.stages = schedule.stages;
  // All running boxes go on at the same speed, so one clock of work done per box serves them all; it goes slower than
  // time while they share cores.
  double time = 0, work = 0;
  for (;;) {
    int running = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      Stage& stage = stages[s];
      if (stage.running == kIdle && stage.next < schedule.per_stage[s].size()) {
        const Action& action = schedule.per_stage[s][stage.next];
        if (std::ranges::all_of(data_dependencies(schedule, action), is_done)) {
          stage.work_end = work + (action.kind == ActionKind::forward ? costs[s].forward : costs[s].backward);
          stage.running = result.boxes.size();
          result.boxes.push_back({action, time, time});
          ++stage.next;
        }
      }
      if (stage.running != kIdle) ++running;
    }
    if (running == 0) break;

    double until = std::numeric_limits<double>::infinity();
    for (const Stage& stage : stages) {
      if (stage.running != kIdle) until = std::min(until, stage.work_end);
    }
    const double speed = cores == 0 ? 1.0 : std::min(1.0, static_cast<double>(cores) / running);
    time += (until - work) / speed;
    work = until;
    for (Stage& stage : stages) {
      if (stage.running == kIdle || stage.work_end > work) continue;
      SimulatedBox& box = result.boxes[stage.running];
      box.end = time;
      result.busy += box.end - box.start;
      done[static_cast<std::size_t>(index_of(schedule, box.action))] = true;
      stage.running = kIdle;
    }
  }
  result.span = time;
  if (result.span > 0) result.bubble = 1 - result.busy / (schedule.stages * result.span);
  return result;
}

std::vector<TimelineBox> to_timeline(const Simulation& simulation) {
  std::vector<TimelineBox> boxes;
  boxes.reserve(simulation.boxes.size());
  for (const auto& [action, start, end] : simulation.boxes) {
    boxes.push_back({action.kind, action.stage, action.microbatch, start, end});
  }
  return boxes;
}

}  // namespace sluice::parallel
