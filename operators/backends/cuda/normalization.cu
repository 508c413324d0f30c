// Normalisation of rows and its gradients.
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/fold.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/normalize_rows.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

/// Threads of the block that takes a row: long rows are often few.
constexpr int kFewThreads = 256, kManyThreads = 1024;
constexpr std::int64_t kLongRow = 4096;

/// Launches one of two kernels, for blocks of few and of many threads, with a block for each row.
template <class F>
void launch_rows(const Issue& issue, void (*few)(F), void (*many)(F), const F& f, const NormalizedRows& s) {
  Grid grid = grid_for(s.rows * kFoldThreads);
  grid.barriers = true;
  grid.threads = s.size > kLongRow ? kManyThreads : kFewThreads;
  issue.launch(s.size > kLongRow ? many : few, grid, f);
}

template <class T>
struct Normalized {
  T* y;
  RowStatistics<compute_of<T>>* statistics;
  const T *x, *weight, *bias;
  NormalizedRows s;
  double eps;
  bool centred;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(statistics);
    visit(x);
    visit(weight);
    visit(bias);
  }
};
/// A block for each row: the mean, the sum of squared differences from it, the results. Sums are in double.
template <int threads, class T>
__global__ void __launch_bounds__(threads) normalized_rows(Normalized<T> f) {
  using C = compute_of<T>;
  __shared__ double shared[threads];
  const auto add = [](double a, double b) { return a + b; };
  const std::int64_t size = f.s.size;
  for (std::int64_t row = blockIdx.x; row < f.s.rows; row += gridDim.x) {
    const T* const x = f.x + row * size;
    T* const y = f.y + row * size;
    RowStatistics<C> s{};
    if (f.centred) {
      double total = 0;
      for (std::int64_t i = threadIdx.x; i < size; i += threads) total += static_cast<double>(number(x[i]));
      const double mean = fold_block<threads>(shared, total, add) / static_cast<double>(size);
      s.mean = static_cast<C>(mean);
      s.rest = static_cast<C>(mean - static_cast<double>(s.mean));
    }
    double squares = 0;
    for (std::int64_t i = threadIdx.x; i < size; i += threads) {
      const auto off = static_cast<double>(s.off(number(x[i])));
      squares += off * off;
    }
    const double variance = fold_block<threads>(shared, squares, add) / static_cast<double>(size);
    s.variance = static_cast<C>(variance);
    s.scale = static_cast<C>(1 / std::sqrt(variance + f.eps));
    for (std::int64_t i = threadIdx.x; i < size; i += threads) {
      C value = s.normal(number(x[i]));
      if (f.weight) value *= number(f.weight[i]);
      if (f.bias) value += number(f.bias[i]);
      y[i] = T(value);
    }
    if (threadIdx.x == 0) f.statistics[row] = s;
  }
}
template <class T>
struct NormalizeRows {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<NormalizeAttributes>();
    const NormalizedRows s(c.input(0).shape, a);
    if (s.rows == 0) return;
    launch_rows(Issue(c), normalized_rows<kFewThreads, T>, normalized_rows<kManyThreads, T>,
                Normalized<T>{c.output(0).template as<T>(), c.output(1).template as<RowStatistics<compute_of<T>>>(),
                              c.input(0).template as<T>(), c.inputs() > 1 ? c.input(1).template as<T>() : nullptr,
                              c.inputs() > 2 ? c.input(2).template as<T>() : nullptr, s, a.eps, a.centred},
                s);
  }
};

/// What the gradients read.
template <class T>
struct Gradients {
  using C = compute_of<T>;
  const T *x, *g, *weight;
  const RowStatistics<C>* statistics;
  NormalizedRows s;

