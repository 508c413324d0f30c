// Normalisation of rows of the reference backend: sums in double, in the order of the elements.
#include <cmath>

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

}  // namespace

void add_normalization_kernels(Registry& registry) {
  add<NormalizeRows>(registry.get("normalize_rows"), kReference, Floating{}, kDense);
  add<NormalizeRowsGrad>(registry.get("normalize_rows_grad"), kReference, Floating{}, kDense);
  add<NormalizeRowsWeightGrad>(registry.get("normalize_rows_weight_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
