// Products of matrices: cuBLASLt, with bias and relu in its epilogue. What it does not take, and integers, a plain
// kernel multiplies.
#include <algorithm>
#include <memory>
#include <utility>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/add_bias.h"
#include "sluice/operators/backends/cuda/copy.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/backends/cuda/libraries.h"
#include "sluice/operators/batches.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDenseOutputs{.dense_outputs = true};

/// A matrix with one axis dense: rows of `leading` elements or, transposed, columns.
struct Matrix {
  const std::byte* data;
  std::int64_t leading;
  bool transposed;

  /// A window that is neither is copied.
  Matrix(const Issue& issue, const TensorView& view) {
    const std::int64_t rows = view.shape[0], columns = view.shape[1];
    data = view.data;
    if ((view.strides[1] == 1 || columns == 1) && (view.strides[0] >= columns || rows == 1)) {
      leading = std::max<std::int64_t>({1, columns, rows == 1 ? 1 : view.strides[0]});
      transposed = false;
    } else if ((view.strides[0] == 1 || rows == 1) && (view.strides[1] >= rows || columns == 1)) {
      leading = std::max<std::int64_t>({1, rows, columns == 1 ? 1 : view.strides[1]});
      transposed = true;
    } else {
      TensorView packed = view;
      packed.strides = row_major(view.shape);
      packed.data = issue.scratch<std::byte>(view.count() * static_cast<std::int64_t>(size_of(view.dtype)));
      copy_window(issue, view, packed);
      data = packed.data;
      leading = std::max<std::int64_t>(1, columns);
      transposed = false;
    }
  }
};

/// The matrices of a stack, all stored in one way, and their steps as the result's batch axes see them.
struct Stack {
  Matrix first;
  Dims batches;
  Stack(const Issue& issue, const TensorView& view, const Dims& result) : Stack(issue, dense(issue, view), result, 0) {}

 private:
  Stack(const Issue& issue, const TensorView& view, const Dims& result, int)
      : first(issue, matrix_of(view)), batches(batch_strides(view.shape, view.strides, result)) {}
  static TensorView matrix_of(const TensorView& view) {
    const int at = view.shape.rank() - 2;
    return {view.data, view.dtype, {view.shape[at], view.shape[at + 1]}, {view.strides[at], view.strides[at + 1]}};
  }
  /// The view, or a copy of it where no axis of its matrices is dense.
  static TensorView dense(const Issue& issue, const TensorView& view) {
    const TensorView m = matrix_of(view);
    const bool by_rows = (m.strides[1] == 1 || m.shape[1] == 1) && (m.strides[0] >= m.shape[1] || m.shape[0] == 1);
    const bool by_columns = (m.strides[0] == 1 || m.shape[0] == 1) && (m.strides[1] >= m.shape[0] || m.shape[1] == 1);
    if (by_rows || by_columns) return view;
    TensorView packed = view;
    packed.strides = row_major(view.shape);
    packed.data = issue.scratch<std::byte>(view.count() * static_cast<std::int64_t>(size_of(view.dtype)));
    copy_window(issue, view, packed);
    return packed;
  }
};

/// y = op(a) op(b) (+ bias for each column) (relu): y is m x n, op(a) m x k.
struct Product {
  std::int64_t m, n, k;
  Matrix a, b;
  bool ta, tb;       ///< op transposes what is stored
  const void* bias;  ///< n elements, or null
  bool relu;
  void* y;
  /// A stack of products: matrix i of an operand begins this many elements behind the first, i times. y is dense.
  std::int64_t count = 1, step_a = 0, step_b = 0;
};

template <class T>
struct PlainProduct {
  const T *a, *b, *bias;
  T* y;
  std::int64_t n, k, a_row, a_column, b_row, b_column;
  bool relu;
  std::int64_t size, step_a, step_b;  ///< elements of one matrix of y; as in Product
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(a);
    visit(b);
    visit(bias);
    visit(y);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t batch = i / size, row = i % size / n, column = i % n;
    const T *const x = a + batch * step_a, *const w = b + batch * step_b;
    using A = TotalOf<T>;
    A sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      sum = functors::plus(sum, functors::times(static_cast<A>(number(x[row * a_row + j * a_column])),
                                                static_cast<A>(number(w[j * b_row + column * b_column]))));
    }
    if (bias) sum = functors::plus(sum, static_cast<A>(number(bias[column])));
    if (relu && sum < A(0)) sum = 0;
    y[i] = T(static_cast<compute_of<T>>(sum));
  }
};
template <class T>
void multiply_plainly(const Issue& issue, const Product& p) {
  PlainProduct<T> f{reinterpret_cast<const T*>(p.a.data),
                    reinterpret_cast<const T*>(p.b.data),
                    static_cast<const T*>(p.bias),
                    static_cast<T*>(p.y),
                    p.n,
                    p.k,
                    p.ta ? 1 : p.a.leading,
                    p.ta ? p.a.leading : 1,
                    p.tb ? 1 : p.b.leading,
                    p.tb ? p.b.leading : 1,
                    p.relu,
                    p.m * p.n,
                    p.step_a,
                    p.step_b};
  for_index(issue, p.count * p.m * p.n, f);
}

