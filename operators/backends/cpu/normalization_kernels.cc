// Normalisation of rows of the CPU backend. Sums along rows go in blocks of elements that are added in double, and
// gradients of weights in blocks of rows: both depend on the shape alone. f16 and bf16 are widened to f32 row by row.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/normalization_loops.h"
#include "sluice/operators/normalize_rows.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;
using namespace detail;  // NOLINT: normalization_loops.h

/// Rows one after another: the mean, the mean square, and the results while the row is in the cache.
struct Normalize {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* weight, const C* bias, C* y, RowStatistics<C>* statistics,
                                     std::int64_t rows, std::int64_t n, double eps, bool centred) const {
    for (std::int64_t r = 0; r < rows; ++r, x += n, y += n) {
      RowStatistics<C> s{};
      if (centred) {
        split(detail::row_total<double>(x, n) / static_cast<double>(n), &s.mean, &s.rest);
      }
      const double variance = square_total(x, n, s) / static_cast<double>(n);
      s.variance = static_cast<C>(variance);
      s.scale = static_cast<C>(1 / std::sqrt(variance + eps));
      statistics[r] = s;
      if (bias) {
        for (std::int64_t i = 0; i < n; ++i) y[i] = s.normal(x[i]) * weight[i] + bias[i];
      } else if (weight) {
        for (std::int64_t i = 0; i < n; ++i) y[i] = s.normal(x[i]) * weight[i];
      } else {
        for (std::int64_t i = 0; i < n; ++i) y[i] = s.normal(x[i]);
      }
    }
  }
};

/// scale * (g w - mean(g w) - normal * mean(g w normal)); w is 1 where not weighted.
template <bool weighted>
struct RowGradient {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const RowStatistics<C>* statistics, const C* g, const C* weight, C* dx,
                                     std::int64_t rows, std::int64_t n, bool centred) const {
    for (std::int64_t r = 0; r < rows; ++r, x += n, g += n, dx += n) {
      const RowStatistics<C> s = statistics[r];
      double total = 0, products = 0;
      add_products<weighted>(x, s, g, weight, n, &total, &products);
      C average = 0, rest = 0;
      if (centred) split(total / static_cast<double>(n), &average, &rest);
      const C slope = static_cast<C>(products / static_cast<double>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const C value = weighted ? g[i] * weight[i] : g[i];
        dx[i] = s.scale * ((value - average) - rest - s.normal(x[i]) * slope);
      }
    }
  }
};

/// sums[j] += g * normal and sums[n + j] += g, rows in order: four at a time, as in RowSums.
struct WeightGradient {
  template <class C, class A>
  SLUICE_KERNEL_BODY void operator()(const C* x, const RowStatistics<C>* statistics, const C* g, A* __restrict sums,
                                     std::int64_t rows, std::int64_t n) const {
    constexpr int together = 4;
    std::int64_t r = 0;
    for (; r + together <= rows; r += together, x += together * n, g += together * n) {
      add<together>(x, statistics + r, g, sums, n);
    }
    for (; r < rows; ++r, x += n, g += n) add<1>(x, statistics + r, g, sums, n);
  }
  template <int count, class C, class A>
  SLUICE_KERNEL_BODY static void add(const C* x, const RowStatistics<C>* statistics, const C* g, A* __restrict sums,
                                     std::int64_t n) {
    A* const plain = sums + n;
    RowStatistics<C> s[count];
    for (int k = 0; k < count; ++k) s[k] = statistics[k];
    for (std::int64_t j = 0; j < n; ++j) {
      A products = sums[j], total = plain[j];
      for (int k = 0; k < count; ++k) {
        products += static_cast<A>(g[k * n + j] * s[k].normal(x[k * n + j]));
        total += static_cast<A>(g[k * n + j]);
      }
      sums[j] = products;
      plain[j] = total;
    }
  }
};

std::int64_t grain_of(const NormalizedRows& s) {
  return std::max<std::int64_t>(1, kElementwiseGrain / 4 / std::max<std::int64_t>(1, s.size));
}

/// Elements of T as numbers to compute with: f16 and bf16 by way of a buffer, others where they are.
template <class T>
class Wide {
 public:
  using C = compute_of<T>;
  static constexpr bool kDirect = std::is_same_v<T, C>;

  explicit Wide(std::int64_t size) {
    if constexpr (!kDirect) buffer_.resize(static_cast<std::size_t>(size));
  }
  const C* read(const T* from, std::int64_t n) {
    if constexpr (kDirect) {
      return from;
    } else {
      dispatch(Widen{}, from, buffer_.data(), n);
      return buffer_.data();
    }
  }
  /// Where results for `to` are computed; store() brings them there.
  C* place(T* to) {
    if constexpr (kDirect) {
      return to;
    } else {
      return buffer_.data();
    }
  }
  void store([[maybe_unused]] T* to, [[maybe_unused]] std::int64_t n) const {
    if constexpr (!kDirect) dispatch(Narrow{}, static_cast<const C*>(buffer_.data()), to, n);
  }

 private:
  std::vector<C> buffer_;
};

/// How many rows a kernel's body takes at once: f16 and bf16 go through a buffer of one row.
template <class T>
std::int64_t rows_at_once(std::int64_t rows) {
  return Wide<T>::kDirect ? rows : 1;
}

