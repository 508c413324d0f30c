// Products and convolutions.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// op(a) . op(b) for matrices (f32 f64 i32 i64): (m, k) x (k, n) gives (m, n); with trans_a, a is (k, m), with trans_b,
/// b is (n, k). A transposed view needs no copy either.
NDArray matmul(const Operand& a, const Operand& b, bool trans_a = false, bool trans_b = false);

/// x . transpose(weight) + bias: x (n, in), weight (out, in), bias (out,) or an empty handle. With `relu`, negative
/// results become 0 in the same pass. Input, weight and bias gradients are operations of their own.
NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias = {}, bool relu = false);

struct Conv2dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool relu = false;  ///< negative results become 0 in the same pass
};
/// Convolution of x (n, in, height, width) with weight (out, in, kernel, kernel) and bias (out,) or an empty handle;
/// f32 and f64. Input, weight and bias gradients are operations of their own. Gradients of gradients throw.
NDArray conv2d(const Operand& x, const Operand& weight, const NDArray& bias = {}, const Conv2dOptions& options = {});

/// The largest element of each kernel x kernel window of x (n, channels, height, width), f32 and f64; stride 0 means
/// `kernel`. Equal elements: the gradient goes to the first.
NDArray max_pool2d(const Operand& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);

}  // namespace sluice
