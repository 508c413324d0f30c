// Products, convolutions, losses and optimiser steps as kernels, over a backend's functions of these names.
// Backend: ReferenceBackend or CpuBackend, which say what runs inside.
#pragma once

#include <algorithm>
#include <vector>

#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/pool.h"
#include "sluice/operators/backends/register.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice::backends {

/// A matrix as gemm takes it: a leading dimension, and whether it is stored transposed. A window that is neither is
/// copied.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t leading;
  bool transposed;
  Scratch packed;

  Matrix(ArrayContext& c, const TensorView& view) {
    const std::int64_t rows = view.shape[0], columns = view.shape[1];
    if ((view.strides[1] == 1 || columns == 1) && (view.strides[0] >= columns || rows == 1)) {
      data = view.as<T>();
      leading = std::max<std::int64_t>({1, columns, rows == 1 ? 1 : view.strides[0]});
      transposed = false;
    } else if ((view.strides[0] == 1 || rows == 1) && (view.strides[1] >= rows || columns == 1)) {
      data = view.as<T>();
      leading = std::max<std::int64_t>({1, rows, columns == 1 ? 1 : view.strides[1]});
      transposed = true;
    } else {
      packed = c.scratch(static_cast<std::size_t>(rows * columns) * sizeof(T));
      strided_copy(view, {packed.as<std::byte>(), view.dtype, view.shape, row_major(view.shape)});
      data = packed.as<T>();
      leading = std::max<std::int64_t>(1, columns);
      transposed = false;
    }
  }
};

