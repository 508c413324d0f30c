#include "sluice/nn/layers/convolution.h"

#include <string>

#include "sluice/operators/convolution.h"

namespace sluice::nn {

std::int64_t parts_of(std::int64_t n, std::int64_t other, std::int64_t groups, const char* layer,
                      const std::source_location& where) {
  if (groups < 1 || n % groups != 0 || other % groups != 0) {
    throw ArrayError(layer, where,
                     std::to_string(n) + " and " + std::to_string(other) + " channels in " + std::to_string(groups) +
                         " groups: at least one group is wanted, and as many channels in each");
  }
  return n / groups;
}

NDArray Conv2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray y =
      conv2d(Operand(entering(weight, x), where), weight, value_of(bias),
             {.stride = stride, .padding = padding, .relu = relu, .dilation = dilation, .groups = groups});
  return leaving(weight, y);
}

NDArray Conv1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray y = conv1d(Operand(entering(weight, x), where), weight, value_of(bias),
                           {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
  return leaving(weight, y);
}

NDArray ConvTranspose2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray y = conv_transpose2d(
      Operand(entering(weight, x), where), weight, value_of(bias),
      {.stride = stride, .padding = padding, .output_padding = output_padding, .dilation = dilation, .groups = groups});
  return leaving(weight, y);
}

NDArray ConvTranspose1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray y = conv_transpose1d(
      Operand(entering(weight, x), where), weight, value_of(bias),
      {.stride = stride, .padding = padding, .output_padding = output_padding, .dilation = dilation, .groups = groups});
  return leaving(weight, y);
}

NDArray MaxPool2d::operator()(const NDArray& x) const { return max_pool2d(Operand(x, where), kernel, stride, padding); }

NDArray AvgPool2d::operator()(const NDArray& x) const {
  return avg_pool2d(Operand(x, where), std::int64_t{kernel}, {.stride = stride, .padding = padding});
}

NDArray AdaptiveAvgPool2d::operator()(const NDArray& x) const {
  return adaptive_avg_pool2d(Operand(x, where), {height, width});
}

NDArray AdaptiveMaxPool2d::operator()(const NDArray& x) const {
  return adaptive_max_pool2d(Operand(x, where), {height, width});
}

}  // namespace sluice::nn
