#include "sluice/nn/layers.h"

#include <cmath>

#include "sluice/autograd/gradients.h"
#include "sluice/operators/convolution.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"

namespace sluice {
namespace {

void check(bool fine, const char* layer, std::source_location where, const std::string& message) {
  if (!fine) throw ArrayError(layer, where, message);
}

/// A leaf drawn as PyTorch draws weights and biases.
NDArray parameter(const Dims& shape, RandomStream& stream, std::int64_t fan_in, DType dtype,
                  std::source_location where) {
  NoGrad no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return uniform(shape, stream, -bound, bound, dtype, 0, where).with_grad(where);
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, RandomStream& stream, const LinearLayerOptions& options,
               std::source_location where)
    : relu_(options.relu), where_(where) {
  check(in >= 1 && out >= 1, "Linear", where,
        std::to_string(in) + " inputs, " + std::to_string(out) + " outputs: both must be at least 1");
  check(is_floating(options.dtype), "Linear", where,
        "dtype " + std::string(name_of(options.dtype)) + ": must be a floating one");
  check_shape("Linear", {out, in}, options.dtype, where);
  weight = parameter({out, in}, stream, in, options.dtype, where);
  if (options.bias) bias = parameter({out}, stream, in, options.dtype, where);
}

NDArray Linear::forward(const NDArray& x) {
  return linear(Operand(x, where_), Operand(weight, where_), bias, {.relu = relu_});
}

void Linear::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  out.push_back({prefix + "weight", &weight});
  if (bias.defined()) out.push_back({prefix + "bias", &bias});
}

Conv2d::Conv2d(std::int64_t in, std::int64_t out, std::int64_t kernel, RandomStream& stream, const ConvOptions& options,
               std::source_location where)
    : options_(options), where_(where) {
  check(in >= 1 && out >= 1 && kernel >= 1, "Conv2d", where,
        std::to_string(in) + " inputs, " + std::to_string(out) + " outputs, kernel " + std::to_string(kernel) +
            ": all must be at least 1");
  check(options.stride >= 1 && options.padding >= 0, "Conv2d", where,
        "stride " + std::to_string(options.stride) + ", padding " + std::to_string(options.padding) +
            ": the stride must be at least 1, the padding at least 0");
  check(is_floating(options.dtype), "Conv2d", where,
        "dtype " + std::string(name_of(options.dtype)) + ": must be a floating one");
  check_shape("Conv2d", {out, in, kernel, kernel}, options.dtype, where);
  const std::int64_t fan_in = in * kernel * kernel;
  weight = parameter({out, in, kernel, kernel}, stream, fan_in, options.dtype, where);
  if (options.bias) bias = parameter({out}, stream, fan_in, options.dtype, where);
}

NDArray Conv2d::forward(const NDArray& x) {
  return conv2d(Operand(x, where_), Operand(weight, where_), bias,
                {.stride = options_.stride, .padding = options_.padding, .relu = options_.relu});
}

void Conv2d::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  out.push_back({prefix + "weight", &weight});
  if (bias.defined()) out.push_back({prefix + "bias", &bias});
}

MaxPool2d::MaxPool2d(std::int64_t kernel, std::int64_t stride, std::source_location where)
    : kernel_(kernel), stride_(stride), where_(where) {
  check(kernel >= 1 && stride >= 0, "MaxPool2d", where,
        "kernel " + std::to_string(kernel) + ", stride " + std::to_string(stride) +
            ": the kernel must be at least 1, the stride at least 0");
}

NDArray MaxPool2d::forward(const NDArray& x) { return max_pool2d(Operand(x, where_), kernel_, stride_); }

NDArray Relu::forward(const NDArray& x) { return relu(Operand(x, where_)); }

NDArray Flatten::forward(const NDArray& x) {
  x.checked("Flatten", where_);
  check(x.rank() >= 1, "Flatten", where_, "a scalar: wants axis 0 to count samples");
  return x.flatten(1, where_);
}

Sequential::Sequential(const std::vector<ModulePtr>& layers) {
  for (const ModulePtr& layer : layers) push_back(layer);
}

NDArray Sequential::forward(const NDArray& x) {
  NDArray value = x;
  for (const Layer& layer : layers_) value = layer.module->call(layer.name, value);
  return value;
}

std::vector<NamedModule> Sequential::children() {
  std::vector<NamedModule> list;
  for (const Layer& layer : layers_) list.push_back({layer.name, layer.module.get()});
  return list;
}

void Sequential::to(Device device) {
  const detail::SharedParameters shared(*this);
  for (const Layer& layer : layers_) layer.module->to(device);
  shared.rejoin();
}

void Sequential::push_back(ModulePtr layer) {
  if (!layer) throw UsageError("[Sequential] layer " + std::to_string(next_name_) + " is null");
  layers_.push_back({std::to_string(next_name_++), std::move(layer)});
}

Sequential Sequential::slice(std::size_t begin, std::size_t end) const {
  if (begin > end || end > layers_.size()) {
    throw UsageError("[Sequential] slice(" + std::to_string(begin) + ", " + std::to_string(end) + ") of " +
                     std::to_string(layers_.size()) + " layers");
  }
  Sequential part;
  part.layers_.assign(layers_.begin() + static_cast<std::ptrdiff_t>(begin),
                      layers_.begin() + static_cast<std::ptrdiff_t>(end));
  part.next_name_ = end == layers_.size() ? next_name_ : end;
  return part;
}

}  // namespace sluice