  explicit Gradients(const ArrayContext& c)
      : x(c.input(0).template as<T>()),
        g(c.input(2).template as<T>()),
        weight(c.inputs() > 3 ? c.input(3).template as<T>() : nullptr),
        statistics(c.input(1).template as<RowStatistics<C>>()),
        s(c.input(0).shape, c.attributes<NormalizeAttributes>()) {}
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(g);
    visit(weight);
    visit(statistics);
  }
  __device__ C normal(std::int64_t row, std::int64_t i) const {
    return statistics[row].normal(number(x[row * s.size + i]));
  }
  __device__ C weighted(std::int64_t row, std::int64_t i) const {
    const C plain = number(g[row * s.size + i]);
    return weight ? plain * number(weight[i]) : plain;
  }
};
template <class T>
struct OfRows {
  Gradients<T> from;
  T* dx;
  bool centred;
  template <class Visit>
  void each_pointer(Visit visit) {
    from.each_pointer(visit);
    visit(dx);
  }
};
template <int threads, class T>
__global__ void __launch_bounds__(threads) gradient_of_rows(OfRows<T> f) {
  using C = compute_of<T>;
  __shared__ double shared[threads];
  const auto add = [](double a, double b) { return a + b; };
  const std::int64_t size = f.from.s.size;
  for (std::int64_t row = blockIdx.x; row < f.from.s.rows; row += gridDim.x) {
    double total = 0, products = 0;
    for (std::int64_t i = threadIdx.x; i < size; i += threads) {
      const C g = f.from.weighted(row, i);
      total += static_cast<double>(g);
      products += static_cast<double>(g * f.from.normal(row, i));
    }
    const double mean = f.centred ? fold_block<threads>(shared, total, add) / static_cast<double>(size) : 0;
    const C average = static_cast<C>(mean), rest = static_cast<C>(mean - static_cast<double>(average));
    const C slope = static_cast<C>(fold_block<threads>(shared, products, add) / static_cast<double>(size));
    const C scale = f.from.statistics[row].scale;
    for (std::int64_t i = threadIdx.x; i < size; i += threads) {
      f.dx[row * size + i] = T(scale * ((f.from.weighted(row, i) - average) - rest - f.from.normal(row, i) * slope));
    }
  }
}
template <class T>
struct NormalizeRowsGrad {
  static void run(ArrayContext& c) {
    const Gradients<T> from(c);
    if (c.output().count() == 0) return;
    launch_rows(Issue(c), gradient_of_rows<kFewThreads, T>, gradient_of_rows<kManyThreads, T>,
                OfRows<T>{from, c.output().template as<T>(), c.attributes<NormalizeAttributes>().centred}, from.s);
  }
};

constexpr std::int64_t kRowsOfPart = 64;

/// A thread for each element of the weight and each part of the rows, in order.
template <class T>
struct PartOfWeight {
  Gradients<T> from;
  double *of_weight, *of_bias;
  template <class Visit>
  void each_pointer(Visit visit) {
    from.each_pointer(visit);
    visit(of_weight);
    visit(of_bias);
  }
  __device__ void operator()(std::int64_t task) const {
    const std::int64_t size = from.s.size, i = task % size, begin = task / size * kRowsOfPart;
    const std::int64_t end = begin + kRowsOfPart < from.s.rows ? begin + kRowsOfPart : from.s.rows;
    double weight = 0, bias = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const compute_of<T> g = number(from.g[row * size + i]);
      weight += static_cast<double>(g * from.normal(row, i));
      bias += static_cast<double>(g);
    }
    of_weight[task] = weight;
    of_bias[task] = bias;
  }
};
/// The parts' sums of each element, in order.
template <class T>
struct WholeOfWeight {
  T *weight, *bias;
  const double *of_weight, *of_bias;
  std::int64_t size, parts;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(weight);
    visit(bias);
    visit(of_weight);
    visit(of_bias);
  }
  __device__ void operator()(std::int64_t i) const {
    double w = 0, b = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      w += of_weight[part * size + i];
      b += of_bias[part * size + i];
    }
    weight[i] = T(static_cast<compute_of<T>>(w));
    bias[i] = T(static_cast<compute_of<T>>(b));
  }
};
template <class T>
struct NormalizeRowsWeightGrad {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const Gradients<T> from(c);
    const std::int64_t size = from.s.size, parts = (from.s.rows + kRowsOfPart - 1) / kRowsOfPart;
    auto* const of_weight = issue.scratch<double>(std::max<std::int64_t>(1, parts * size));
    auto* const of_bias = issue.scratch<double>(std::max<std::int64_t>(1, parts * size));
    for_index(issue, parts * size, PartOfWeight<T>{from, of_weight, of_bias});
    for_index(
        issue, size,
        WholeOfWeight<T>{c.output(0).template as<T>(), c.output(1).template as<T>(), of_weight, of_bias, size, parts});
  }
};

}  // namespace

void add_normalization_kernels(const Rows& rows) {
  rows.add<NormalizeRows>("normalize_rows", backends::Floating{}, kDense);
  rows.add<NormalizeRowsGrad>("normalize_rows_grad", backends::Floating{}, kDense);
  rows.add<NormalizeRowsWeightGrad>("normalize_rows_weight_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
