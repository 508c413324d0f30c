// Products of the CPU backend as kernels: windows to matrices.
#include <algorithm>
#include <type_traits>
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
  /// The matrix for the result's i-th.
  const T* at(std::int64_t i, const Dims& axes) const { return data + batch_offset(i, axes, batches); }
};

/// The sizes of a product of stacks.
struct StackSizes {
  std::int64_t m, n, k, count;
  Dims axes;  ///< of the result's stack

  StackSizes(const Dims& a, const Dims& y, bool trans_a)
      : m(y[y.rank() - 2]), n(y[y.rank() - 1]), k(a[a.rank() - (trans_a ? 2 : 1)]), axes(batch_axes(y)) {
    count = axes.count();
  }
  /// Small products are split by matrices, large ones within each. The choice depends on sizes alone.
  bool small() const { return work() <= 1 << 21; }
  std::int64_t grain() const { return std::max<std::int64_t>(1, static_cast<std::int64_t>(65536 / work())); }

 private:
  double work() const {
    return static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(std::max<std::int64_t>(k, 1));
  }
};

template <class T>
struct BatchMatmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const TensorView& y = c.output();
    if (y.count() == 0) return;
    const Matrices<T> a(c, c.input(0), y.shape), b(c, c.input(1), y.shape);
    const StackSizes s(c.input(0).shape, y.shape, ta);
    const bool trans_a = ta != a.transposed, trans_b = tb != b.transposed;
    T* const out = y.as<T>();
    if constexpr (is_floating(dtype_of<T>)) {
      if (s.small()) {
        parallel_for(s.count, s.grain(), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            gemm_here(trans_a, trans_b, s.m, s.n, s.k, T(1), a.at(i, s.axes), a.leading, b.at(i, s.axes), b.leading,
                      T(0), out + i * s.m * s.n, s.n);
          }
        });
        return;
      }
    }
    for (std::int64_t i = 0; i < s.count; ++i) {
      gemm(trans_a, trans_b, s.m, s.n, s.k, T(1), a.at(i, s.axes), a.leading, b.at(i, s.axes), b.leading, T(0),
           out + i * s.m * s.n, s.n);
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

/// An f32 result of n elements, rounded.
template <class T>
void narrowed(const float* wide, std::int64_t n, T* out) {
  parallel_for(n, kHalfGrain, [&](std::int64_t begin, std::int64_t end) {
    dispatch(Narrow{}, wide + begin, out + begin, end - begin);
  });
}

/// wide = op(A) op(B) of f16 or bf16, with sums in f32: as gemm(), and C's rows follow each other. bf16 by the
/// processor's own instructions where it has them, else on widened operands.
template <class T>
void half_gemm(ArrayContext& c, bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
               std::int64_t lda, const T* b, std::int64_t ldb, float* wide) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (bf16_is_native()) return bf16_gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, wide, n);
  }
  const std::int64_t columns_a = trans_a ? m : k, columns_b = trans_b ? k : n;
  const Scratch wide_a = widened(c, a, trans_a ? k : m, columns_a, lda);
  const Scratch wide_b = widened(c, b, trans_b ? n : k, columns_b, ldb);
  gemm(trans_a, trans_b, m, n, k, 1.0F, wide_a.as<float>(), std::max<std::int64_t>(1, columns_a), wide_b.as<float>(),
       std::max<std::int64_t>(1, columns_b), 0.0F, wide, n);
}

