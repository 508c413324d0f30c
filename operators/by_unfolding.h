// Convolution and pooling with any options, made of other operators: what runs where no kernel takes the options.
// Internal to operators/.
#pragma once

#include "sluice/operators/convolution.h"

namespace sluice::builtin {

/// By unfold2d and matmul.
NDArray convolution_by_unfolding(const Operand& x, const Operand& weight, const NDArray& bias,
                                 const Conv2dOptions& options);

/// By unfold2d and max.
NDArray max_pool_by_unfolding(const Operand& x, Size2d kernel, const MaxPool2dOptions& options);

}  // namespace sluice::builtin
