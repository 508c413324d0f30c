// Operators that read and write elements by arrays of their numbers, beside x(rows) and x(mask) (ndarray/nd_array.h).
//
// Index arrays are of integers (i64, i32, i8 or u8); negative numbers count from the end. A number out of range fails
// the op, and poisons its result. Sums of several elements at one place come in index order, so that the bits do not
// depend on threads. Gradients flow to all floating arrays.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// y[i][j] = x[i][index[i][j]] for axis 1, and so on. `index` has x's rank, and no axis but `axis` is longer than x's;
/// the result has its shape.
NDArray gather(const Operand& x, int axis, const Operand& index);
/// A copy of x with y[i][index[i][j]] = source[i][j] for axis 1, and so on; of several elements for one place the last
/// is kept. No axis of `index` is longer than that of `source`, or, but for `axis`, than that of x. A number is written
/// everywhere. scatter_add adds the elements to those of x instead.
NDArray scatter(const Operand& x, int axis, const Operand& index, const Operand& source);
NDArray scatter(const Operand& x, int axis, const Operand& index, const ScalarOperand& value);
NDArray scatter_add(const Operand& x, int axis, const Operand& index, const Operand& source);

/// The slices of x along an axis that `index`, of shape (n,), names: n is the axis's size in the result.
NDArray index_select(const Operand& x, int axis, const Operand& index);
/// A copy of x, where slice i of `source` along the axis is added to slice index[i].
NDArray index_add(const Operand& x, int axis, const Operand& index, const Operand& source);
/// Elements by their row-major numbers in x; the result has the shape of `index`.
NDArray take(const Operand& x, const Operand& index);

/// x with `value` where `mask` (bool) holds; both broadcast. Does not wait.
NDArray masked_fill(const Operand& x, const Operand& mask, const ScalarOperand& value);
/// The elements where `mask` (bool) holds, of shape (n,); both broadcast. Waits for the mask.
NDArray masked_select(const Operand& x, const Operand& mask);
/// The indices of the elements that are not 0, in row-major order: i64, of shape (n, rank). Waits for x.
NDArray nonzero(const Operand& x);

}  // namespace sluice
