// Devices with streams under the explorer: theirs are strands, which the explorer knows.
#pragma once

#include "sluice/engine/detail/explore.h"
#include "sluice/engine/provider.h"

namespace sluice::mutants {

/// `count` devices sim(i). Each stream is a FIFO that a strand works off while there is something in it.
std::shared_ptr<Provider> explored_devices(int count);

}  // namespace sluice::mutants
