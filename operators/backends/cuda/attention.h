// What the kernels of attention share.
#pragma once

#include <cmath>
#include <cstdint>

#include "sluice/operators/attention_sizes.h"
#include "sluice/operators/backends/cuda/elementwise.h"

namespace sluice::cuda {

template <class T>
__device__ compute_of<T> product(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(number(a[i])) * static_cast<double>(number(b[i]));
  return static_cast<compute_of<T>>(sum);
}

/// Queries, keys, values and the mask, which may be null.
template <class T>
struct Operands {
  using C = compute_of<T>;
  AttentionSizes s;
  const T *q, *k, *v, *mask;

  Operands(const ArrayContext& c, int mask_at)
      : s(c.input(0), c.input(1), c.input(2), c.inputs() > mask_at ? &c.input(mask_at) : nullptr,
          c.attributes<AttentionAttributes>()),
        q(c.input(0).template as<T>()),
        k(c.input(1).template as<T>()),
        v(c.input(2).template as<T>()),
        mask(c.inputs() > mask_at ? c.input(mask_at).template as<T>() : nullptr) {}

  template <class Visit>
  void each_pointer(Visit visit) {
    visit(q);
    visit(k);
    visit(v);
    visit(mask);
  }
  /// The score of query i of a head and key j: -infinity where the mask says so, whatever the key is.
  __device__ C score(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return masked(head, i, j,
                  product(q + (head * s.n + i) * s.size, k + (s.group_of(head) * s.m + j) * s.size, s.size));
  }
  /// The same from the product of the query and the key.
  __device__ C masked(std::int64_t head, std::int64_t i, std::int64_t j, C dot) const {
    const C plain = static_cast<C>(s.scale) * dot;
    if (!mask) return plain;
    const C added = number(mask[s.mask_at(head, i, j)]);
    return added == -C(INFINITY) ? added : plain + added;
  }
};

/// Attention of 16-bit elements, and its gradients, on tensor cores: for heads of up to kWidestHalves elements.
inline constexpr std::int64_t kWidestHalves = 128;
template <class T>
void attend_halves(ArrayContext& c);
template <class T>
void attend_halves_grad(ArrayContext& c);

}  // namespace sluice::cuda
