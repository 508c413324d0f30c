// Products of matrices and of stacks of them.
#pragma once

#include <string_view>

#include "sluice/operators/registry.h"

namespace sluice {

struct MatmulOptions {
  bool transpose_a = false;  ///< a is (..., k, m)
  bool transpose_b = false;  ///< b is (..., n, k)
};
/// The product of matrices (floating dtypes, i32, i64), as NumPy's @: (m, k) x (k, n) gives (m, n). Arrays of more axes
/// are stacks of matrices, (..., m, k) x (..., k, n), whose axes "..." broadcast. A vector is a row on the left and a
/// column on the right, and its axis is not in the result: (k,) x (k,) gives a scalar. Options transpose each matrix of
/// a stack, and leave a vector as it is; they and transposed views need no copy. Throws ArrayError for scalars, and
/// where sizes or dtypes differ.
NDArray matmul(const Operand& a, const Operand& b, const MatmulOptions& options = {});

/// The product of two vectors (n,): a scalar.
NDArray dot(const Operand& a, const Operand& b);

/// a[i] * b[j] for vectors: (n,) and (m,) give (n, m). As mul, which says what the dtype is.
NDArray outer(const Operand& a, const Operand& b);

/// Sums of products over named axes, as NumPy's einsum: einsum("bij,bjk->bik", {x, y}). Each letter names an axis of
/// the operands in its order; axes of one letter have one size, or size 1, which broadcasts. Axes that the result does
/// not name are summed. A letter that one operand has twice is its diagonal. "..." stands for any axes, which
/// broadcast, and are first in the result where it does not say. Without "->" the result has the letters that occur
/// once, in alphabetical order. Spaces count for nothing. Operands are multiplied from left to right: pairs by matmul
/// where an axis is summed, else elementwise; so two operands have the dtypes of matmul, and must have one. Throws
/// ArrayError for a text that does not fit the operands.
NDArray einsum(std::string_view subscripts, const NDArrays& operands,
               std::source_location where = std::source_location::current());

struct LinearOptions {
  bool relu = false;  ///< negative results become 0 in the same pass
};
/// x . transpose(weight) + bias, where x is (n, in), weight (out, in), and bias (out,) or an empty handle: (n, out). x
/// may have any axes before the last, or none, and the result has them too. The gradients of input, weight and bias are
/// separate ops.
NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias = {}, const LinearOptions& options = {});

}  // namespace sluice
