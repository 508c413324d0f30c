// Products and convolutions.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// The product of two matrices (f32 f64 i32 i64): (m, k) x (k, n) gives (m, n). With trans_a, a is (k, m) and is
/// transposed; with trans_b, b is (n, k). A transposed view needs no copy.
NDArray matmul(const Operand& a, const Operand& b, bool trans_a = false, bool trans_b = false);

/// x . transpose(weight) + bias, where x is (n, in), weight (out, in), and bias (out,) or an empty handle. With `relu`,
/// negative results become 0 in the same pass. The gradients of input, weight and bias are separate ops.
NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias = {}, bool relu = false);

struct Conv2dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool relu = false;  ///< negative results become 0 in the same pass
};
/// Convolution of x (n, in, height, width) with weight (out, in, kernel, kernel) and bias (out,) or an empty handle, in
/// f32 and f64. The gradients of input, weight and bias are separate ops.
NDArray conv2d(const Operand& x, const Operand& weight, const NDArray& bias = {}, const Conv2dOptions& options = {});

/// The largest element of each kernel x kernel window of x (n, channels, height, width), in f32 and f64. Stride 0 means
/// `kernel`. Of equal elements the first gets the gradient. The gradient has no gradient: asking for one throws.
NDArray max_pool2d(const Operand& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);

}  // namespace sluice
