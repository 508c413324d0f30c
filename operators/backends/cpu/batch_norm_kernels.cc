// Batch normalisation of the CPU backend, channel by channel: one pass over x for the statistics (two where planes are
// small) and one for the result; one over x and the gradient for their sums and one for the gradient of x. What a
// channel gets depends on its own elements and their number alone.
#include <algorithm>
#include <cmath>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/normalization_loops.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;
using namespace detail;  // NOLINT: normalization_loops.h

/// Smaller planes are taken as columns of several channels, which lie beside each other for each n.
constexpr std::int64_t kColumns = 64;
constexpr std::int64_t kFewestColumns = 16;  // where there are few in all, so that several threads have some
constexpr std::int64_t kMostColumns = 2 * kColumns;

std::int64_t channels_at_once(const ChannelPlanes& s) {
  if (s.plane >= kColumns) return 1;
  const std::int64_t columns = std::clamp(s.step() / 4, kFewestColumns, kColumns);
  return (columns + s.plane - 1) / std::max<std::int64_t>(1, s.plane);
}

template <class C>
SLUICE_KERNEL_BODY void set_deviation(double variance, double eps, RowStatistics<C>* s) {
  s->variance = static_cast<C>(variance);
  s->scale = static_cast<C>(1 / std::sqrt(variance + eps));
}

/// One channel, whose planes are `step` elements apart. Each plane's squares are summed about its own mean, while it is
/// in the cache, and joined in double (Chan, Golub and LeVeque, 1979).
struct PlanesForward {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* weight, const C* bias, C* y, RowStatistics<C>* statistics,
                                     std::int64_t n, std::int64_t step, std::int64_t plane, double eps) const {
    const double size = static_cast<double>(plane);
    double mean = 0, squares = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double here = row_total<double>(x + i * step, plane) / size;
      RowStatistics<C> about{};
      split(here, &about.mean, &about.rest);
      const double off = here - mean, before = static_cast<double>(i);
      squares += square_total(x + i * step, plane, about) + off * (size * before / (before + 1)) * off;
      mean += off / (before + 1);
    }
    RowStatistics<C> s{};
    split(mean, &s.mean, &s.rest);
    set_deviation(squares / (size * static_cast<double>(n)), eps, &s);
    *statistics = s;
    const C times = weight ? *weight : C(1), plus = bias ? *bias : C(0);
    for (std::int64_t i = 0; i < n; ++i) {
      const C* const from = x + i * step;
      C* const to = y + i * step;
      for (std::int64_t k = 0; k < plane; ++k) to[k] = s.normal(from[k]) * times + plus;
    }
  }
};

struct PlanesBackward {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const RowStatistics<C>* statistics, const C* g, const C* weight, C* dx,
                                     C* of_weight, C* of_bias, std::int64_t n, std::int64_t step,
                                     std::int64_t plane) const {
    const RowStatistics<C> s = *statistics;
    const double size = static_cast<double>(n * plane);
    double total = 0, products = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      add_products<false>(x + i * step, s, g + i * step, static_cast<const C*>(nullptr), plane, &total, &products);
    }
    *of_weight = static_cast<C>(products);
    *of_bias = static_cast<C>(total);
    C average, rest;
    split(total / size, &average, &rest);
    const C slope = static_cast<C>(products / size), times = weight ? s.scale * *weight : s.scale;
    for (std::int64_t i = 0; i < n; ++i) {
      const C *from = x + i * step, *back = g + i * step;
      C* const to = dx + i * step;
      for (std::int64_t k = 0; k < plane; ++k) to[k] = times * ((back[k] - average) - rest - s.normal(from[k]) * slope);
    }
  }
};

/// What each column is normalised by: numbers of its channel.
template <class C>
struct Columns {
  C mean[kMostColumns], rest[kMostColumns], scale[kMostColumns];

  SLUICE_KERNEL_BODY void read(const RowStatistics<C>* statistics, std::int64_t width, std::int64_t plane) {
    for (std::int64_t j = 0; j < width; ++j) {
      const RowStatistics<C>& s = statistics[j / plane];
      mean[j] = s.mean;
      rest[j] = s.rest;
      scale[j] = s.scale;
    }
  }
  SLUICE_KERNEL_BODY C off(C x, std::int64_t j) const { return (x - mean[j]) - rest[j]; }
  /// Of the columns of one channel.
  SLUICE_KERNEL_BODY static double total(const double* sums, std::int64_t plane) {
    double all = 0;
    for (std::int64_t k = 0; k < plane; ++k) all += sums[k];
    return all;
  }
};

/// Channels beside each other, `width` elements in all.
struct ColumnsForward {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const C* weight, const C* bias, C* y, RowStatistics<C>* statistics,
                                     std::int64_t n, std::int64_t step, std::int64_t plane, std::int64_t width,
                                     double eps) const {
    const std::int64_t channels = width / plane;
    const double size = static_cast<double>(n * plane);
    double sums[kMostColumns] = {}, squares[kMostColumns] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) sums[j] += static_cast<double>(x[i * step + j]);
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      statistics[c] = {};
      split(Columns<C>::total(sums + c * plane, plane) / size, &statistics[c].mean, &statistics[c].rest);
    }
    Columns<C> of;
    of.read(statistics, width, plane);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const double off = static_cast<double>(of.off(x[i * step + j], j));
        squares[j] += off * off;
      }
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      set_deviation(Columns<C>::total(squares + c * plane, plane) / size, eps, statistics + c);
    }
    C times[kMostColumns], plus[kMostColumns];
    of.read(statistics, width, plane);
    for (std::int64_t j = 0; j < width; ++j) {
      times[j] = weight ? weight[j / plane] : C(1);
      plus[j] = bias ? bias[j / plane] : C(0);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        y[i * step + j] = of.off(x[i * step + j], j) * of.scale[j] * times[j] + plus[j];
      }
    }
  }
};

