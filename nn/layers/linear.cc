#include "sluice/nn/layers/linear.h"

#include <tuple>

#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/network.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace {

NDArray without_lora(const Linear& layer, const NDArray& x, bool relu) {
  const auto& [weight, bias, where] = std::tie(layer.weight, layer.bias, layer.where);
  if (!weight.state()->boundary) [[likely]]
    return linear(Operand(x, where), weight, value_of(bias), {.relu = relu});
  const NDArray entered = entering(weight, x);
  const Layout layout = call_layout_of(weight.value());
  if (!layout || !layout.cut(1))
    return leaving(weight, linear(Operand(entered, where), weight, value_of(bias), {.relu = relu}));
  // Products with columns of the weight are terms: what follows their sum comes when they are added up.
  NDArray y = leaving(weight, linear(Operand(entered, where), weight));
  if (bias) y = add(Operand(y, where), bias->value());
  return relu ? sluice::relu(Operand(y, where)) : y;
}

}  // namespace

NDArray Linear::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  if (!lora) [[likely]]
    return without_lora(*this, x, relu);
  NDArray y = without_lora(*this, x, false), change = (*lora)(x);
  if (const Layout layout = call_layout_of(y)) change = reshard(Operand(change, where), layout);
  y = add(Operand(y, where), change);
  return relu ? sluice::relu(Operand(y, where)) : y;
}

NDArray Embedding::operator()(const NDArray& indices) const {
  const Here here = layer_of(weight);
  return leaving(weight, embedding(Operand(weight.value(), where), entering(weight, indices)));
}

NDArray Embedding::logits(const NDArray& x) const {
  const Here here = layer_of(weight);
  return linear(Operand(x, where), weight);
}

}  // namespace sluice::nn
