// Convolutions and pooling of the reference backend.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"

namespace sluice::reference {
namespace {

using namespace backends;

ConvolutionSizes sizes_of(const Dims& x, const Dims& w, const Dims& y, const ConvAttributes& a) {
  return {x[0], x[1], x[2], x[3], w[0], w[2], w[3], a.stride, a.stride, a.padding, a.padding, y[2], y[3]};
}

PoolingSizes sizes_of(const Dims& x, const Dims& y, const PoolAttributes& a) {
  return {x[0] * x[1], x[2], x[3], a.kernel, a.kernel, a.stride, a.stride, a.padding, a.padding, y[2], y[3]};
}

template <class T>
struct Conv2d {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ConvAttributes>();
    const T* bias = c.inputs() == 3 ? c.input(2).as<T>() : nullptr;
    conv2d(sizes_of(c.input(0).shape, c.input(1).shape, c.output().shape, a), c.input(0).as<T>(), c.input(1).as<T>(),
           bias, c.output().as<T>(), a.relu);
  }
};

template <class T>
struct Conv2dInputGrad {
  static void run(ArrayContext& c) {
    conv2d_input_grad(sizes_of(c.output().shape, c.input(1).shape, c.input(0).shape, c.attributes<ConvAttributes>()),
                      c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>());
  }
};

template <class T>
struct Conv2dWeightGrad {
  static void run(ArrayContext& c) {
    conv2d_weight_grad(sizes_of(c.input(0).shape, c.output().shape, c.input(1).shape, c.attributes<ConvAttributes>()),
                       c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>());
  }
};

template <class T>
struct Conv2dBiasGrad {
  static void run(ArrayContext& c) {
    const Dims& g = c.input(0).shape;
    conv2d_bias_grad(g[0], g[1], g[2] * g[3], c.input(0).as<T>(), c.output().as<T>());
  }
};

template <class T>
struct MaxPool2d {
  static void run(ArrayContext& c) {
    max_pool2d(sizes_of(c.input(0).shape, c.output().shape, c.attributes<PoolAttributes>()), c.input(0).as<T>(),
               c.output(0).as<T>(), c.output(1).as<std::int32_t>());
  }
};

template <class T>
struct MaxPool2dGrad {
  static void run(ArrayContext& c) {
    max_pool2d_grad(sizes_of(c.output().shape, c.input(0).shape, c.attributes<PoolAttributes>()), c.input(0).as<T>(),
                    c.input(1).as<std::int32_t>(), c.output().as<T>());
  }
};

}  // namespace

void add_convolution_kernels(Registry& registry) {
  add<Conv2d>(registry.get("conv2d"), kReference, Floating{}, kDense);
  add<Conv2d>(registry.get("conv2d_relu"), kReference, Floating{}, kDense);
  add<Conv2dInputGrad>(registry.get("conv2d_input_grad"), kReference, Floating{}, kDense);
  add<Conv2dWeightGrad>(registry.get("conv2d_weight_grad"), kReference, Floating{}, kDense);
  add<Conv2dBiasGrad>(registry.get("conv2d_bias_grad"), kReference, Floating{}, kDense);
  add<MaxPool2d>(registry.get("max_pool2d"), kReference, Floating{}, kDense);
  add<MaxPool2dGrad>(registry.get("max_pool2d_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
