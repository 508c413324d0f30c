// Normalisation of rows of the CPU backend. Sums go in blocks of kSumBlock elements, and gradients of weights in blocks
// of rows: both depend on the shape alone. f16 and bf16 are widened to f32 row by row.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/normalize_rows.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

constexpr int kLanes = 64;  // running sums, so that the additions overlap and vectorise

template <class C>
SLUICE_KERNEL_BODY C folded(C* sums) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

/// The mean of a row, with sums in double.
template <class C>
SLUICE_KERNEL_BODY double mean_of(const C* x, std::int64_t n) {
  double total = 0;
  for (std::int64_t at = 0; at < n; at += kSumBlock) {
    double part;
    detail::BlockSum{}(x + at, std::min(kSumBlock, n - at), &part);
    total += part;
  }
  return total / static_cast<double>(n);
}

/// The mean of (x - mean)^2. A block's sum is kept in C: its terms have one sign.
template <class C>
SLUICE_KERNEL_BODY double mean_square(const C* x, std::int64_t n, C mean) {
  double total = 0;
  for (std::int64_t at = 0; at < n; at += kSumBlock) {
    const std::int64_t end = std::min(at + kSumBlock, n);
    C sums[kLanes] = {};
    std::int64_t i = at;
    for (; i + kLanes <= end; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const C off = x[i + l] - mean;
        sums[l] += off * off;
      }
    }
    for (int l = 0; i < end; ++i, ++l) sums[l] += (x[i] - mean) * (x[i] - mean);
    total += static_cast<double>(folded(sums));
  }
  return total / static_cast<double>(n);
}

/// Rows one after another: the mean, the mean square, and the results while the row is in the cache.
struct Normalize {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* weight, const C* bias, C* y, C* statistics, std::int64_t rows,
                                     std::int64_t n, double eps, bool centred) const {
    for (std::int64_t r = 0; r < rows; ++r, x += n, y += n) {
      const C mean = centred ? static_cast<C>(mean_of(x, n)) : C(0);
      const C scale = static_cast<C>(1 / std::sqrt(mean_square(x, n, mean) + eps));
      statistics[2 * r] = mean;
      statistics[2 * r + 1] = scale;
      if (bias) {
        for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
      } else if (weight) {
        for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * weight[i];
      } else {
        for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale;
      }
    }
  }
};

/// scale * (g w - mean(g w) - normal * mean(g w normal)), where normal = (x - mean) * scale; w is 1 where not weighted.
template <bool weighted>
struct RowGradient {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* statistics, const C* g, const C* weight, C* dx,
                                     std::int64_t rows, std::int64_t n, bool centred) const {
    for (std::int64_t r = 0; r < rows; ++r, x += n, g += n, dx += n) {
      const C mean = statistics[2 * r], scale = statistics[2 * r + 1];
      double total = 0, products = 0;
      for (std::int64_t at = 0; at < n; at += kSumBlock) {
        const std::int64_t end = std::min(at + kSumBlock, n);
        C totals[kLanes] = {}, of_products[kLanes] = {};
        std::int64_t i = at;
        for (; i + kLanes <= end; i += kLanes) {
          for (int l = 0; l < kLanes; ++l) {
            const C value = weighted ? g[i + l] * weight[i + l] : g[i + l];
            totals[l] += value;
            of_products[l] += value * ((x[i + l] - mean) * scale);
          }
        }
        for (int l = 0; i < end; ++i, ++l) {
          const C value = weighted ? g[i] * weight[i] : g[i];
          totals[l] += value;
          of_products[l] += value * ((x[i] - mean) * scale);
        }
        total += static_cast<double>(folded(totals));
        products += static_cast<double>(folded(of_products));
      }
      const C average = centred ? static_cast<C>(total / static_cast<double>(n)) : C(0);
      const C slope = static_cast<C>(products / static_cast<double>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const C value = weighted ? g[i] * weight[i] : g[i];
        dx[i] = scale * (value - average - (x[i] - mean) * scale * slope);
      }
    }
  }
};

/// sums[j] += g * normal and sums[n + j] += g, rows in order.
struct WeightGradient {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* statistics, const C* g, C* sums, std::int64_t rows,
                                     std::int64_t n) const {
    C* const plain = sums + n;
    for (std::int64_t r = 0; r < rows; ++r, x += n, g += n) {
      const C mean = statistics[2 * r], scale = statistics[2 * r + 1];
      for (std::int64_t j = 0; j < n; ++j) {
        sums[j] += g[j] * ((x[j] - mean) * scale);
        plain[j] += g[j];
      }
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
    C* statistics = c.output(1).as<C>();
    parallel_for(s.rows, grain_of(s), [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_y(n);
      const std::int64_t each = rows_at_once<T>(end - begin);
      for (std::int64_t r = begin; r < end; r += each) {
        T* const to = y + r * n;
        dispatch(Normalize{}, of_x.read(x + r * n, n), weight, bias, of_y.place(to), statistics + 2 * r, each, n, a.eps,
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
    const C* statistics = c.input(1).as<C>();
    T* dx = c.output().as<T>();
    parallel_for(s.rows, grain_of(s), [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_g(n), of_dx(n);
      const std::int64_t each = rows_at_once<T>(end - begin);
      for (std::int64_t r = begin; r < end; r += each) {
        T* const to = dx + r * n;
        const C *from = of_x.read(x + r * n, n), *back = of_g.read(g + r * n, n);
        if (weight) {
          dispatch(RowGradient<true>{}, from, statistics + 2 * r, back, weight, of_dx.place(to), each, n, a.centred);
        } else {
          dispatch(RowGradient<false>{}, from, statistics + 2 * r, back, weight, of_dx.place(to), each, n, a.centred);
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
    return std::max<std::size_t>(1, static_cast<std::size_t>(RowBlocks(s).count * 2 * s.size)) * sizeof(compute_of<T>);
  }
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const NormalizedRows s(c.input(0).shape, c.attributes<NormalizeAttributes>());
    const RowBlocks blocks(s);
    const std::int64_t n = s.size;
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    const C* statistics = c.input(1).as<C>();
    const Scratch kept = c.scratch(bytes(s));
    C* const parts = kept.as<C>();
    parallel_for(blocks.count, 1, [&](std::int64_t begin, std::int64_t end) {
      Wide<T> of_x(n), of_g(n);
      for (std::int64_t b = begin; b < end; ++b) {
        C* const sums = parts + b * 2 * n;
        std::fill(sums, sums + 2 * n, C(0));
        const std::int64_t last = std::min(s.rows, (b + 1) * blocks.rows);
        const std::int64_t each = rows_at_once<T>(last - b * blocks.rows);
        for (std::int64_t r = b * blocks.rows; r < last; r += each) {
          dispatch(WeightGradient{}, of_x.read(x + r * n, n), statistics + 2 * r, of_g.read(g + r * n, n), sums, each,
                   n);
        }
      }
    });
    dispatch(detail::RowSums{}, static_cast<const C*>(parts + 2 * n), blocks.count - 1, 2 * n, parts);
    for (int i = 0; i < 2; ++i) {
      const C* const sums = parts + i * n;
      T* const to = c.output(i).as<T>();
      for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(sums[j]);
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
}

}  // namespace sluice::cpu_backend
