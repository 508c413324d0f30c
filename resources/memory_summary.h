// What the pool of a device holds, for people.
#pragma once

#include <string>

#include "sluice/engine/engine.h"

namespace sluice {

/// The memory of a device that the engine's arrays and ops have in use, and what its pool keeps for the next ones:
/// "gpu(0): 1.50 GiB in use, at most 1.75 GiB so far, 256.00 MiB cached; pinned host memory: 64.00 MiB in use, at most
/// 64.00 MiB so far, 0 B cached". Further lines say the results of which ops hold the device's memory that is in use,
/// by the op's name and layer (LayerScope), largest first, at most eight: "\n  1.20 GiB  conv2d in encoder.2, 12
/// blocks". A CPU device has the first line alone, without its second part, and its pool is the process's. Sizes are
/// those of blocks, which are up to a fifth larger than what was asked for. Does not wait: ops in flight change the
/// figures. Throws UsageError where the engine has no such device. Thread-safe.
std::string memory_summary(Engine& engine, Device device);

}  // namespace sluice
