// Products of the CPU backend as kernels: windows to matrices.
#include <algorithm>
#include <tuple>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/batches.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

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

}  // namespace

void add_matrix_kernels(Registry& registry) {
  add<Matmul>(registry.get("matmul"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<BatchMatmul>(registry.get("batch_matmul"), kCpu, Direct<Arithmetic>{}, kDenseOutputs);
  add<Linear>(registry.get("linear"), kCpu, Direct<Floating>{}, kDenseOutputs);
  add<Linear>(registry.get("linear_relu"), kCpu, Direct<Floating>{}, kDenseOutputs);
}

}  // namespace sluice::cpu_backend
