// Attention: a thread for each query and, of the gradients of keys and values, for each key. Its sums are in scratch
// memory of the size of the result, in double.
#include "sluice/operators/attention_sizes.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

template <class T>
__device__ compute_of<T> product(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(number(a[i])) * static_cast<double>(number(b[i]));
  return static_cast<compute_of<T>>(sum);
}

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
    const C plain = static_cast<C>(s.scale) *
                    product(q + (head * s.n + i) * s.size, k + (s.group_of(head) * s.m + j) * s.size, s.size);
    if (!mask) return plain;
    const C added = number(mask[s.mask_at(head, i, j)]);
    return added == -C(INFINITY) ? added : plain + added;
  }
};

template <class T>
struct QueryResult {
  using C = compute_of<T>;
  Operands<T> o;
  T* y;
  C* logarithms;
  double* sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(y);
    visit(logarithms);
    visit(sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = o.s;
    const std::int64_t head = row / s.n, i = row % s.n, width = s.value_size, keys = s.keys_of(i);
    double* const sum = sums + row * width;
    for (std::int64_t t = 0; t < width; ++t) sum[t] = 0;
    C largest = -C(INFINITY);
    double total = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const C score = o.score(head, i, j);
      if (score == -C(INFINITY)) continue;
      if (score > largest) {
        const double shrink = static_cast<double>(std::exp(largest - score));
        total *= shrink;
        for (std::int64_t t = 0; t < width; ++t) sum[t] *= shrink;
        largest = score;
      }
      const auto p = static_cast<double>(std::exp(score - largest));
      total += p;
      const T* const value = o.v + (s.group_of(head) * s.m + j) * width;
      for (std::int64_t t = 0; t < width; ++t) sum[t] += p * static_cast<double>(number(value[t]));
    }
    const bool sees = total != 0;
    for (std::int64_t t = 0; t < width; ++t) y[row * width + t] = T(sees ? static_cast<C>(sum[t] / total) : C(0));
    logarithms[row] = sees ? largest + static_cast<C>(std::log(total)) : -C(INFINITY);
  }
};

/// What the gradients of queries and of keys use.
template <class T>
struct Gradients {
  using C = compute_of<T>;
  Operands<T> o;
  const T* g;
  const C* logarithms;
  C* deltas;             ///< the products of each query's result and its gradient
  std::uint8_t* unused;  ///< whether that gradient is 0: then nothing depends on the query
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(g);
    visit(logarithms);
    visit(deltas);
    visit(unused);
  }
  /// Whether query i of a head sees key j; then the weight p of the key, and the gradient ds of their score.
  __device__ bool at(std::int64_t head, std::int64_t i, std::int64_t j, C* p, C* ds) const {
    const AttentionSizes& s = o.s;
    const std::int64_t row = head * s.n + i, width = s.value_size;
    const bool sees = logarithms[row] != -C(INFINITY) && unused[row] == 0;
    const C score = sees ? o.score(head, i, j) : -C(INFINITY);
    if (score == -C(INFINITY)) return false;
    *p = std::exp(score - logarithms[row]);
    const C dp = product(g + row * width, o.v + (s.group_of(head) * s.m + j) * width, width);
    *ds = *p * (dp - deltas[row]) * static_cast<C>(s.scale);
    return true;
  }
};

