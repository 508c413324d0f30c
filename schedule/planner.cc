#include "sluice/schedule/planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/plan_search.h"

namespace sluice::parallel {
namespace {

void check(std::span<const LayerCost> layers, const PlanOptions& options) {
  const auto refuse = [](const std::string& why) { throw std::invalid_argument("a plan needs " + why); };
  if (layers.empty()) refuse("at least 1 layer");
  if (options.devices < 1) refuse("at least 1 device, not " + std::to_string(options.devices));
  if (options.rows < 1) refuse("at least 1 row, not " + std::to_string(options.rows));
  if (options.steps < 1) refuse("at least 1 step, not " + std::to_string(options.steps));
  if (options.most_simulations < 1) refuse("at least 1 simulation");
  if (!options.memory.empty() && options.memory.size() != static_cast<std::size_t>(options.devices)) {
    refuse("the memory of " + std::to_string(options.devices) + " devices, not of " +
           std::to_string(options.memory.size()));
  }
  for (const int m : options.microbatches) {
    if (m < 1) refuse("at least 1 microbatch, not " + std::to_string(m));
  }
  for (const double bytes : options.memory) {
    if (!(bytes >= 0)) refuse("memory of 0 bytes or more for each device");
  }
  const auto is_size = [](double x) { return std::isfinite(x) && x >= 0; };
  if (!is_size(options.link.latency) || !(options.link.bandwidth > 0)) {
    refuse("a link with a finite latency and a bandwidth above 0");
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    bool fine = is_size(layers[l].weights) && is_size(layers[l].gradients) && is_size(layers[l].step) &&
                is_size(layers[l].push);
    for (const LayerSample& s : layers[l].samples) {
      for (const double x : {s.rows, s.forward, s.input_gradient, s.weight_gradient, s.saved, s.shared, s.output,
                             s.input, s.kept, s.kept_shared, s.both, s.work}) {
        fine = fine && is_size(x);
      }
    }
    if (!fine) refuse("times and bytes that are finite and 0 or more; layer " + std::to_string(l) + " has others");
  }
}

/// All but the schedule.
void fill(CutProblem& problem, std::span<const LayerCost> layers, const PlanOptions& options, int microbatches) {
  problem.layers.assign(layers.begin(), layers.end());
  for (const LayerCost& layer : layers) {
    problem.samples.push_back(layer.at(static_cast<double>(options.rows) / microbatches));
  }
  problem.steps = problem.schedule.fixed_order ? options.steps : 1;
  problem.memory = options.memory;
  problem.machine = {.cores = options.cores,
                     .link = options.link,
                     .shared_link = options.shared_link,
                     .link_takes_cores = options.link_takes_cores};
  for (const LayerCost& layer : layers) problem.machine.push += layer.push * microbatches * problem.steps;
  problem.most_simulations = options.most_simulations;
}

/// For a cut that is given.
CutProblem problem_of(std::span<const LayerCost> layers, const PlanOptions& options, const Candidate& candidate) {
  check(layers, options);
  const std::vector<int>& first = candidate.first_layer;
  CutProblem problem;
  problem.schedule = make_schedule(candidate.schedule, candidate.stages(), candidate.microbatches);
  const bool increases = std::ranges::adjacent_find(first, std::greater_equal<>()) == first.end();
  if (candidate.stages() != options.devices * stages_of_a_device(candidate.schedule) || first[0] != 0 || !increases ||
      first.back() >= static_cast<int>(layers.size()) || candidate.recompute.size() != first.size()) {
    throw std::invalid_argument("a cut of " + std::to_string(layers.size()) + " layers for '" + candidate.schedule +
                                "' on " + std::to_string(options.devices) +
                                " devices has as many stages, and begins with layer 0");
  }
  fill(problem, layers, options, candidate.microbatches);
  problem.memory.clear();
  return problem;
}

void set(Candidate& candidate, const CutFound& found, std::int64_t rows) {
  candidate.first_layer = found.first_layer;
  candidate.recompute = found.recompute;
  candidate.seconds = found.seconds;
  candidate.throughput = found.seconds > 0 ? static_cast<double>(rows) / found.seconds : 0;
  candidate.bubble = found.bubble;
  candidate.peak = found.peak;
  candidate.bound = found.bound;
  candidate.exact = found.exact;
}

/// The best cut for one schedule and number of microbatches: one without recomputation, and one with it where that is
/// quicker or the only one that fits.
void add_candidates(std::span<const LayerCost> layers, const PlanOptions& options, const std::string& schedule,
                    int microbatches, std::vector<Candidate>& table) {
  Candidate candidate{.schedule = schedule, .microbatches = microbatches};
  const auto refuse = [&](const std::string& why) {
    candidate.refused = why;
    table.push_back(candidate);
  };
  if (microbatches > options.rows) return refuse("a batch has " + std::to_string(options.rows) + " rows");
  CutProblem problem;
  int stages = 0;
  try {
    stages = options.devices * stages_of_a_device(schedule);
    if (stages <= static_cast<int>(layers.size())) problem.schedule = make_schedule(schedule, stages, microbatches);
  } catch (const std::invalid_argument& e) {
    return refuse(e.what());
  }
  if (stages > static_cast<int>(layers.size())) {
    return refuse(std::to_string(stages) + " stages want as many layers, and there are " +
                  std::to_string(layers.size()));
  }
  fill(problem, layers, options, microbatches);
  const auto add = [&](const CutFound& found) {
    table.push_back(candidate);
    set(table.back(), found, options.rows);
  };
  CutFound found = search_cuts(problem);
  // In a free order what is recomputed would be so at once.
  problem.recompute = options.recompute && problem.schedule.fixed_order;
  CutFound again;
  if (problem.recompute) {
    if (found.found) problem.below = found.seconds;
    again = search_cuts(problem);
    if (!again.found) {
      // It went over all cuts, and not only those that recompute.
      found.exact = again.exact;
      found.bound = again.exact ? found.seconds : std::min(found.bound, again.bound);
      if (!found.found) found.needs = again.needs;
    }
  }
  if (found.found) add(found);
  if (again.found) return add(again);
  candidate.exact = found.exact;
  if (!found.found) refuse(found.needs.empty() ? "no cut takes a finite time" : found.needs);
}

}  // namespace

bool Candidate::recomputes() const { return std::ranges::find(recompute, true) != recompute.end(); }

Schedule Candidate::make() const { return with_recompute(make_schedule(schedule, stages(), microbatches), recompute); }

const Candidate& Plan::best() const {
  if (chosen < 0) throw std::runtime_error("no schedule is left: all candidates are refused");
  return table[static_cast<std::size_t>(chosen)];
}

std::vector<std::string> plannable_schedules(int devices) {
  const std::string p = std::to_string(devices), twice = std::to_string(2 * devices - 1);
  if (devices == 1) return {"1f1b", "gpipe"};
  return {"1f1b",          "gpipe",   "interleaved:2",
          "interleaved:3", "zb-h1",   "zb-h2",
          "zbv",           "dynamic", "dynamic:" + twice + "," + twice,
          "dynamic-v"};
}

std::vector<int> plannable_microbatches(std::int64_t rows) {
  std::vector<int> all;
  for (int m = 1; m <= 64 && rows % m == 0; m *= 2) all.push_back(m);
  return all;
}

Candidate time_cut(std::span<const LayerCost> layers, const PlanOptions& options, const std::string& schedule,
                   int microbatches, const std::vector<int>& first_layer, const std::vector<bool>& recompute) {
  Candidate candidate{.schedule = schedule,
                      .microbatches = microbatches,
                      .first_layer = first_layer,
                      .recompute = recompute.empty() ? std::vector<bool>(first_layer.size()) : recompute};
  set(candidate, time_cut(problem_of(layers, options, candidate), first_layer, candidate.recompute), options.rows);
  return candidate;
}

std::vector<StageBytes> bytes_of(std::span<const LayerCost> layers, const PlanOptions& options,
                                 const Candidate& candidate) {
  return parts_of(problem_of(layers, options, candidate), candidate.first_layer).bytes;
}

Simulation simulate(std::span<const LayerCost> layers, const PlanOptions& options, const Candidate& candidate) {
  CutParts parts = parts_of(problem_of(layers, options, candidate), candidate.first_layer);
  parts.machine.bytes = parts.bytes;
  return simulate(candidate.make(), parts.costs, parts.machine);
}

Plan plan_layers(std::span<const LayerCost> layers, const PlanOptions& options) {
  check(layers, options);
  Plan plan{.layers = {layers.begin(), layers.end()}, .options = options};
  if (options.microbatches.empty()) plan.options.microbatches = plannable_microbatches(options.rows);
  if (options.schedules.empty()) plan.options.schedules = plannable_schedules(options.devices);
  for (const std::string& schedule : plan.options.schedules) {
    for (const int m : plan.options.microbatches) add_candidates(layers, plan.options, schedule, m, plan.table);
  }
  const auto fullest = [](const Candidate& c) { return c.peak.empty() ? 0 : *std::ranges::max_element(c.peak); };
  std::ranges::stable_sort(plan.table, {}, [&](const Candidate& c) {
    return std::tuple(!c.refused.empty(), c.seconds, fullest(c), c.microbatches);
  });
  for (std::size_t i = 0; i < plan.table.size() && plan.chosen < 0; ++i) {
    const Candidate& c = plan.table[i];
    if (c.refused.empty()) plan.chosen = static_cast<int>(i);
  }
  return plan;
}

}  // namespace sluice::parallel
