// A seam between CUDA and its double: NVTX's ranges, which the double counts.
#pragma once

#if __has_include(<cuda_double/ranges.h>)
#include <cuda_double/ranges.h>
#else
#include <nvtx3/nvToolsExt.h>
#endif

namespace sluice::cuda {

/// The calling thread is in a range of this name until pop_range().
#if __has_include(<cuda_double/ranges.h>)
inline void push_range(const char* name) { cuda_double::push_range(name); }
inline void pop_range() { cuda_double::pop_range(); }
#else
inline void push_range(const char* name) { nvtxRangePushA(name); }
inline void pop_range() { nvtxRangePop(); }
#endif

}  // namespace sluice::cuda
