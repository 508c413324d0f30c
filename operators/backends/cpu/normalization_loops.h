// Loops of normalisations of the CPU backend. Sums go in blocks of elements that are added in double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/normalize_rows.h"
#include "sluice/operators/registry.h"

namespace sluice::cpu_backend {

/// Kernels of batch_norm and of its gradient, for add_normalization_kernels().
void add_batch_norm_kernels(Registry& registry);

namespace detail {

inline constexpr int kLanes = 64;  // running sums, so that the additions overlap and vectorise
/// Elements whose sum is kept in f32: eight for each running sum, so that roundings stay small.
inline constexpr std::int64_t kBlock = 8 * kLanes;

template <class C>
SLUICE_KERNEL_BODY C folded(C* sums) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

/// A number of double as one of C, and what it lost.
template <class C>
SLUICE_KERNEL_BODY void split(double number, C* rounded, C* rest) {
  *rounded = static_cast<C>(number);
  *rest = static_cast<C>(number - static_cast<double>(*rounded));
}

/// The sum of (x - mean)^2.
template <class C>
SLUICE_KERNEL_BODY double square_total(const C* x, std::int64_t n, RowStatistics<C> s) {
  double total = 0;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t end = std::min(at + kBlock, n);
    C sums[kLanes] = {};
    std::int64_t i = at;
    for (; i + kLanes <= end; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const C off = s.off(x[i + l]);
        sums[l] += off * off;
      }
    }
    for (int l = 0; i < end; ++i, ++l) sums[l] += s.off(x[i]) * s.off(x[i]);
    total += static_cast<double>(folded(sums));
  }
  if (std::is_same_v<C, float> && !(total > 1e-28 && total < 1e34)) {  // squares may have been out of range
    total = 0;
    bool flat = true;
    for (std::int64_t i = 0; i < n; ++i) flat = flat & (s.off(x[i]) == 0);
    for (std::int64_t i = 0; i < n && !flat; ++i) {
      const double off = static_cast<double>(s.off(x[i]));
      total += off * off;
    }
  }
  return total;
}

/// Adds the sum of g w, and that of g w times the normalised x; w is 1 where not weighted.
template <bool weighted, class C>
SLUICE_KERNEL_BODY void add_products(const C* x, RowStatistics<C> s, const C* g, const C* weight, std::int64_t n,
                                     double* total, double* products) {
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t end = std::min(at + kBlock, n);
    C totals[kLanes] = {}, of_products[kLanes] = {};
    std::int64_t i = at;
    for (; i + kLanes <= end; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const C value = weighted ? g[i + l] * weight[i + l] : g[i + l];
        totals[l] += value;
        of_products[l] += value * s.normal(x[i + l]);
      }
    }
    for (int l = 0; i < end; ++i, ++l) {
      const C value = weighted ? g[i] * weight[i] : g[i];
      totals[l] += value;
      of_products[l] += value * s.normal(x[i]);
    }
    *total += static_cast<double>(folded(totals));
    *products += static_cast<double>(folded(of_products));
  }
}

}  // namespace detail
}  // namespace sluice::cpu_backend
