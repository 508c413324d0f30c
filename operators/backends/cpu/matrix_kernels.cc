// Products of the CPU backend as kernels: windows to matrices.
#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/batches.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

constexpr std::int64_t kHalfGrain = 32768;  // elements that one thread converts at a time

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

template <class T>
struct Matmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const Matrix<T> a(c, c.input(0)), b(c, c.input(1));
    const TensorView& y = c.output();
    const std::int64_t k = c.input(0).shape[ta ? 0 : 1];
    gemm(ta != a.transposed, tb != b.transposed, y.shape[0], y.shape[1], k, T(1), a.data, a.leading, b.data, b.leading,
         T(0), y.as<T>(), std::max<std::int64_t>(1, y.shape[1]));
  }
};

/// The matrices of a stack, all stored in one way.
template <class T>
struct Matrices {
  const T* data;
  std::int64_t leading;
  bool transposed;
  Dims batches;  ///< strides, as the result's batch axes see them
  Scratch packed;

  Matrices(ArrayContext& c, const TensorView& view, const Dims& result) {
    const int at = view.shape.rank() - 2;
    const std::int64_t rows = view.shape[at], columns = view.shape[at + 1];
    data = view.as<T>();
    Dims strides = view.strides;
    if ((strides[at + 1] == 1 || columns == 1) && (strides[at] >= columns || rows == 1)) {
      leading = std::max<std::int64_t>({1, columns, rows == 1 ? 1 : strides[at]});
      transposed = false;
    } else if ((strides[at] == 1 || rows == 1) && (strides[at + 1] >= rows || columns == 1)) {
      leading = std::max<std::int64_t>({1, rows, columns == 1 ? 1 : strides[at + 1]});
      transposed = true;
    } else {
      packed = c.scratch(static_cast<std::size_t>(view.shape.count()) * sizeof(T));
      strides = row_major(view.shape);
      strided_copy(view, {packed.as<std::byte>(), view.dtype, view.shape, strides});
      data = packed.as<T>();
      leading = std::max<std::int64_t>(1, columns);
      transposed = false;
    }
    batches = batch_strides(view.shape, strides, result);
  }
};

template <class T>
struct BatchMatmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const TensorView& y = c.output();
    if (y.count() == 0) return;
    const Matrices<T> a(c, c.input(0), y.shape), b(c, c.input(1), y.shape);
    const Dims axes = batch_axes(y.shape);
    const int out = y.shape.rank() - 2;
    const std::int64_t m = y.shape[out], n = y.shape[out + 1],
                       k = c.input(0).shape[c.input(0).shape.rank() - (ta ? 2 : 1)], count = axes.count();
    const bool trans_a = ta != a.transposed, trans_b = tb != b.transposed;
    const auto operands = [&](std::int64_t i) {
      return std::tuple(a.data + batch_offset(i, axes, a.batches), b.data + batch_offset(i, axes, b.batches),
                        y.as<T>() + i * m * n);
    };
    // Small products are split by matrices, large ones within each. The choice depends on sizes alone.
    if constexpr (is_floating(dtype_of<T>)) {
      constexpr std::int64_t kSmall = 1 << 21;
      const double work =
          static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(std::max<std::int64_t>(k, 1));
      if (work <= kSmall) {
        const auto grain = std::max<std::int64_t>(1, static_cast<std::int64_t>(65536 / work));
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const auto [x, w, into] = operands(i);
            gemm_here(trans_a, trans_b, m, n, k, T(1), x, a.leading, w, b.leading, T(0), into, n);
          }
        });
        return;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto [x, w, into] = operands(i);
      gemm(trans_a, trans_b, m, n, k, T(1), x, a.leading, w, b.leading, T(0), into, n);
    }
  }
};

template <class T>
struct Linear {
  static void run(ArrayContext& c) {
    const Matrix<T> x(c, c.input(0)), w(c, c.input(1));
    const TensorView& y = c.output();
    const std::int64_t rows = y.shape[0], columns = y.shape[1];
    gemm(x.transposed, !w.transposed, rows, columns, c.input(0).shape[1], T(1), x.data, x.leading, w.data, w.leading,
         T(0), y.as<T>(), std::max<std::int64_t>(1, y.shape[1]));
    const bool relu = c.attributes<LinearAttributes>().relu;
    if (c.inputs() < 3 && !relu) return;
    std::vector<T> bias(static_cast<std::size_t>(columns), T(0));
    if (c.inputs() == 3) {
      const TensorView& b = c.input(2);
      for (std::int64_t j = 0; j < columns; ++j) bias[static_cast<std::size_t>(j)] = b.as<T>()[j * b.strides[0]];
    }
    add_bias(rows, columns, static_cast<const T*>(y.as<T>()), bias.data(), relu, y.as<T>());
  }
};