template <class T>
struct QueryGradient {
  using C = compute_of<T>;
  Gradients<T> gradients;
  const T* y;
  T* dq;
  double* sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    gradients.each_pointer(visit);
    visit(y);
    visit(dq);
    visit(sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = gradients.o.s;
    const std::int64_t head = row / s.n, i = row % s.n, keys = s.keys_of(i);
    const T* const g = gradients.g + row * s.value_size;
    gradients.deltas[row] = product(g, y + row * s.value_size, s.value_size);
    std::uint8_t unused = 1;
    for (std::int64_t t = 0; t < s.value_size; ++t) {
      if (number(g[t]) != C(0)) unused = 0;
    }
    gradients.unused[row] = unused;
    double* const sum = sums + row * s.size;
    for (std::int64_t t = 0; t < s.size; ++t) sum[t] = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      C p, ds;
      if (!gradients.at(head, i, j, &p, &ds)) continue;
      const T* const key = gradients.o.k + (s.group_of(head) * s.m + j) * s.size;
      for (std::int64_t t = 0; t < s.size; ++t) sum[t] += static_cast<double>(ds * number(key[t]));
    }
    for (std::int64_t t = 0; t < s.size; ++t) dq[row * s.size + t] = T(static_cast<C>(sum[t]));
  }
};

template <class T>
struct KeyGradient {
  using C = compute_of<T>;
  Gradients<T> gradients;
  T *dk, *dv;
  double *key_sums, *value_sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    gradients.each_pointer(visit);
    visit(dk);
    visit(dv);
    visit(key_sums);
    visit(value_sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = gradients.o.s;
    const std::int64_t group = row / s.m, j = row % s.m, width = s.value_size, of_group = s.heads / s.groups;
    double *const of_k = key_sums + row * s.size, *const of_v = value_sums + row * width;
    for (std::int64_t t = 0; t < s.size; ++t) of_k[t] = 0;
    for (std::int64_t t = 0; t < width; ++t) of_v[t] = 0;
    for (std::int64_t h = 0; h < of_group; ++h) {
      const std::int64_t head = group / s.groups * s.heads + group % s.groups * of_group + h;
      for (std::int64_t i = s.first_query_of(j); i < s.n; ++i) {
        C p, ds;
        if (!gradients.at(head, i, j, &p, &ds)) continue;
        const std::int64_t query = head * s.n + i;
        for (std::int64_t t = 0; t < s.size; ++t)
          of_k[t] += static_cast<double>(ds * number(gradients.o.q[query * s.size + t]));
        for (std::int64_t t = 0; t < width; ++t)
          of_v[t] += static_cast<double>(p * number(gradients.g[query * width + t]));
      }
    }
    for (std::int64_t t = 0; t < s.size; ++t) dk[row * s.size + t] = T(static_cast<C>(of_k[t]));
    for (std::int64_t t = 0; t < width; ++t) dv[row * width + t] = T(static_cast<C>(of_v[t]));
  }
};

template <class C>
C* numbers(const Issue& issue, std::int64_t count) {
  return issue.scratch<C>(std::max<std::int64_t>(1, count));
}

template <class T>
struct Attention {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const Issue issue(c);
    const Operands<T> operands(c, 3);
    for_index(issue, operands.s.query_rows(),
              QueryResult<T>{operands, c.output(0).template as<T>(), c.output(1).template as<C>(),
                             numbers<double>(issue, c.output(0).count())});
  }
};
template <class T>
struct AttentionGrad {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const Issue issue(c);
    const Operands<T> operands(c, 6);
    const AttentionSizes& s = operands.s;
    const Gradients<T> gradients{operands, c.input(5).template as<T>(), c.input(4).template as<C>(),
                                 numbers<C>(issue, s.query_rows()), numbers<std::uint8_t>(issue, s.query_rows())};
    for_index(issue, s.query_rows(),
              QueryGradient<T>{gradients, c.input(3).template as<T>(), c.output(0).template as<T>(),
                               numbers<double>(issue, c.output(0).count())});
    for_index(issue, s.key_rows(),
              KeyGradient<T>{gradients, c.output(1).template as<T>(), c.output(2).template as<T>(),
                             numbers<double>(issue, c.output(1).count()), numbers<double>(issue, c.output(2).count())});
  }
};

}  // namespace

void add_attention_kernels(const Rows& rows) {
  rows.add<Attention>("attention", backends::Floating{}, kDense);
  rows.add<AttentionGrad>("attention_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
