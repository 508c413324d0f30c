#include "sluice/nn/layers/lora.h"

#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"

namespace sluice::nn {

NDArray Lora::operator()(const NDArray& x) const {
  const Here here = layer_of(a);
  return linear(linear(Operand(x, where), a), b) * scale;
}

}  // namespace sluice::nn
