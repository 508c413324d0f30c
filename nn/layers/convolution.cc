#include "sluice/nn/layers/convolution.h"

#include "sluice/operators/convolution.h"

namespace sluice::nn {

NDArray Conv2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return conv2d(Operand(x, where), weight, value_of(bias),
                {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
}

NDArray Conv1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return conv1d(Operand(x, where), weight, value_of(bias),
                {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
}

NDArray ConvTranspose2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return conv_transpose2d(
      Operand(x, where), weight, value_of(bias),
      {.stride = stride, .padding = padding, .output_padding = output_padding, .dilation = dilation, .groups = groups});
}

NDArray ConvTranspose1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  return conv_transpose1d(
      Operand(x, where), weight, value_of(bias),
      {.stride = stride, .padding = padding, .output_padding = output_padding, .dilation = dilation, .groups = groups});
}

NDArray MaxPool2d::operator()(const NDArray& x) const { return max_pool2d(x, kernel, stride, padding); }

NDArray AvgPool2d::operator()(const NDArray& x) const {
  return avg_pool2d(x, std::int64_t{kernel}, {.stride = stride, .padding = padding});
}

NDArray AdaptiveAvgPool2d::operator()(const NDArray& x) const { return adaptive_avg_pool2d(x, {height, width}); }

NDArray AdaptiveMaxPool2d::operator()(const NDArray& x) const { return adaptive_max_pool2d(x, {height, width}); }

}  // namespace sluice::nn