inline cpu_backend::Conv2dShape conv_shape(const Dims& x, const Dims& w, const ConvAttributes& a) {
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

inline cpu_backend::PoolShape pool_shape(const Dims& x, const PoolAttributes& a) {
  return {.planes = x[0] * x[1],
          .height = x[2],
          .width = x[3],
          .kernel_h = a.kernel,
          .kernel_w = a.kernel,
          .stride_h = a.stride,
          .stride_w = a.stride,
          .pad_h = a.padding,
          .pad_w = a.padding};
}

template <class Backend>
struct Heavy {
  template <class T>
  struct Matmul {
    static void run(ArrayContext& c) {
      const auto [ta, tb] = c.attributes<MatmulAttributes>();
      const Matrix<T> a(c, c.input(0)), b(c, c.input(1));
      const TensorView& y = c.output();
      const std::int64_t k = c.input(0).shape[ta ? 0 : 1];
      Backend::template gemm<T>(ta != a.transposed, tb != b.transposed, y.shape[0], y.shape[1], k, a.data, a.leading,
                                b.data, b.leading, y.as<T>());
    }
  };

  template <class T>
  struct Linear {
    static void run(ArrayContext& c) {
      const Matrix<T> x(c, c.input(0)), w(c, c.input(1));
      const TensorView& y = c.output();
      const std::int64_t rows = y.shape[0], columns = y.shape[1];
      Backend::template gemm<T>(x.transposed, !w.transposed, rows, columns, c.input(0).shape[1], x.data, x.leading,
                                w.data, w.leading, y.as<T>());
      const bool relu = c.attributes<LinearAttributes>().relu;
      if (c.inputs() < 3 && !relu) return;
      std::vector<T> bias(static_cast<std::size_t>(columns), T(0));
      if (c.inputs() == 3) {
        const TensorView& b = c.input(2);
        for (std::int64_t j = 0; j < columns; ++j) bias[static_cast<std::size_t>(j)] = b.as<T>()[j * b.strides[0]];
      }
      Backend::template add_bias<T>(rows, columns, y.as<T>(), bias.data(), relu, y.as<T>());
    }
  };

  template <class T>
  struct Conv2d {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ConvAttributes>();
      const auto shape = conv_shape(c.input(0).shape, c.input(1).shape, a);
      const T* bias = c.inputs() == 3 ? c.input(2).as<T>() : nullptr;
      Backend::conv2d_forward(c, shape, c.input(0).as<T>(), c.input(1).as<T>(), bias, c.output().as<T>(), a.relu);
    }
  };
  template <class T>
  struct Conv2dInputGrad {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ConvAttributes>();
      const auto shape = conv_shape(a.wanted, c.input(1).shape, a);
      Backend::conv2d_input_grad(c, shape, c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>());
    }
  };
  template <class T>
  struct Conv2dWeightGrad {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<ConvAttributes>();
      const auto shape = conv_shape(c.input(0).shape, a.wanted, a);
      Backend::conv2d_weight_grad(c, shape, c.input(0).as<T>(), c.input(1).as<T>(), c.output().as<T>());
    }
  };
  template <class T>
  struct Conv2dBiasGrad {
    static void run(ArrayContext& c) {
      const Dims& g = c.input(0).shape;
      // Only sizes of the result count here.
      const cpu_backend::Conv2dShape shape{.batch = g[0],
                                           .in_channels = 1,
                                           .height = g[2],
                                           .width = g[3],
                                           .out_channels = g[1],
                                           .kernel_h = 1,
                                           .kernel_w = 1};
      Backend::conv2d_bias_grad(shape, c.input(0).as<T>(), c.output().as<T>());
    }
  };

  template <class T>
  struct MaxPool2d {
    static void run(ArrayContext& c) {
      const auto shape = pool_shape(c.input(0).shape, c.attributes<PoolAttributes>());
      Backend::max_pool2d(shape, c.input(0).as<T>(), c.output(0).as<T>(), c.output(1).as<std::int32_t>());
    }
  };
  template <class T>
  struct MaxPool2dGrad {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<PoolAttributes>();
      Backend::max_pool2d_grad(pool_shape(a.wanted, a), c.input(0).as<T>(), c.input(1).as<std::int32_t>(),
                               c.output().as<T>());
    }
  };

  template <class T>
  struct CrossEntropy {
    static void run(ArrayContext& c) {
      const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
      const Scratch losses = c.scratch(static_cast<std::size_t>(rows) * sizeof(T));
      Backend::softmax_cross_entropy(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(), losses.as<T>(),
                                     c.output(1).as<T>());
      double total = 0;
      for (std::int64_t i = 0; i < rows; ++i) total += static_cast<double>(losses.as<T>()[i]);
      *c.output(0).as<T>() = static_cast<T>(total * c.attributes<LossAttributes>().scale);
    }
  };
  template <class T>
  struct CrossEntropyGrad {
    static void run(ArrayContext& c) {
      const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
      const T scale = static_cast<T>(c.attributes<LossAttributes>().scale) * *c.input(2).as<T>();
      Backend::softmax_cross_entropy_grad(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(), scale,
                                          c.output().as<T>());
    }
  };

  template <class T>
  struct Sgd {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<SgdAttributes>();
      Backend::sgd_momentum_step(c.output(0).as<T>(), c.outputs() == 2 ? c.output(1).as<T>() : nullptr,
                                 c.input(0).as<T>(), c.input(0).count(), static_cast<T>(a.lr),
                                 static_cast<T>(a.momentum), static_cast<T>(a.weight_decay));
    }
  };
  template <class T>
  struct Adam {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<AdamStep>();
      // The fourth output, where there is one, counts the steps: an i64 scalar.
      const std::int64_t step = c.outputs() == 4 ? *c.output(3).as<std::int64_t>() += 1 : a.step;
      const cpu_backend::AdamSettings<T> settings{static_cast<T>(a.lr),           static_cast<T>(a.beta1),
                                                  static_cast<T>(a.beta2),        static_cast<T>(a.eps),
                                                  static_cast<T>(a.weight_decay), a.decoupled};
      Backend::adam_step(c.output(0).as<T>(), c.output(1).as<T>(), c.output(2).as<T>(), c.input(0).as<T>(),
                         c.input(0).count(), step, settings);
    }
  };

  static void add_to(Registry& registry, const Kernel& backend) {
    Kernel dense = backend, product = backend;
    dense.dense_inputs = dense.dense_outputs = product.dense_outputs = true;
    add<Matmul>(registry.get("matmul"), Arithmetic{}, product);
    add<Linear>(registry.get("linear"), Floating{}, product);
    add<Linear>(registry.get("linear_relu"), Floating{}, product);
    add<Conv2d>(registry.get("conv2d"), Floating{}, dense);
    add<Conv2d>(registry.get("conv2d_relu"), Floating{}, dense);
    add<Conv2dInputGrad>(registry.get("conv2d_input_grad"), Floating{}, dense);
    add<Conv2dWeightGrad>(registry.get("conv2d_weight_grad"), Floating{}, dense);
    add<Conv2dBiasGrad>(registry.get("conv2d_bias_grad"), Floating{}, dense);
    add<MaxPool2d>(registry.get("max_pool2d"), Floating{}, dense);
    add<MaxPool2dGrad>(registry.get("max_pool2d_grad"), Floating{}, dense);
    add<CrossEntropy>(registry.get("cross_entropy"), Floating{}, dense);
    add<CrossEntropyGrad>(registry.get("cross_entropy_grad"), Floating{}, dense);
    add<Sgd>(registry.get("sgd_step"), Floating{}, dense);
    add<Sgd>(registry.get("sgd_momentum_step"), Floating{}, dense);
    add<Adam>(registry.get("adam_step"), Floating{}, dense);
  }
};

}  // namespace sluice::backends
