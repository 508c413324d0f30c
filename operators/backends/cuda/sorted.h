// The order of elements, for kernels that take equal ones together.
#pragma once

#include <cstdint>

#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/lines.h"

namespace sluice::cuda {

/// Issues a stable sort of each line of contiguous elements. The result, in scratch memory, has for each line the
/// places of its elements in their order. T: as in lines.cu.
template <class T>
const std::int64_t* order_of(const Issue& issue, const T* x, const Lines& lines, bool descending);

}  // namespace sluice::cuda
