#include "sluice/nn/layers/convolution.h"

#include <string>

#include "sluice/operators/convolution.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/placed.h"

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

namespace {

/// The layer's product with its bias, and relu. Where the weight is cut over a mesh along the axis that is summed, the
/// places' products are terms: what follows their sum comes when they are added up. `spatial`: axes behind the
/// channels.
template <class F>
NDArray with_bias(const Parameter& weight, int summed, const std::optional<Parameter>& bias, int spatial, bool relu,
                  const std::source_location& where, F product) {
  const Layout layout = weight.state()->boundary ? call_layout_of(weight.value()) : Layout();
  if (!layout || !layout.cut(summed)) return leaving(weight, product(value_of(bias), relu));
  NDArray y = leaving(weight, product(NDArray(), false));
  if (bias) {
    Dims shape{bias->value().count()};
    for (int i = 0; i < spatial; ++i) shape.push_back(1);
    y = add(Operand(y, where), bias->value().reshape(shape));
  }
  return relu ? sluice::relu(Operand(y, where)) : y;
}

}  // namespace

NDArray Conv2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray entered = entering(weight, x);
  return with_bias(weight, 1, bias, 2, relu, where, [&](const NDArray& added, bool with_relu) {
    return conv2d(Operand(entered, where), weight, added,
                  {.stride = stride, .padding = padding, .relu = with_relu, .dilation = dilation, .groups = groups});
  });
}

NDArray Conv1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray entered = entering(weight, x);
  return with_bias(weight, 1, bias, 1, false, where, [&](const NDArray& added, bool) {
    return conv1d(Operand(entered, where), weight, added,
                  {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
  });
}

NDArray ConvTranspose2d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray entered = entering(weight, x);
  return with_bias(weight, 0, bias, 2, false, where, [&](const NDArray& added, bool) {
    return conv_transpose2d(Operand(entered, where), weight, added,
                            {.stride = stride,
                             .padding = padding,
                             .output_padding = output_padding,
                             .dilation = dilation,
                             .groups = groups});
  });
}

NDArray ConvTranspose1d::operator()(const NDArray& x) const {
  const Here here = layer_of(weight);
  const NDArray entered = entering(weight, x);
  return with_bias(weight, 0, bias, 1, false, where, [&](const NDArray& added, bool) {
    return conv_transpose1d(Operand(entered, where), weight, added,
                            {.stride = stride,
                             .padding = padding,
                             .output_padding = output_padding,
                             .dilation = dilation,
                             .groups = groups});
  });
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
