#include "sluice/nn/layers/linear.h"

#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/network.h"

namespace sluice::nn {
namespace {

/// x (..., in) by rows.
NDArray by_rows(const NDArray& x, const NDArray& weight, const NDArray& bias, const std::source_location& where) {
  if (x.rank() == 2) return linear(Operand(x, where), weight, bias);
  if (x.rank() == 0 || x.shape().back() != weight.shape()[1]) {
    throw ArrayError("linear", where,
                     to_string(x.shape()) + " for a weight " + to_string(weight.shape()) + ": the last size of x is " +
                         "wanted to be " + std::to_string(weight.shape()[1]));
  }
  const std::int64_t in = x.shape().back(), out = weight.shape()[0];
  Dims shape;
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) {
    shape.push_back(x.shape()[i]);
    rows *= x.shape()[i];
  }
  shape.push_back(out);
  return linear(Operand(x.reshape({rows, in}, where), where), weight, bias).reshape(shape, where);
}

}  // namespace

NDArray Linear::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  x.checked("linear", where);
  return by_rows(x, weight, value_of(bias), where);
}

NDArray Embedding::operator()(const NDArray& indices) const {
  const Here here = layer_of(weight);
  return embedding(Operand(weight.value(), where), indices);
}

NDArray Embedding::logits(const NDArray& x) const {
  const Here here = layer_of(weight);
  x.checked("linear", where);
  return by_rows(x, weight, {}, where);
}

}  // namespace sluice::nn
