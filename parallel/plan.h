// The planner of pipelines from a network and its devices: what each layer takes there is measured, and planner.h does
// the rest.
//
//   const std::vector<Device> devices{cpu(0), cpu(1)};
//   const parallel::Candidate best = parallel::plan(network, {x, y}, devices, {64 << 20, 64 << 20}).best();
//   parallel::Pipeline net(parallel::stages_of(best, network, devices));
//   net.step(x, y, {.microbatches = best.microbatches, .schedule = best.make()});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sluice/nn/layers.h"
#include "sluice/nn/optimizer.h"
#include "sluice/parallel/pipeline.h"
#include "sluice/schedule/planner.h"

namespace sluice::parallel {

/// What a step is given: both are split along axis 0. Only their shapes and dtypes matter, unless a layer's time
/// depends on values.
struct Batch {
  NDArray x, target;
};

struct MeasureOptions {
  /// Rows of a microbatch, increasing: a sample for each. Empty: for plan() those of its numbers of microbatches, at
  /// most 8 of them; else those of plannable_microbatches().
  std::vector<std::int64_t> rows = {};
  int rounds = 5;          ///< over all samples in turns; what is taken is the median
  LossFunction loss = {};  ///< as Pipeline's; it counts with the last layer
  /// The optimiser of some parameters. If it is given its step and its state count.
  std::function<std::unique_ptr<Optimizer>(const std::vector<NamedParameter>&)> optimizer = {};
};

struct Measured {
  std::vector<LayerCost> layers;
  Link link;      ///< of a transfer between neighbouring devices; without time for a single device
  int cores = 0;  ///< of CPU devices, with the thread that pushes; 0 for others: each has one of its own
};

/// Measures each layer of the network on the devices, for microbatches of the batch: seconds of F, I and W by a trace
/// of steps in which all devices work, as many as there are cores for, each on some of the layers; what pushing takes;
/// and bytes by what the tape keeps, to the byte. The devices should have nothing else to do. Layers may have state:
/// afterwards the parameters are the arrays that they were, on their devices, with the gradients that they had; arrays
/// that forward passes write (statistics of a batch norm) have the values that they had; and random streams have not
/// moved. Other effects of forward passes happen many times. The first layer's input wants no gradient, so its I takes
/// no time.
///
/// Blocks. A trace that is on ends, and the peaks of the devices' pools begin anew. Throws what the layers throw,
/// UsageError for a network without layers and for no devices, and std::invalid_argument for rows that do not increase
/// or that the batch does not have, and for rounds below 1. Used by one thread, which nobody else uses the network
/// beside.
Measured measure_layers(const Sequential& network, const Batch& batch, const std::vector<Device>& devices,
                        const MeasureOptions& options = {},
                        std::source_location where = std::source_location::current());

/// plan_layers() for what measure_layers() says: a pipeline's step over these devices. `memory`: bytes, one number for
/// each device, or none. Of `options` count the candidates, `recompute`, `steps` and `most_simulations`. Throws as both
/// do.
Plan plan(const Sequential& network, const Batch& batch, const std::vector<Device>& devices,
          const std::vector<double>& memory = {}, PlanOptions options = {}, MeasureOptions measure = {},
          std::source_location where = std::source_location::current());

/// The stages of a plan's candidate, each on the device that its schedule gives it. Throws UsageError for another
/// number of devices, and for a network that is too small.
std::vector<Stage> stages_of(const Candidate& candidate, const Sequential& network, const std::vector<Device>& devices);

}  // namespace sluice::parallel
