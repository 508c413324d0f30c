// What scans, sorts and reductions along one axis share on arrays; lines.h has what their kernels share. Internal to
// operators/.
#pragma once

#include <source_location>

#include "sluice/operators/registry.h"

namespace sluice::builtin {

/// The axis of an operator on lines, from 0. Throws ArrayError for one that x does not have. A scalar has axis 0.
int line_axis(const char* who, const Operand& x, int axis);

/// Zeros of `shape` with the elements of g added in at their places along the axis.
NDArray add_along_axis(const NDArray& g, const NDArray& index, int axis, const Dims& shape,
                       const std::source_location& where);

/// For each element the product of the others along the last axis.
NDArray product_of_others(const NDArray& x, const std::source_location& where);

}  // namespace sluice::builtin
