// Copies of windows, for operators and for the packing of operands.
#pragma once

#include "sluice/operators/backends/cuda/kernel.h"

namespace sluice::cuda {

/// Issues a copy of the elements, whose types may differ, from one window to another of its shape.
void copy_window(const Issue& issue, const TensorView& from, const TensorView& to);

}  // namespace sluice::cuda
