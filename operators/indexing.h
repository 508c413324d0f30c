// Operators that read and write elements by arrays of their numbers, beside x(rows) and x(mask) (ndarray/nd_array.h).
//
// Index arrays are of integers (i64, i32, i8 or u8); negative numbers count from the end. A number out of range fails
// the op, and poisons its result. Sums of several elements at one place come in index order, so that the bits do not
// depend on threads. Gradients flow to all floating arrays.
#pragma once

#include <cstdint>
#include <optional>

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
// The functions below wait for what decides the shape of their result, throw its poison, and are refused in captures
// and in stages of pipelines (waiting.h). With a size they do not wait, and work there too: elements beyond it are left
// out, and what is missing is filled, as JAX does.
struct PaddedOptions {
  std::optional<std::int64_t> size = {};  ///< how many there are in the result, 0 or more; empty: as many as there are
  Scalar fill = 0;                        ///< stands behind them, up to the size
};
/// The elements where `mask` (bool) holds, in row-major order, of shape (n,); both broadcast. Waits for the mask. With
/// a size: (size,), filled with `fill`, a number that x's dtype holds.
NDArray masked_select(const Operand& x, const Operand& mask, const PaddedOptions& options = {});
/// The indices of the elements that are not 0, in row-major order: i64, of shape (n, rank). Waits for x. With a size:
/// (size, rank); in rows that are missing each index is `fill`, an integer.
NDArray nonzero(const Operand& x, const PaddedOptions& options = {});

}  // namespace sluice
