// Products of the CPU backend as kernels: windows to matrices.
#include <algorithm>
#include <vector>

#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"

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
  add<Linear>(registry.get("linear"), kCpu, Direct<Floating>{}, kDenseOutputs);
  add<Linear>(registry.get("linear_relu"), kCpu, Direct<Floating>{}, kDenseOutputs);
}

}  // namespace sluice::cpu_backend
