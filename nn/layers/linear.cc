#include "sluice/nn/layers/linear.h"

#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/network.h"

namespace sluice::nn {

NDArray Linear::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return linear(Operand(x, where), weight, value_of(bias), {.relu = relu});
}

NDArray Embedding::operator()(const NDArray& indices) const {
  const Here here = layer_of(weight);
  return embedding(Operand(weight.value(), where), indices);
}

NDArray Embedding::logits(const NDArray& x) const {
  const Here here = layer_of(weight);
  return linear(Operand(x, where), weight);
}

}  // namespace sluice::nn
