// A seam between CUDA and its double: what the double's record of accesses is told. A card keeps no such record.
#pragma once

#include <span>
#include <utility>

#include "sluice/engine/provider.h"

#if __has_include(<cuda_double/order.h>)
#include <cuda_double/order.h>
#endif

namespace sluice::cuda {

/// A stream, and a point that it has passed.
using Passed = std::pair<cudaStream_t, std::uint64_t>;

#if __has_include(<cuda_double/order.h>)
inline bool keeps_order() { return cuda_double::keeps_order(); }
inline void ordered_after(cudaStream_t stream, std::span<const Passed> passed) {
  cuda_double::ordered_after(stream, passed);
}
#else
inline bool keeps_order() { return false; }
inline void ordered_after(cudaStream_t, std::span<const Passed>) {}
#endif

}  // namespace sluice::cuda