/// The same for a small product, on the calling thread, in buffers of its own.
template <class T>
class SmallHalfGemm {
 public:
  SmallHalfGemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k)
      : trans_a_(trans_a),
        trans_b_(trans_b),
        m_(m),
        n_(n),
        k_(k),
        a_(static_cast<std::size_t>(m * k)),
        b_(static_cast<std::size_t>(k * n)),
        y_(static_cast<std::size_t>(m * n)) {}
  void operator()(const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* y) {
    const std::int64_t columns_a = trans_a_ ? m_ : k_, columns_b = trans_b_ ? k_ : n_;
    widen(a, trans_a_ ? k_ : m_, columns_a, lda, a_.data());
    widen(b, trans_b_ ? n_ : k_, columns_b, ldb, b_.data());
    gemm_here(trans_a_, trans_b_, m_, n_, k_, 1.0F, a_.data(), std::max<std::int64_t>(1, columns_a), b_.data(),
              std::max<std::int64_t>(1, columns_b), 0.0F, y_.data(), n_);
    dispatch(Narrow{}, static_cast<const float*>(y_.data()), y, m_ * n_);
  }

 private:
  static void widen(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t step, float* to) {
    if (step == columns) return dispatch(Widen{}, from, to, rows * columns);
    for (std::int64_t i = 0; i < rows; ++i) dispatch(Widen{}, from + i * step, to + i * columns, columns);
  }
  bool trans_a_, trans_b_;
  std::int64_t m_, n_, k_;
  std::vector<float> a_, b_, y_;
};

/// A product in f16 or bf16, each element rounded once. `finish(wide)` may change the f32 product of (m, n) before it
/// is rounded.
template <class T, class Finish>
void half_product(ArrayContext& c, const Matrix<T>& a, bool trans_a, const Matrix<T>& b, bool trans_b, std::int64_t k,
                  const Finish& finish) {
  const TensorView& y = c.output();
  const std::int64_t m = y.shape[0], n = y.shape[1];
  if (m == 0 || n == 0) return;
  const Scratch product = c.scratch(static_cast<std::size_t>(m * n) * sizeof(float));
  float* wide = product.as<float>();
  half_gemm(c, trans_a != a.transposed, trans_b != b.transposed, m, n, k, a.data, a.leading, b.data, b.leading, wide);
  finish(wide);
  narrowed(wide, m * n, y.as<T>());
}

template <class T>
struct HalfMatmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const Matrix<T> a(c, c.input(0)), b(c, c.input(1));
    half_product(c, a, ta, b, tb, c.input(0).shape[ta ? 0 : 1], [](float*) {});
  }
};

/// Small products are split by matrices, as in BatchMatmul.
template <class T>
struct HalfBatchMatmul {
  static void run(ArrayContext& c) {
    const auto [ta, tb] = c.attributes<MatmulAttributes>();
    const TensorView& y = c.output();
    if (y.count() == 0) return;
    const Matrices<T> a(c, c.input(0), y.shape), b(c, c.input(1), y.shape);
    const StackSizes s(c.input(0).shape, y.shape, ta);
    const bool trans_a = ta != a.transposed, trans_b = tb != b.transposed;
    if (s.small()) {
      parallel_for(s.count, s.grain(), [&](std::int64_t begin, std::int64_t end) {
        SmallHalfGemm<T> product(trans_a, trans_b, s.m, s.n, s.k);
        for (std::int64_t i = begin; i < end; ++i) {
          product(a.at(i, s.axes), a.leading, b.at(i, s.axes), b.leading, y.as<T>() + i * s.m * s.n);
        }
      });
      return;
    }
    const Scratch one = c.scratch(static_cast<std::size_t>(s.m * s.n) * sizeof(float));
    for (std::int64_t i = 0; i < s.count; ++i) {
      half_gemm(c, trans_a, trans_b, s.m, s.n, s.k, a.at(i, s.axes), a.leading, b.at(i, s.axes), b.leading,
                one.as<float>());
      narrowed(one.as<float>(), s.m * s.n, y.as<T>() + i * s.m * s.n);
    }
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
    half_product(c, x, false, w, true, c.input(0).shape[1], [&](float* wide) {
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
  add<HalfBatchMatmul>(registry.get("batch_matmul"), kCpu, Halves{}, kDenseOutputs);
  add<HalfLinear>(registry.get("linear"), kCpu, Halves{}, kDenseOutputs);
  add<HalfLinear>(registry.get("linear_relu"), kCpu, Halves{}, kDenseOutputs);
}

}  // namespace sluice::cpu_backend