/// The f32 values of stored rows whose elements are f16 or bf16.
template <class T>
Scratch widened(ArrayContext& c, const T* from, std::int64_t rows, std::int64_t columns, std::int64_t step) {
  Scratch wide = c.scratch(static_cast<std::size_t>(rows * columns) * sizeof(float));
  float* to = wide.as<float>();
  parallel_for(rows, std::max<std::int64_t>(1, kHalfGrain / std::max<std::int64_t>(1, columns)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   dispatch(Widen{}, from + i * step, to + i * columns, columns);
                 }
               });
  return wide;
}

/// A product in f16 or bf16: sums in f32, each element rounded once. bf16 by the processor's own instructions where it
/// has them, else on widened operands. `finish(wide)` may change the f32 product of (m, n) before it is rounded.
template <class T, class Finish>
void half_product(ArrayContext& c, const Matrix<T>& a, const Dims& shape_a, bool trans_a, const Matrix<T>& b,
                  const Dims& shape_b, bool trans_b, std::int64_t k, const Finish& finish) {
  const TensorView& y = c.output();
  const std::int64_t m = y.shape[0], n = y.shape[1];
  if (m == 0 || n == 0) return;
  Scratch product = c.scratch(static_cast<std::size_t>(m * n) * sizeof(float));
  float* wide = product.as<float>();
  const std::int64_t row = std::max<std::int64_t>(1, n);
  bool done = false;
  if constexpr (std::is_same_v<T, BFloat16>) {
    done = bf16_is_native();
    if (done) {
      bf16_gemm(trans_a != a.transposed, trans_b != b.transposed, m, n, k, a.data, a.leading, b.data, b.leading, wide,
                row);
    }
  }
  if (!done) {
    const auto stored = [&](const Matrix<T>& x, const Dims& shape) {
      return std::pair(shape[x.transposed ? 1 : 0], shape[x.transposed ? 0 : 1]);
    };
    const auto [rows_a, columns_a] = stored(a, shape_a);
    const auto [rows_b, columns_b] = stored(b, shape_b);
    const Scratch wide_a = widened(c, a.data, rows_a, columns_a, a.leading);
    const Scratch wide_b = widened(c, b.data, rows_b, columns_b, b.leading);
    gemm(trans_a != a.transposed, trans_b != b.transposed, m, n, k, 1.0F, wide_a.as<float>(),
         std::max<std::int64_t>(1, columns_a), wide_b.as<float>(), std::max<std::int64_t>(1, columns_b), 0.0F, wide,
         row);
  }
  finish(wide);
  T* out = y.as<T>();
  parallel_for(m * n, kHalfGrain, [&](std::int64_t begin, std::int64_t end) {
    dispatch(Narrow{}, static_cast<const float*>(wide) + begin, out + begin, end - begin);
  });
}

template <class T>
struct HalfMatmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const Matrix<T> a(c, c.input(0)), b(c, c.input(1));
    half_product(c, a, c.input(0).shape, ta, b, c.input(1).shape, tb, c.input(0).shape[ta ? 0 : 1], [](float*) {});
  }
};

template <class T>
struct HalfLinear {
  static void run(ArrayContext& c) {
    const Matrix<T> x(c, c.input(0)), w(c, c.input(1));
    const std::int64_t rows = c.output().shape[0], columns = c.output().shape[1];
    const bool relu = c.attributes<LinearAttributes>().relu;
    std::vector<float> bias(static_cast<std::size_t>(columns), 0.0F);
    if (c.inputs() == 3) {
      const TensorView& b = c.input(2);
      for (std::int64_t j = 0; j < columns; ++j) {
        bias[static_cast<std::size_t>(j)] = static_cast<float>(b.as<T>()[j * b.strides[0]]);
      }
    }
    half_product(c, x, c.input(0).shape, false, w, c.input(1).shape, true, c.input(0).shape[1], [&](float* wide) {
      if (c.inputs() == 3 || relu) add_bias(rows, columns, static_cast<const float*>(wide), bias.data(), relu, wide);
    });
  }
};

}  // namespace

void add_matrix_kernels(Registry& registry) {
  add<Matmul>(registry.get("matmul"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<BatchMatmul>(registry.get("batch_matmul"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<Linear>(registry.get("linear"), kCpu, Direct<Floating>{}, kDenseOutputs);
  add<Linear>(registry.get("linear_relu"), kCpu, Direct<Floating>{}, kDenseOutputs);
  using Halves = Types<Float16, BFloat16>;
  add<HalfMatmul>(registry.get("matmul"), kCpu, Halves{}, kDenseOutputs);
  add<HalfLinear>(registry.get("linear"), kCpu, Halves{}, kDenseOutputs);
  add<HalfLinear>(registry.get("linear_relu"), kCpu, Halves{}, kDenseOutputs);
}

}  // namespace sluice::cpu_backend
