// No record of accesses, as on a card.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "cuda_runtime_api.h"
#include "sluice/engine/provider.h"

namespace cuda_double {
using Passed = std::pair<cudaStream_t, std::uint64_t>;
inline bool keeps_order() { return false; }
inline void ordered_after(cudaStream_t, std::span<const Passed>) {}
}  // namespace cuda_double