template <class T>
struct NormalizeRows {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const auto& a = c.attributes<NormalizeAttributes>();
    const NormalizedRows s(c.input(0).shape, a);
    const std::int64_t n = s.size;
    Wide<T> wide_weight(n), wide_bias(n);
    const C* weight = c.inputs() > 1 ? wide_weight.read(c.input(1).as<T>(), n) : nullptr;
    const C* bias = c.inputs() > 2 ? wide_bias.read(c.input(2).as<T>(), n) : nullptr;
    const T* x = c.input(0).as<T>();
    T* y = c.output(0).as<T>();
    auto* statistics = c.output(1).as<RowStatistics<C>>();
    parallel_for(s.rows, grain_of(s), [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_y(n);
      const std::int64_t each = rows_at_once<T>(end - begin);
      for (std::int64_t r = begin; r < end; r += each) {
        T* const to = y + r * n;
        dispatch(Normalize{}, of_x.read(x + r * n, n), weight, bias, of_y.place(to), statistics + r, each, n, a.eps,
                 a.centred);
        of_y.store(to, n);
      }
    });
  }
};

template <class T>
struct NormalizeRowsGrad {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const auto& a = c.attributes<NormalizeAttributes>();
    const NormalizedRows s(c.input(0).shape, a);
    const std::int64_t n = s.size;
    Wide<T> wide_weight(n);
    const C* weight = c.inputs() > 3 ? wide_weight.read(c.input(3).as<T>(), n) : nullptr;
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    const auto* statistics = c.input(1).as<RowStatistics<C>>();
    T* dx = c.output().as<T>();
    parallel_for(s.rows, grain_of(s), [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_g(n), of_dx(n);
      const std::int64_t each = rows_at_once<T>(end - begin);
      for (std::int64_t r = begin; r < end; r += each) {
        T* const to = dx + r * n;
        const C *from = of_x.read(x + r * n, n), *back = of_g.read(g + r * n, n);
        if (weight) {
          dispatch(RowGradient<true>{}, from, statistics + r, back, weight, of_dx.place(to), each, n, a.centred);
        } else {
          dispatch(RowGradient<false>{}, from, statistics + r, back, weight, of_dx.place(to), each, n, a.centred);
        }
        of_dx.store(to, n);
      }
    });
  }
};

/// Rows in blocks, each with sums of its own: at most 64.
struct RowBlocks {
  std::int64_t rows, count;
  explicit RowBlocks(const NormalizedRows& s)
      : rows(std::max({std::int64_t{16}, kElementwiseGrain / std::max<std::int64_t>(1, s.size), (s.rows + 63) / 64})),
        count(std::max<std::int64_t>(1, (s.rows + rows - 1) / rows)) {}
};

template <class T>
struct NormalizeRowsWeightGrad {
  static std::size_t scratch(const Signature& call) {
    const NormalizedRows s(call.shape(0), call.attributes<NormalizeAttributes>());
    return bytes(s);
  }
  static std::size_t bytes(const NormalizedRows& s) {
    return std::max<std::size_t>(1, static_cast<std::size_t>(RowBlocks(s).count * 2 * s.size)) *
           sizeof(TotalOf<compute_of<T>>);
  }
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    using A = TotalOf<C>;
    const NormalizedRows s(c.input(0).shape, c.attributes<NormalizeAttributes>());
    const RowBlocks blocks(s);
    const std::int64_t n = s.size;
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    const auto* statistics = c.input(1).as<RowStatistics<C>>();
    const Scratch kept = c.scratch(bytes(s));
    A* const parts = kept.as<A>();
    parallel_for(blocks.count, 1, [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_g(n);
      for (std::int64_t b = begin; b < end; ++b) {
        A* const sums = parts + b * 2 * n;
        std::fill(sums, sums + 2 * n, A(0));
        const std::int64_t last = std::min(s.rows, (b + 1) * blocks.rows);
        const std::int64_t each = rows_at_once<T>(last - b * blocks.rows);
        for (std::int64_t r = b * blocks.rows; r < last; r += each) {
          dispatch(WeightGradient{}, of_x.read(x + r * n, n), statistics + r, of_g.read(g + r * n, n), sums, each, n);
        }
      }
    });
    dispatch(detail::RowSums{}, static_cast<const A*>(parts + 2 * n), blocks.count - 1, 2 * n, 2 * n, parts);
    for (int i = 0; i < 2; ++i) {
      const A* const sums = parts + i * n;
      T* const to = c.output(i).as<T>();
      for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(static_cast<C>(sums[j]));
    }
  }
};

template <class... T>
void add_weight_gradients(const Operator& row, Types<T...>) {
  const auto one = [&]<class Element>(Types<Element>) {
    Kernel kernel = kDense;
    kernel.scratch = NormalizeRowsWeightGrad<Element>::scratch;
    add<NormalizeRowsWeightGrad>(row, kCpu, Types<Element>{}, kernel);
  };
  (one(Types<T>{}), ...);
}

}  // namespace

void add_normalization_kernels(Registry& registry) {
  add<NormalizeRows>(registry.get("normalize_rows"), kCpu, Floating{}, kDense);
  add<NormalizeRowsGrad>(registry.get("normalize_rows_grad"), kCpu, Floating{}, kDense);
  add_weight_gradients(registry.get("normalize_rows_weight_grad"), Floating{});
  add_batch_norm_kernels(registry);
}

}  // namespace sluice::cpu_backend