// ---- cuBLASLt

struct DestroyDescription {
  void operator()(cublasLtMatmulDesc_t d) const { cublasLtMatmulDescDestroy(d); }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t l) const { cublasLtMatrixLayoutDestroy(l); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t p) const { cublasLtMatmulPreferenceDestroy(p); }
};
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, DestroyDescription>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, DestroyLayout>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, DestroyPreference>;

Layout layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t leading) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                   leading),
        "cublasLtMatrixLayoutCreate");
  return Layout(made);
}
template <class V>
void set(const Description& d, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  check(cublasLtMatmulDescSetAttribute(d.get(), attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class V>
void set(const Layout& l, cublasLtMatrixLayoutAttribute_t attribute, const V& value) {
  check(cublasLtMatrixLayoutSetAttribute(l.get(), attribute, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
}
template <class V>
void set(const Preference& p, cublasLtMatmulPreferenceAttributes_t attribute, const V& value) {
  check(cublasLtMatmulPreferenceSetAttribute(p.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

/// The library's matrices are column-major: what is stored by rows is the transposed matrix to it. So it computes
/// transpose(y) = transpose(op(b)) transpose(op(a)), whose rows are y's columns: the bias runs along them.
template <class T>
bool multiply_by_library(const Issue& issue, const Product& p) {
  Libraries& with = issue.libraries();
  constexpr cudaDataType_t type = data_type<T>;
  constexpr bool wide = std::is_same_v<T, double>;
  const cublasComputeType_t compute = wide                                        ? CUBLAS_COMPUTE_64F
                                      : std::is_same_v<T, float> && allows_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                                  : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, compute, wide ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescCreate");
  const Description description(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, p.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, p.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
  const cublasLtEpilogue_t epilogue = p.bias   ? (p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                      : p.relu ? CUBLASLT_EPILOGUE_RELU
                                               : CUBLASLT_EPILOGUE_DEFAULT;
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (p.bias) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const Layout b = p.tb ? layout(type, p.k, p.n, p.b.leading) : layout(type, p.n, p.k, p.b.leading);
  const Layout a = p.ta ? layout(type, p.m, p.k, p.a.leading) : layout(type, p.k, p.m, p.a.leading);
  const Layout y = layout(type, p.n, p.m, p.n);
  if (p.count > 1) {
    for (const auto& [matrix, step] : {std::pair(&a, p.step_a), std::pair(&b, p.step_b), std::pair(&y, p.m * p.n)}) {
      set(*matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(p.count));
      set(*matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
    }
  }
  // What all matrices of a stack are aligned to.
  const auto aligned = [](const void* first, std::int64_t step) {
    return std::min(alignment_of(first),
                    alignment_of(reinterpret_cast<const void*>(step * static_cast<std::int64_t>(sizeof(T)))));
  };
  const std::uint32_t align_a = aligned(p.a.data, p.step_a), align_b = aligned(p.b.data, p.step_b),
                      align_y = aligned(p.y, p.count > 1 ? p.m * p.n : 0);

  const ShapeKey key{
      p.m,      p.n,     p.k,     p.a.leading, p.b.leading,          p.ta,    p.tb,     static_cast<int>(type),
      epilogue, align_a, align_b, align_y,     alignment_of(p.bias), p.count, p.step_a, p.step_b};
  const auto found = with.products.find(key);
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  if (found != with.products.end()) {
    algorithm = found->second;
  } else {
    cublasLtMatmulPreference_t preferred = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preferred), "cublasLtMatmulPreferenceCreate");
    const Preference preference(preferred);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    // Partial sums are not rounded to the type of the results.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_b);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_a);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_y);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_y);
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(with.blas, description.get(), b.get(), a.get(),
                                                                 y.get(), y.get(), preference.get(), 1, &best, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (count > 0 && best.state == CUBLAS_STATUS_SUCCESS) algorithm = best.algo;
    with.products.emplace(key, algorithm);
  }
  if (!algorithm) return false;
  const double one = 1, zero = 0;
  const float one_f32 = 1, zero_f32 = 0;
  const cublasStatus_t status =
      cublasLtMatmul(with.blas, description.get(), wide ? static_cast<const void*>(&one) : &one_f32, p.b.data, b.get(),
                     p.a.data, a.get(), wide ? static_cast<const void*>(&zero) : &zero_f32, p.y, y.get(), p.y, y.get(),
                     &*algorithm, with.workspace, kWorkspace, with.stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check(status, "cublasLtMatmul");
  return true;
}

template <class T>
void multiply(const Issue& issue, const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  if constexpr (is_floating(dtype_of<T>)) {
    if (p.k > 0 && multiply_by_library<T>(issue, p)) return;
  }
  // The library may take the product, and not its epilogue. Halves would be rounded twice so.
  if constexpr (std::is_floating_point_v<T>) {
    Product bare = p;
    bare.bias = nullptr;
    bare.relu = false;
    if (p.k > 0 && (p.bias || p.relu) && multiply_by_library<T>(issue, bare)) {
      return for_index(issue, p.count * p.m * p.n,
                       AddBias<T>{static_cast<T*>(p.y), static_cast<const T*>(p.bias), p.n, 1, p.relu});
    }
  }
  multiply_plainly<T>(issue, p);
}

template <class T>
struct Matmul {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const auto& [ta, tb] = c.attributes<MatmulAttributes>();
    const Matrix a(issue, c.input(0)), b(issue, c.input(1));
    const TensorView& y = c.output();
    multiply<T>(issue, {y.shape[0], y.shape[1], c.input(0).shape[ta ? 0 : 1], a, b, ta != a.transposed,
                        tb != b.transposed, nullptr, false, y.data});
  }
};
/// Stacks whose matrices follow each other at fixed steps are one call of the library; others are several.
template <class T>
struct BatchMatmul {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const auto& [ta, tb] = c.attributes<MatmulAttributes>();
    const TensorView& y = c.output();
    if (y.count() == 0) return;
    const int out = y.shape.rank() - 2;
    const std::int64_t m = y.shape[out], n = y.shape[out + 1];
    const Stack a(issue, c.input(0), y.shape), b(issue, c.input(1), y.shape);
    const Dims axes = batch_axes(y.shape);
    const TensorView batches[] = {{y.data, y.dtype, axes, row_major(axes)},
                                  {y.data, y.dtype, axes, a.batches},
                                  {y.data, y.dtype, axes, b.batches}};
    const TensorView* const views[] = {&batches[0], &batches[1], &batches[2]};
    const Walk<3> walk(views);
    constexpr std::int64_t kMost = (1 << 16) - 1;  // of one call of the library: a grid's y and z end there
    const std::int64_t row = walk.rank == 0 ? 1 : walk.sizes[walk.rank - 1],
                       step_a = walk.rank == 0 ? 0 : walk.strides[1][walk.rank - 1],
                       step_b = walk.rank == 0 ? 0 : walk.strides[2][walk.rank - 1];
    for (std::int64_t first = 0; first < walk.count; first += row) {
      for (std::int64_t i = first; i < first + row; i += kMost) {
        std::int64_t at[3];
        walk.find(i, at);
        constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
        Matrix x = a.first, w = b.first;
        x.data += at[1] * kSize;
        w.data += at[2] * kSize;
        multiply<T>(issue, {m, n, c.input(0).shape[c.input(0).shape.rank() - (ta ? 2 : 1)], x, w, ta != x.transposed,
                            tb != w.transposed, nullptr, false, y.data + i * m * n * kSize,
                            std::min(kMost, first + row - i), step_a, step_b});
      }
    }
  }
};

template <class T>
struct Linear {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const Matrix x(issue, c.input(0)), w(issue, c.input(1));
    const TensorView& y = c.output();
    const void* bias = nullptr;
    if (c.inputs() == 3) {
      TensorView b = c.input(2);
      // Kernels of the library's epilogues have failed with a bias of lesser alignment, at the cost of the card.
      constexpr std::uint32_t kAlignment = 16;
      if ((b.shape[0] > 1 && b.strides[0] != 1) || alignment_of(b.data) < kAlignment) {
        b.data = issue.scratch<std::byte>(b.count() * static_cast<std::int64_t>(sizeof(T)));
        b.strides = {1};
        copy_window(issue, c.input(2), b);
      }
      bias = b.data;
    }
    multiply<T>(issue, {y.shape[0], y.shape[1], c.input(0).shape[1], x, w, x.transposed, !w.transposed, bias,
                        c.attributes<LinearAttributes>().relu, y.data});
  }
};

}  // namespace

void add_matrix_kernels(const Rows& rows) {
  rows.add<Matmul>("matmul", backends::Sums{}, kDenseOutputs);
  rows.add<BatchMatmul>("batch_matmul", backends::Sums{}, kDenseOutputs);
  rows.add<Linear>("linear", backends::Floating{}, kDenseOutputs);
  rows.add<Linear>("linear_relu", backends::Floating{}, kDenseOutputs);
}

}  // namespace sluice::cuda
