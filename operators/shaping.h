// Operators that move elements without changing them.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// Arrays joined along an axis that they have; all other sizes agree. Any dtype, all the same.
NDArray concat(std::span<const NDArray> arrays, int axis = 0,
               std::source_location where = std::source_location::current());
/// Arrays of one shape joined along a new axis.
NDArray stack(std::span<const NDArray> arrays, int axis = 0,
              std::source_location where = std::source_location::current());
/// labels (i64, i32 or u8, any shape) to shape (..., classes): 1 at the label, else 0; a label outside gives zeros.
NDArray one_hot(const Operand& labels, std::int64_t classes, DType dtype = DType::f32);
/// Rows of x (along axis 0) at `rows` (i64, i32 or u8, shape (n,)): shape (n, ...). Throws in the op for a row out of
/// range.
NDArray take_rows(const Operand& x, const Operand& rows);

}  // namespace sluice
