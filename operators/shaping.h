// Operators that move elements without changing them.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// Joins arrays along an axis that they have: concat({x, y}, 1). All other sizes must agree. Arrays of several dtypes
/// are converted to one (promote() in ndarray/dtype.h).
NDArray concat(const NDArrays& arrays, int axis = 0, std::source_location where = std::source_location::current());
/// Joins arrays of one shape along a new axis.
NDArray stack(const NDArrays& arrays, int axis = 0, std::source_location where = std::source_location::current());
/// Turns labels (i64, i32 or u8, any shape) into an array of shape (..., classes), which is 1 at the label and else 0.
/// A label outside of [0, classes) gives zeros.
NDArray one_hot(const Operand& labels, std::int64_t classes, DType dtype = DType::f32);
/// The rows of x (along axis 0) with the numbers `rows` (i64, i32 or u8, shape (n,)). The result has shape (n, ...).
/// The op fails if a number is out of range.
NDArray take_rows(const Operand& x, const Operand& rows);

}  // namespace sluice
