// Normalisation of rows and of channels of the reference backend: sums in double, in the order of the elements.
#include <cmath>
#include <vector>

#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/normalize_rows.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class C>
double mean_of(const RowStatistics<C>& s) {
  return static_cast<double>(s.mean) + static_cast<double>(s.rest);
}

template <class T>
struct NormalizeRows {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<NormalizeAttributes>();
    const NormalizedRows s(c.input(0).shape, a);
    const T* weight = c.inputs() > 1 ? c.input(1).as<T>() : nullptr;
    const T* bias = c.inputs() > 2 ? c.input(2).as<T>() : nullptr;
    auto* statistics = c.output(1).as<RowStatistics<compute_of<T>>>();
    const double n = static_cast<double>(s.size);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const T* x = c.input(0).as<T>() + row * s.size;
      T* y = c.output(0).as<T>() + row * s.size;
      double total = 0, squares = 0;
      for (std::int64_t i = 0; a.centred && i < s.size; ++i) total += term(x[i]);
      const double mean = a.centred ? total / n : 0;
      for (std::int64_t i = 0; i < s.size; ++i) squares += (term(x[i]) - mean) * (term(x[i]) - mean);
      const double scale = 1 / std::sqrt(squares / n + a.eps);
      using C = compute_of<T>;
      const auto rounded = static_cast<C>(mean);
      statistics[row] = {rounded, static_cast<C>(mean - static_cast<double>(rounded)), static_cast<C>(scale),
                         static_cast<C>(squares / n)};
      for (std::int64_t i = 0; i < s.size; ++i) {
        double value = (term(x[i]) - mean) * scale;
        if (weight) value *= term(weight[i]);
        if (bias) value += term(bias[i]);
        y[i] = element<T>(value);
      }
    }
  }
};

template <class T>
struct NormalizeRowsGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<NormalizeAttributes>();
    const NormalizedRows s(c.input(0).shape, a);
    const auto* statistics = c.input(1).as<RowStatistics<compute_of<T>>>();
    const T* weight = c.inputs() > 3 ? c.input(3).as<T>() : nullptr;
    const double n = static_cast<double>(s.size);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const T *x = c.input(0).as<T>() + row * s.size, *g = c.input(2).as<T>() + row * s.size;
      T* dx = c.output().as<T>() + row * s.size;
      const double mean = mean_of(statistics[row]), scale = statistics[row].scale;
      const auto normal = [&](std::int64_t i) { return (term(x[i]) - mean) * scale; };
      const auto weighted = [&](std::int64_t i) { return weight ? term(g[i]) * term(weight[i]) : term(g[i]); };
      double total = 0, products = 0;
      for (std::int64_t i = 0; i < s.size; ++i) {
        if (a.centred) total += weighted(i);
        products += weighted(i) * normal(i);
      }
      for (std::int64_t i = 0; i < s.size; ++i) {
        dx[i] = element<T>(scale * (weighted(i) - total / n - normal(i) * (products / n)));
      }
    }
  }
};

template <class T>
struct NormalizeRowsWeightGrad {
  static void run(ArrayContext& c) {
    const NormalizedRows s(c.input(0).shape, c.attributes<NormalizeAttributes>());
    const auto* statistics = c.input(1).as<RowStatistics<compute_of<T>>>();
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    for (std::int64_t i = 0; i < s.size; ++i) {
      double of_weight = 0, of_bias = 0;
      for (std::int64_t row = 0; row < s.rows; ++row) {
        const std::int64_t at = row * s.size + i;
        const double mean = mean_of(statistics[row]), scale = statistics[row].scale;
        of_weight += term(g[at]) * ((term(x[at]) - mean) * scale);
        of_bias += term(g[at]);
      }
      c.output(0).as<T>()[i] = element<T>(of_weight);
      c.output(1).as<T>()[i] = element<T>(of_bias);
    }
  }
};

/// f(channel, its elements' places) for each channel.
template <class F>
void each_channel(const ChannelPlanes& s, const F& f) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(s.of_each()));
  for (std::int64_t channel = 0; channel < s.channels; ++channel) {
    for (std::int64_t i = 0; i < s.of_each(); ++i) {
      places[static_cast<std::size_t>(i)] = i / s.plane * s.step() + channel * s.plane + i % s.plane;
    }
    f(channel, places);
  }
}

template <class T>
struct BatchNorm {
  static void run(ArrayContext& c) {
    const ChannelPlanes s(c.input(0).shape);
    const T *x = c.input(0).as<T>(), *weight = c.inputs() > 1 ? c.input(1).as<T>() : nullptr,
            *bias = c.inputs() > 2 ? c.input(2).as<T>() : nullptr;
    T* y = c.output(0).as<T>();
    auto* statistics = c.output(1).as<RowStatistics<T>>();
    each_channel(s, [&](std::int64_t channel, const std::vector<std::int64_t>& places) {
      statistics[channel] = {};
      if (places.empty()) return;
      const double n = static_cast<double>(places.size());
      double total = 0, squares = 0;
      for (const std::int64_t at : places) total += term(x[at]);
      const double mean = total / n;
      for (const std::int64_t at : places) squares += (term(x[at]) - mean) * (term(x[at]) - mean);
      const double scale = 1 / std::sqrt(squares / n + c.attributes<BatchNormAttributes>().eps);
      const auto rounded = static_cast<T>(mean);
      statistics[channel] = {rounded, static_cast<T>(mean - static_cast<double>(rounded)), static_cast<T>(scale),
                             static_cast<T>(squares / n)};
      for (const std::int64_t at : places) {
        double value = (term(x[at]) - mean) * scale;
        if (weight) value *= term(weight[channel]);
        if (bias) value += term(bias[channel]);
        y[at] = element<T>(value);
      }
    });
  }
};

template <class T>
struct BatchNormGrad {
  static void run(ArrayContext& c) {
    const ChannelPlanes s(c.input(0).shape);
    const auto* statistics = c.input(1).as<RowStatistics<T>>();
    const T *x = c.input(0).as<T>(), *g = c.input(2).as<T>();
    const T* weight = c.inputs() > 3 ? c.input(3).as<T>() : nullptr;
    each_channel(s, [&](std::int64_t channel, const std::vector<std::int64_t>& places) {
      const double mean = mean_of(statistics[channel]), scale = statistics[channel].scale;
      const double n = static_cast<double>(places.size()), w = weight ? term(weight[channel]) : 1;
      const auto normal = [&](std::int64_t at) { return (term(x[at]) - mean) * scale; };
      double total = 0, products = 0;
      for (const std::int64_t at : places) {
        total += term(g[at]);
        products += term(g[at]) * normal(at);
      }
      for (const std::int64_t at : places) {
        c.output(0).as<T>()[at] = element<T>(scale * w * (term(g[at]) - total / n - normal(at) * (products / n)));
      }
      c.output(1).as<T>()[channel] = element<T>(products);
      c.output(2).as<T>()[channel] = element<T>(total);
    });
  }
};

}  // namespace

void add_normalization_kernels(Registry& registry) {
  add<NormalizeRows>(registry.get("normalize_rows"), kReference, Floating{}, kDense);
  add<NormalizeRowsGrad>(registry.get("normalize_rows_grad"), kReference, Floating{}, kDense);
  add<NormalizeRowsWeightGrad>(registry.get("normalize_rows_weight_grad"), kReference, Floating{}, kDense);
  add<BatchNorm>(registry.get("batch_norm"), kReference, Types<float, double>{}, kDense);
  add<BatchNormGrad>(registry.get("batch_norm_grad"), kReference, Types<float, double>{}, kDense);
}

}  // namespace sluice::reference
