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

Plan detail::plan(const nn::Contents& net, const nn::Stages& functions, const Batch& batch,
                  const std::vector<Device>& devices, const std::vector<double>& memory, PlanOptions options,
                  MeasureOptions measure, std::source_location where) {
  batch.target.checked("plan", where);
  for (const NDArray& x : batch.x) x.checked("plan", where);
  options.devices = static_cast<int>(devices.size());
  options.memory = memory;
  options.rows = batch.target.size(0, where);
  if (options.microbatches.empty()) options.microbatches = plannable_microbatches(options.rows);
  if (measure.rows.empty()) measure.rows = sizes_of(options.rows, options.microbatches, 8);
  const Measured measured = measure_layers(net, functions, batch, devices, measure, where);
  options.link = measured.link;
  options.cores = measured.cores;
  options.link_takes_cores = measured.cores > 0;
  return plan_layers(measured.layers, options);
}

PipelineOptions pipeline_options(const Candidate& candidate, const std::vector<Device>& devices, Loss loss) {
  const Schedule schedule = candidate.make();
  if (schedule.devices() != static_cast<int>(devices.size())) {
    throw UsageError("[pipeline_options] a plan for " + std::to_string(schedule.devices()) +
                     " devices, and there are " + std::to_string(devices.size()));
  }
  const Order order(schedule);
  PipelineOptions options{.devices = {}, .cut = candidate.first_layer, .loss = std::move(loss)};
  for (int s = 0; s < candidate.stages(); ++s) {
    options.devices.push_back(devices[static_cast<std::size_t>(order.device_of_stage(s))]);
  }
  return options;
}

}  // namespace sluice::parallel
