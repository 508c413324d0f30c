// The planner of pipelines from a net and its devices: what each of its functions takes there is measured, and
// planner.h does the rest.
//
//   const std::vector<Device> devices{cpu(0), cpu(1)};
//   const parallel::Candidate best = parallel::plan(net, {x, y}, devices, {64 << 20, 64 << 20}).best();
//   parallel::Pipeline pipeline(net, x.spec(), parallel::pipeline_options(best, devices));
//   pipeline.step(x, y, {.microbatches = best.microbatches, .schedule = best.make(), .optimizer = &opt});
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "sluice/parallel/pipeline.h"
#include "sluice/schedule/planner.h"

namespace sluice::parallel {

/// What a step is given: all are split along axis 0. Only their shapes and dtypes matter, unless a function's time
/// depends on values.
struct Batch {
  Batch(NDArray x_, NDArray target_) : x{std::move(x_)}, target(std::move(target_)) {}
  Batch(nn::Arrays x_, NDArray target_) : x(std::move(x_)), target(std::move(target_)) {}
  nn::Arrays x;
  NDArray target;
};

struct MeasureOptions {
  /// Rows of a microbatch, increasing: a sample for each. Empty: for plan() those of its numbers of microbatches, at
  /// most 8 of them; else those of plannable_microbatches().
  std::vector<std::int64_t> rows = {};
  int rounds = 5;                             ///< over all samples in turns; what is taken is the median
  Loss loss = {};                             ///< as Pipeline's; it counts with the last function
  std::optional<nn::AnyRule> optimizer = {};  ///< if it is given its step and what it keeps count
};

struct Measured {
  std::vector<LayerCost> layers;
  Link link;      ///< of a transfer between neighbouring devices; without time for a single device
  int cores = 0;  ///< of CPU devices, with the thread that pushes; 0 for others: each has one of its own
};

namespace detail {
Measured measure_layers(const nn::Contents& net, const nn::Stages& functions, const Batch& batch,
                        const std::vector<Device>& devices, const MeasureOptions& options, std::source_location where);
Plan plan(const nn::Contents& net, const nn::Stages& functions, const Batch& batch, const std::vector<Device>& devices,
          const std::vector<double>& memory, PlanOptions options, MeasureOptions measure, std::source_location where);
}  // namespace detail

/// Measures each function of the net ("layer" below) on the devices, for microbatches of the batch: seconds of F, I and
/// W by a trace of steps in which all devices work, as many as there are cores for, each on some of the functions; what
/// pushing takes; and bytes by what the tape keeps, to the byte, but that an array which passes through a function
/// and that no backward pass needs counts twice in a stage that begins with it. The devices should have nothing else to
/// do. It works with arrays of its own, made of the net's values: values, gradients, statistics and random streams of
/// the net stay as they are. Other effects of the functions happen many times. The first one's input wants no gradient,
/// so its I takes no time.
///
/// Blocks. A trace that is on ends, and the peaks of the devices' pools begin anew. Throws what the functions throw,
/// UsageError for a net without functions, for a slot without a value and for no devices, and std::invalid_argument for
/// rows that do not increase or that the batch does not have, and for rounds below 1. Used by one thread, which nobody
/// else uses the net beside.
template <class Net>
Measured measure_layers(const Net& net, const Batch& batch, const std::vector<Device>& devices,
                        const MeasureOptions& options = {},
                        std::source_location where = std::source_location::current()) {
  return detail::measure_layers(nn::contents(net), nn::stages_of(net), batch, devices, options, where);
}

/// plan_layers() for what measure_layers() says: a pipeline's step over these devices. `memory`: bytes, one number for
/// each device, or none. Of `options` count the candidates, `recompute`, `steps` and `most_simulations`. Throws as both
/// do.
template <class Net>
Plan plan(const Net& net, const Batch& batch, const std::vector<Device>& devices,
          const std::vector<double>& memory = {}, PlanOptions options = {}, MeasureOptions measure = {},
          std::source_location where = std::source_location::current()) {
  return detail::plan(nn::contents(net), nn::stages_of(net), batch, devices, memory, std::move(options),
                      std::move(measure), where);
}

/// The cut of a plan's candidate, with each stage on the device that its schedule gives it. Throws UsageError for
/// another number of devices.
PipelineOptions pipeline_options(const Candidate& candidate, const std::vector<Device>& devices, Loss loss = {});

}  // namespace sluice::parallel
