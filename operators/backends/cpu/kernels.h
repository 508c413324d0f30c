// The registration of the CPU backend's kernels, by file.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice::cpu_backend {
void add_movement_kernels(Registry& registry);
void add_reduction_kernels(Registry& registry);
void add_heavy_kernels(Registry& registry);
}  // namespace sluice::cpu_backend
