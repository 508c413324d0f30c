#include "sluice/parallel/plan.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace sluice::parallel {
namespace {

/// The sizes of microbatches that so many of them have, at most `most` of the sizes.
std::vector<std::int64_t> sizes_of(std::int64_t rows, const std::vector<int>& microbatches, std::size_t most) {
  std::vector<std::int64_t> all;
  for (const int m : microbatches) {
    if (m < 1 || m > rows) continue;
    for (const std::int64_t size : {rows / m, (rows + m - 1) / m}) all.push_back(size);
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() <= most) return all;
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(all[i * (all.size() - 1) / (most - 1)]);
  return some;
}

}  // namespace

Plan plan(const Sequential& network, const Batch& batch, const std::vector<Device>& devices,
          const std::vector<double>& memory, PlanOptions options, MeasureOptions measure, std::source_location where) {
  batch.x.checked("plan", where);
  batch.target.checked("plan", where);
  options.devices = static_cast<int>(devices.size());
  options.memory = memory;
  options.rows = batch.x.size(0);
  if (options.microbatches.empty()) options.microbatches = plannable_microbatches(options.rows);
  if (measure.rows.empty()) measure.rows = sizes_of(options.rows, options.microbatches, 8);
  const Measured measured = measure_layers(network, batch, devices, measure, where);
  options.link = measured.link;
  options.cores = measured.cores;
  options.link_takes_cores = measured.cores > 0;
  return plan_layers(measured.layers, options);
}

std::vector<Stage> stages_of(const Candidate& candidate, const Sequential& network,
                             const std::vector<Device>& devices) {
  const Schedule schedule = candidate.make();
  if (schedule.devices() != static_cast<int>(devices.size())) {
    throw UsageError("[stages_of] a plan for " + std::to_string(schedule.devices()) + " devices, and there are " +
                     std::to_string(devices.size()));
  }
  const Order order(schedule);
  std::vector<Stage> stages;
  for (int s = 0; s < candidate.stages(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const auto end =
        i + 1 < candidate.first_layer.size() ? static_cast<std::size_t>(candidate.first_layer[i + 1]) : network.size();
    stages.push_back(
        {std::make_shared<Sequential>(network.slice(static_cast<std::size_t>(candidate.first_layer[i]), end)),
         devices[static_cast<std::size_t>(order.device_of_stage(s))]});
  }
  return stages;
}

}  // namespace sluice::parallel
