// Activations with options.
#include "sluice/operators/activation.h"

#include <string>

#include "sluice/operators/composition.h"

namespace sluice {

NDArray gelu(const Operand& x, const GeluOptions& options) {
  const builtin::Composition scope("gelu", x);
  return options.tanh ? gelu_tanh(x) : gelu(x);
}

NDArray softplus(const Operand& x, const SoftplusOptions& options) {
  const builtin::Composition scope("softplus", x);
  const double beta = options.beta;
  scope.require(beta < 0 || beta > 0, "beta must not be 0");
  return beta == 1 ? softplus(x) : softplus(mul(x, beta)) / beta;
}

NDArray glu(const Operand& x, int axis) {
  const builtin::Composition scope("glu", x);
  const int rank = x.array.rank();
  if (axis < -rank || axis >= rank) scope.fail(to_string(x.array.shape()) + ": no axis " + std::to_string(axis));
  const std::int64_t size = x.array.size(axis, scope.where());
  if (size % 2 != 0)
    scope.fail("axis " + std::to_string(axis) + " has " + std::to_string(size) + " elements, not an even number");
  if (!is_floating(x.array.dtype())) scope.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  return x.array.narrow(axis, 0, size / 2, scope.where()) *
         sigmoid(x.array.narrow(axis, size / 2, size, scope.where()));
}

}  // namespace sluice
