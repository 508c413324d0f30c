// What layers hold in memory, by what their tapes keep. Internal to plan.h's measurement.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/parallel/plan.h"
#include "sluice/parallel/watched_layers.h"

namespace sluice::parallel {

/// Each layer's bytes for a microbatch of so many rows, without times: a forward pass layer by layer, all of whose
/// values stay, and a backward pass in halves, on one device. Moves the layers there. Blocks. The peak of the device's
/// pool begins anew.
std::vector<LayerSample> layer_bytes(const WatchedLayers& layers, const Batch& batch, std::int64_t rows, Device device,
                                     const LossFunction& loss);

}  // namespace sluice::parallel
