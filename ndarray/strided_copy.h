// Copies between strided windows, for any element type.
#pragma once

#include "sluice/ndarray/tensor_view.h"

namespace sluice {

/// Copies every element of `from` to the same index of `to`. Shapes and dtypes are equal; the memory must not overlap.
/// Large copies run through parallel_for. Blocking.
void strided_copy(const TensorView& from, const TensorView& to);

}  // namespace sluice
