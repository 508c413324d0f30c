// The simulation of a step (simulate.h), and what is read from one.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/engine/number_text.h"
#include "sluice/schedule/simulate_parts.h"
#include "sluice/schedule/simulated_tasks.h"
#include "sluice/schedule/task_graph.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

using detail::check_costs;
using detail::factor;
using detail::number_of;

/// Memory by the table of action kinds, over time.
std::vector<std::vector<MemoryPoint>> memory_of(const Schedule& schedule, const Order& order,
                                                std::span<const SimulatedBox> boxes,
                                                std::span<const StageBytes> bytes) {
  std::vector<std::vector<MemoryPoint>> changes(schedule.per_device.size());
  std::vector<double> always(schedule.per_device.size());
  for (int s = 0; s < schedule.stages; ++s) {
    always[static_cast<std::size_t>(order.device_of_stage(s))] += bytes[static_cast<std::size_t>(s)].weights;
  }
  for (const auto& [a, start, end] : boxes) {
    const StageBytes& of = bytes[static_cast<std::size_t>(a.stage)];
    auto& device = changes[static_cast<std::size_t>(order.device(a))];
    const double more = held_at_start(a.kind, of, order.recomputes(a.stage, a.microbatch));
    const double less = held_at_end(a.kind, of);
    if (more != 0) device.push_back({start, more});
    if (less != 0) device.push_back({end, less});
  }
  double begin = std::numeric_limits<double>::infinity();
  for (const SimulatedBox& box : boxes) begin = std::min(begin, box.start);
  if (boxes.empty()) begin = 0;
  std::vector<std::vector<MemoryPoint>> curves(changes.size());
  for (std::size_t d = 0; d < changes.size(); ++d) {
    // What ends at a moment is free before what starts then.
    std::ranges::sort(changes[d], {}, [](const MemoryPoint& p) { return std::pair(p.time, p.bytes); });
    double held = always[d];
    curves[d].push_back({begin, held});
    for (const auto& [time, change] : changes[d]) {
      held += change;
      if (curves[d].back().time == time) {
        curves[d].back().bytes = held;
      } else {
        curves[d].push_back({time, held});
      }
    }
  }
  return curves;
}

}  // namespace

Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs, const SimulateOptions& options) {
  check_costs(schedule, costs);
  if (!(options.push >= 0 && std::isfinite(options.push))) {
    throw std::invalid_argument("cannot simulate a thread that pushes for " + general_text(options.push, 6) + " s");
  }
  if (options.cores < 0) throw std::invalid_argument("cannot simulate on " + std::to_string(options.cores) + " cores");
  for (const std::size_t given : {options.output_bytes.size(), options.gradient_share.size(), options.bytes.size()}) {
    if (given == 0 || given == costs.size()) continue;
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but bytes or shares are given for " + std::to_string(given));
  }
  for (const double share : options.gradient_share) {
    if (!(share >= 0 && share <= 1))
      throw std::invalid_argument("a gradient cannot be sent after " + general_text(share, 6) + " of a backward pass");
  }
  const bool in_parts = std::ranges::any_of(options.gradient_share, [](double share) { return share < 1; });
  SimulatedTasks tasks(schedule, options, in_parts);
  std::vector<double> factors;
  for (const auto& box : tasks.boxes()) factors.push_back(factor(options.jitter, number_of(box.action)));
  tasks.set(costs, options, factors);
  const TaskGraph::Times times = tasks.run();

  Simulation result;
  result.devices = schedule.devices();
  std::vector<double> first(schedule.per_device.size(), std::numeric_limits<double>::infinity()), last(first.size());
  for (const auto& [action, begins, ends, device] : tasks.boxes()) {
    const auto d = static_cast<std::size_t>(device);
    const SimulatedBox box{action, times.start[static_cast<std::size_t>(begins)],
                           times.end[static_cast<std::size_t>(ends)]};
    result.boxes.push_back(box);
    result.busy += box.end - box.start;
    result.span = std::max(result.span, box.end);
    first[d] = std::min(first[d], box.start);
    last[d] = std::max(last[d], box.end);
    result.longest_device = std::max(result.longest_device, last[d] - first[d]);
  }
  result.span = std::max(result.span, times.span);
  std::ranges::stable_sort(result.boxes, {}, &SimulatedBox::start);
  if (result.span > 0) result.bubble = 1 - result.busy / (result.devices * result.span);
  if (!options.bytes.empty()) result.memory = memory_of(schedule, Order(schedule), result.boxes, options.bytes);
  return result;
}

std::vector<std::vector<MemoryPoint>> memory_over_time(const Schedule& schedule, std::span<const TimelineBox> boxes,
                                                       std::span<const StageBytes> stages) {
  check_actions(schedule);
  if (stages.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but bytes are given for " + std::to_string(stages.size()));
  }
  const Order order(schedule);
  std::vector<SimulatedBox> all;
  std::vector<bool> there(static_cast<std::size_t>(action_count(schedule)));
  for (const TimelineBox& box : boxes) {
    const Action action{box.kind, box.stage, box.microbatch};
    const bool known = box.stage >= 0 && box.stage < schedule.stages && box.microbatch >= 0 &&
                       box.microbatch < schedule.microbatches && order.has(action);
    if (!known) {
      throw std::invalid_argument("schedule '" + schedule.name + "' has no " + to_text(action) + ", which has a box");
    }
    there[static_cast<std::size_t>(index_of(schedule, action))] = true;
    all.push_back({action, box.start, box.end});
  }
  for (const TimelineBox& box : boxes) {
    if (box.kind != ActionKind::weight_gradient) continue;
    const Action half{ActionKind::input_gradient, box.stage, box.microbatch};
    if (!there[static_cast<std::size_t>(index_of(schedule, half))]) all.push_back({half, box.start, box.start});
  }
  return memory_of(schedule, order, all, stages);
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
