// Activations with options, beside those of elementwise.h (relu, silu, softplus, leaky_relu, ...). Made of its
// operators.
#pragma once

#include "sluice/operators/elementwise.h"

namespace sluice {

struct GeluOptions {
  bool tanh = false;  ///< by tanh (gelu_tanh) in the place of erf; they differ by less than 0.0005
};
/// Of floating x.
NDArray gelu(const Operand& x, const GeluOptions& options);

struct SoftplusOptions {
  double beta = 1;  ///< log(1 + exp(beta x)) / beta: the larger, the closer to relu; not 0
};
/// Of floating x. Throws ArrayError if beta is 0 or NaN.
NDArray softplus(const Operand& x, const SoftplusOptions& options);

/// The first half of x along an axis, times the sigmoid of the second. Of floating x; the axis, which may be negative,
/// must have an even size. The result has half of it.
NDArray glu(const Operand& x, int axis = -1);

}  // namespace sluice