struct ColumnsBackward {
  template <class C>
  SLUICE_KERNEL_BODY void operator()(const C* x, const RowStatistics<C>* statistics, const C* g, const C* weight, C* dx,
                                     C* of_weight, C* of_bias, std::int64_t n, std::int64_t step, std::int64_t plane,
                                     std::int64_t width) const {
    const double size = static_cast<double>(n * plane);
    Columns<C> of;
    of.read(statistics, width, plane);
    double totals[kMostColumns] = {}, products[kMostColumns] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const C value = g[i * step + j];
        totals[j] += static_cast<double>(value);
        products[j] += static_cast<double>(value * (of.off(x[i * step + j], j) * of.scale[j]));
      }
    }
    C average[kMostColumns], rest[kMostColumns], slope[kMostColumns], times[kMostColumns];
    for (std::int64_t c = 0; c < width / plane; ++c) {
      const double total = Columns<C>::total(totals + c * plane, plane),
                   product = Columns<C>::total(products + c * plane, plane);
      of_weight[c] = static_cast<C>(product);
      of_bias[c] = static_cast<C>(total);
      for (std::int64_t j = c * plane; j < (c + 1) * plane; ++j) {
        split(total / size, &average[j], &rest[j]);
        slope[j] = static_cast<C>(product / size);
        times[j] = weight ? of.scale[j] * weight[c] : of.scale[j];
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const C normal = of.off(x[i * step + j], j) * of.scale[j];
        dx[i * step + j] = times[j] * ((g[i * step + j] - average[j]) - rest[j] - normal * slope[j]);
      }
    }
  }
};

/// f(first channel, their number) for all channels, which lanes share.
template <class F>
void each_block_of_channels(const ChannelPlanes& s, const F& f) {
  const std::int64_t together = channels_at_once(s), blocks = (s.channels + together - 1) / together;
  const std::int64_t elements = std::max<std::int64_t>(1, s.of_each() * together);
  parallel_for(blocks, std::max<std::int64_t>(1, kElementwiseGrain / 4 / elements),
               [&](std::int64_t b, std::int64_t e) {
                 for (; b < e; ++b) f(b * together, std::min(together, s.channels - b * together));
               });
}

template <class T>
struct BatchNorm {
  static void run(ArrayContext& c) {
    const ChannelPlanes s(c.input(0).shape);
    const double eps = c.attributes<BatchNormAttributes>().eps;
    const T* x = c.input(0).as<T>();
    const T* weight = c.inputs() > 1 ? c.input(1).as<T>() : nullptr;
    const T* bias = c.inputs() > 2 ? c.input(2).as<T>() : nullptr;
    T* y = c.output(0).as<T>();
    auto* statistics = c.output(1).as<RowStatistics<T>>();
    if (s.of_each() == 0) return void(std::fill_n(statistics, s.channels, RowStatistics<T>{}));
    each_block_of_channels(s, [&](std::int64_t at, std::int64_t count) {
      const std::int64_t first = at * s.plane;
      const T *w = weight ? weight + at : nullptr, *b = bias ? bias + at : nullptr;
      if (s.plane >= kColumns) {
        dispatch(PlanesForward{}, x + first, w, b, y + first, statistics + at, s.n, s.step(), s.plane, eps);
      } else {
        dispatch(ColumnsForward{}, x + first, w, b, y + first, statistics + at, s.n, s.step(), s.plane, count * s.plane,
                 eps);
      }
    });
  }
};

template <class T>
struct BatchNormGrad {
  static void run(ArrayContext& c) {
    const ChannelPlanes s(c.input(0).shape);
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    const auto* statistics = c.input(1).as<RowStatistics<T>>();
    const T* weight = c.inputs() > 3 ? c.input(3).as<T>() : nullptr;
    T *dx = c.output(0).as<T>(), *of_weight = c.output(1).as<T>(), *of_bias = c.output(2).as<T>();
    if (s.of_each() == 0) {
      std::fill_n(of_weight, s.channels, T(0));
      std::fill_n(of_bias, s.channels, T(0));
      return;
    }
    each_block_of_channels(s, [&](std::int64_t at, std::int64_t count) {
      const std::int64_t first = at * s.plane;
      const T* w = weight ? weight + at : nullptr;
      if (s.plane >= kColumns) {
        dispatch(PlanesBackward{}, x + first, statistics + at, g + first, w, dx + first, of_weight + at, of_bias + at,
                 s.n, s.step(), s.plane);
      } else {
        dispatch(ColumnsBackward{}, x + first, statistics + at, g + first, w, dx + first, of_weight + at, of_bias + at,
                 s.n, s.step(), s.plane, count * s.plane);
      }
    });
  }
};

}  // namespace

void add_batch_norm_kernels(Registry& registry) {
  add<BatchNorm>(registry.get("batch_norm"), kCpu, Types<float, double>{}, kDense);
  add<BatchNormGrad>(registry.get("batch_norm_grad"), kCpu, Types<float, double>{}, kDense);
}

}  // namespace sluice::cpu_backend
