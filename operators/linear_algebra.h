// Products of matrices.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// The product of two matrices (floating dtypes, i32, i64): (m, k) x (k, n) gives (m, n). With trans_a, a is (k, m) and
/// is transposed; with trans_b, b is (n, k). A transposed view needs no copy.
NDArray matmul(const Operand& a, const Operand& b, bool trans_a = false, bool trans_b = false);

/// x . transpose(weight) + bias, where x is (n, in), weight (out, in), and bias (out,) or an empty handle. With `relu`,
/// negative results become 0 in the same pass. The gradients of input, weight and bias are separate ops.
NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias = {}, bool relu = false);

}  // namespace sluice
