// Convolutions and pooling of the CPU backend as kernels.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/pool.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

Conv2dShape conv_shape(const Dims& x, const Dims& w, const ConvAttributes& a) {
  return {.batch = x[0],
          .in_channels = x[1],
          .height = x[2],
          .width = x[3],
          .out_channels = w[0],
          .kernel_h = w[2],
          .kernel_w = w[3],
          .stride_h = a.stride,
          .stride_w = a.stride,
          .pad_h = a.padding,
          .pad_w = a.padding};
}

PoolShape pool_shape(const Dims& x, const Dims& y, const PoolAttributes& a) {
  return {.planes = x[0] * x[1],
          .height = x[2],
          .width = x[3],
          .kernel_h = a.kernel,
          .kernel_w = a.kernel,
          .stride_h = a.stride,
          .stride_w = a.stride,
          .pad_h = a.padding,
          .pad_w = a.padding,
          .out_h = y[2],
          .out_w = y[3]};
}

/// Working memory from the device's pool.
class PoolWorkspace {
 public:
  explicit PoolWorkspace(ArrayContext& c) : pool_(memory_pool(c.device())) {}
  PoolWorkspace(const PoolWorkspace&) = delete;
  PoolWorkspace& operator=(const PoolWorkspace&) = delete;

 private:
  struct Acquire {
    MemoryPool& pool;
    void* operator()(std::size_t bytes) const { return pool.allocate(bytes); }
  };
  struct Release {
    MemoryPool& pool;
    void operator()(void* memory, std::size_t bytes) const { pool.deallocate(memory, bytes); }
  };
  MemoryPool& pool_;
  Acquire acquire_{pool_};
  Release release_{pool_};

 public:
  const Workspace workspace{acquire_, release_};
};

template <class T>
struct Conv2d {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ConvAttributes>();
    const auto shape = conv_shape(c.input(0).shape, c.input(1).shape, a);
    const T* bias = c.inputs() == 3 ? c.input(2).as<T>() : nullptr;
    conv2d_forward(shape, c.input(0).as<T>(), c.input(1).as<T>(), bias, c.output().as<T>(),
                   {.relu = a.relu, .exact = !a.winograd}, PoolWorkspace(c).workspace);
  }
};
template <class T>
struct Conv2dInputGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ConvAttributes>();
    const auto shape = conv_shape(a.wanted, c.input(1).shape, a);
    conv2d_input_grad(shape, c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>(), {.exact = !a.winograd},
                      PoolWorkspace(c).workspace);
  }
};
template <class T>
struct Conv2dWeightGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ConvAttributes>();
    const auto shape = conv_shape(c.input(0).shape, a.wanted, a);
    conv2d_weight_grad(shape, c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>(), {.exact = !a.winograd},
                       PoolWorkspace(c).workspace);
  }
};
template <class T>
struct Conv2dBiasGrad {
  static void run(ArrayContext& c) {
    const Dims& g = c.input(0).shape;
    // Only sizes of the result count here.
    const Conv2dShape shape{.batch = g[0],
                            .in_channels = 1,
                            .height = g[2],
                            .width = g[3],
                            .out_channels = g[1],
                            .kernel_h = 1,
                            .kernel_w = 1};
    conv2d_bias_grad(shape, c.input(0).as<T>(), c.output().as<T>());
  }
};

template <class T>
struct MaxPool2d {
  static void run(ArrayContext& c) {
    const auto shape = pool_shape(c.input(0).shape, c.output(0).shape, c.attributes<PoolAttributes>());
    max_pool2d(shape, c.input(0).as<T>(), c.output(0).as<T>(), c.output(1).as<std::int32_t>());
  }
};
template <class T>
struct MaxPool2dGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<PoolAttributes>();
    max_pool2d_grad(pool_shape(a.wanted, c.input(0).shape, a), c.input(0).as<T>(), c.input(1).as<std::int32_t>(),
                    c.output().as<T>());
  }
};

}  // namespace

void add_convolution_kernels(Registry& registry) {
  add<Conv2d>(registry.get("conv2d"), kCpu, Direct<Floating>{}, kDense);
  add<Conv2d>(registry.get("conv2d_relu"), kCpu, Direct<Floating>{}, kDense);
  add<Conv2dInputGrad>(registry.get("conv2d_input_grad"), kCpu, Direct<Floating>{}, kDense);
  add<Conv2dWeightGrad>(registry.get("conv2d_weight_grad"), kCpu, Direct<Floating>{}, kDense);
  add<Conv2dBiasGrad>(registry.get("conv2d_bias_grad"), kCpu, Direct<Floating>{}, kDense);
  add<MaxPool2d>(registry.get("max_pool2d"), kCpu, Direct<Floating>{}, kDense);
  add<MaxPool2dGrad>(registry.get("max_pool2d_grad"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
