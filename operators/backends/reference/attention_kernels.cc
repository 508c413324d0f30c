// Attention of the reference backend: each query by itself, with sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sluice/operators/attention_sizes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"

namespace sluice::reference {
namespace {

using namespace backends;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
double product(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += term(a[i]) * term(b[i]);
  return sum;
}

/// The score of query i of a head and key j: -infinity where the mask says so, whatever the key is.
template <class T>
double score(const AttentionSizes& s, const T* q, const T* k, const T* mask, std::int64_t head, std::int64_t i,
             std::int64_t j) {
  const double plain =
      s.scale * product(q + (head * s.n + i) * s.size, k + (s.group_of(head) * s.m + j) * s.size, s.size);
  if (!mask) return plain;
  const double added = term(mask[s.mask_at(head, i, j)]);
  return added == -kInfinity ? added : plain + added;
}

template <class T>
struct Attention {
  static void run(ArrayContext& c) {
    const TensorView* const mask_view = c.inputs() == 4 ? &c.input(3) : nullptr;
    const AttentionSizes s(c.input(0), c.input(1), c.input(2), mask_view, c.attributes<AttentionAttributes>());
    const T *q = c.input(0).as<T>(), *k = c.input(1).as<T>(), *v = c.input(2).as<T>();
    const T* mask = mask_view ? mask_view->as<T>() : nullptr;
    T* y = c.output(0).as<T>();
    auto* logarithms = c.output(1).as<compute_of<T>>();
    std::vector<double> scores(static_cast<std::size_t>(s.m)), sums(static_cast<std::size_t>(s.value_size));
    for (std::int64_t head = 0; head < s.batch * s.heads; ++head) {
      for (std::int64_t i = 0; i < s.n; ++i) {
        const std::int64_t keys = s.keys_of(i), row = head * s.n + i;
        double largest = -kInfinity, total = 0;
        bool sees = false;
        for (std::int64_t j = 0; j < keys; ++j) {
          scores[static_cast<std::size_t>(j)] = score(s, q, k, mask, head, i, j);
          largest = std::max(largest, scores[static_cast<std::size_t>(j)]);
          sees = sees || scores[static_cast<std::size_t>(j)] != -kInfinity;
        }
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::int64_t j = 0; j < keys && sees; ++j) {
          if (scores[static_cast<std::size_t>(j)] == -kInfinity) continue;  // 0 times an infinite value is no 0
          const double p = std::exp(scores[static_cast<std::size_t>(j)] - largest);
          total += p;
          for (std::int64_t t = 0; t < s.value_size; ++t) {
            sums[static_cast<std::size_t>(t)] += p * term(v[(s.group_of(head) * s.m + j) * s.value_size + t]);
          }
        }
        for (std::int64_t t = 0; t < s.value_size; ++t) {
          y[row * s.value_size + t] = element<T>(sees ? sums[static_cast<std::size_t>(t)] / total : 0.0);
        }
        logarithms[row] = static_cast<compute_of<T>>(sees ? largest + std::log(total) : -kInfinity);
      }
    }
  }
};

template <class T>
struct AttentionGrad {
  static void run(ArrayContext& c) {
    const TensorView* const mask_view = c.inputs() == 7 ? &c.input(6) : nullptr;
    const AttentionSizes s(c.input(0), c.input(1), c.input(2), mask_view, c.attributes<AttentionAttributes>());
    const T *q = c.input(0).as<T>(), *k = c.input(1).as<T>(), *v = c.input(2).as<T>(), *y = c.input(3).as<T>(),
            *g = c.input(5).as<T>();
    const auto* logarithms = c.input(4).as<compute_of<T>>();
    const T* mask = mask_view ? mask_view->as<T>() : nullptr;
    std::vector<double> sums[3];
    for (int i = 0; i < 3; ++i) sums[i].resize(static_cast<std::size_t>(c.output(i).count()));
    for (std::int64_t head = 0; head < s.batch * s.heads; ++head) {
      for (std::int64_t i = 0; i < s.n; ++i) {
        const std::int64_t row = head * s.n + i;
        const T* const of_y = g + row * s.value_size;
        const double delta = product(of_y, y + row * s.value_size, s.value_size);
        if (static_cast<double>(logarithms[row]) == -kInfinity) continue;
        // Nothing depends on a query whose result has no gradient.
        if (std::all_of(of_y, of_y + s.value_size, [](T part) { return term(part) == 0; })) continue;
        for (std::int64_t j = 0; j < s.keys_of(i); ++j) {
          const std::int64_t key = s.group_of(head) * s.m + j;
          const double of_key = score(s, q, k, mask, head, i, j);
          if (of_key == -kInfinity) continue;
          const double p = std::exp(of_key - static_cast<double>(logarithms[row]));
          const double ds = p * (product(of_y, v + key * s.value_size, s.value_size) - delta) * s.scale;
          for (std::int64_t t = 0; t < s.size; ++t) {
            sums[0][static_cast<std::size_t>(row * s.size + t)] += ds * term(k[key * s.size + t]);
            sums[1][static_cast<std::size_t>(key * s.size + t)] += ds * term(q[row * s.size + t]);
          }
          for (std::int64_t t = 0; t < s.value_size; ++t) {
            sums[2][static_cast<std::size_t>(key * s.value_size + t)] += p * term(of_y[t]);
          }
        }
      }
    }
    for (int i = 0; i < 3; ++i) {
      for (std::size_t at = 0; at < sums[i].size(); ++at) c.output(i).as<T>()[at] = element<T>(sums[i][at]);
    }
  }
};

}  // namespace

void add_attention_kernels(Registry& registry) {
  add<Attention>(registry.get("attention"), kReference, Floating{}, kDense);
  add<AttentionGrad>(registry.get("attention_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
