#include "sluice/operators/normalization.h"

#include "sluice/engine/number_text.h"
#include "sluice/nn/layers/normalization.h"
#include "sluice/nn/net/mode.h"
#include "sluice/operators/network.h"

namespace sluice::nn {

NDArray LayerNorm::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return leaving(weight, layer_norm(Operand(entering(weight, x), where), weight, bias, {.eps = eps}));
}

NDArray RmsNorm::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return leaving(weight, rms_norm(Operand(entering(weight, x), where), weight, {.eps = eps}));
}

NDArray GroupNorm::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return leaving(weight, group_norm(Operand(entering(weight, x), where), groups, weight, bias, eps));
}

NDArray BatchNorm::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const bool training = is_training("BatchNorm", where) && !running_mean.frozen() && !running_var.frozen();
  const NDArray y = batch_norm(Operand(entering(weight, x), where), {running_mean, running_var}, weight, bias,
                               {.training = training, .momentum = momentum, .eps = eps});
  return leaving(weight, y);
}

NDArray Dropout::operator()(const NDArray& x) const {
  const Here here = place();
  if (!(p >= 0 && p <= 1)) {
    throw ArrayError("Dropout", where, "p is " + general_text(p, 6) + ": from 0 to 1 is wanted");
  }
  if (p == 0 || !is_training("Dropout", where)) return x;
  RandomStream stream = training_stream("Dropout", place, where);
  return dropout(Operand(x, where), p, stream);
}

}  // namespace sluice::nn
