// Attention of the CPU backend: blocks of queries against blocks of keys, whose scores are matrix products. A block's
// sums go from the first block of keys to the last, so that bits do not depend on the number of threads. Products of
// blocks are added in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/attention_sizes.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_math.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/kernels.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

constexpr std::int64_t kQueries = 32, kKeys = 64;  // of a block

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// Which keys of a block each query sees, a bit for each.
struct Seen {
  std::uint64_t of[kQueries];
  bool all = true;  ///< each sees every one
  bool operator()(std::int64_t query, std::int64_t key) const { return (of[query] >> key & 1U) != 0; }
};
static_assert(kKeys == 64);

// Loops over rows of kKeys scores, all of them: those behind the last key are -infinity, and their exponentials 0. So
// trip counts are known.

/// Goes on with the softmax of each row: scores become exponentials, and what was summed up before shrinks where a row
/// has a larger score than those before. `sums` are the rows of the result so far, `width` elements each.
struct SoftmaxOfBlock {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* scores, std::int64_t rows, T* largest, double* total, double* sums,
                                     std::int64_t width) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      T* __restrict const row = scores + r * kKeys;
      const T most = detail::row_largest(static_cast<const T*>(row), kKeys, largest[r]);
      if (most == -kInfinity<T>) {  // it has seen no key yet; a score that is no number stays one
        for (std::int64_t c = 0; c < kKeys; ++c) row[c] = row[c] == -kInfinity<T> ? T(0) : row[c];
      } else {
        if (most != largest[r]) {
          const auto shrink = static_cast<double>(fast_exp(largest[r] - most));
          total[r] *= shrink;
          for (std::int64_t t = 0; t < width; ++t) sums[r * width + t] *= shrink;
          largest[r] = most;
        }
        for (std::int64_t c = 0; c < kKeys; ++c) row[c] = fast_exp(row[c] - most);
      }
      total[r] += detail::row_total<double>(static_cast<const T*>(row), kKeys);
    }
  }
};

/// p = exp(p - logarithm), and ds, which is the gradient of p, becomes that of the scores.
struct GradientOfRow {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(T* __restrict p, T* __restrict ds, T logarithm, T delta, T scale) const {
    for (std::int64_t c = 0; c < kKeys; ++c) p[c] = fast_exp(p[c] - logarithm);
    for (std::int64_t c = 0; c < kKeys; ++c) ds[c] = p[c] * (ds[c] - delta) * scale;
  }
};

/// Sums in double of products of blocks.
template <class T>
class Totals {
 public:
  explicit Totals(std::int64_t most)
      : product_(static_cast<std::size_t>(most)), totals_(static_cast<std::size_t>(most)) {}
  void clear() { std::fill(totals_.begin(), totals_.end(), 0.0); }
  double* row(std::int64_t first) { return totals_.data() + first; }
  /// Adds op(A) B, as gemm_here() has it, A with rows of kKeys. A is 0 where sees(row, inner place) is false, and a row
  /// of B that is not finite counts only for rows that see it.
  template <class Sees>
  void add(bool trans_a, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, bool all_seen,
           Sees sees) {
    if (!all_seen && !is_finite(b, k * n)) b = add_what_is_not_finite(trans_a, m, n, k, a, b, sees);
    gemm_here(trans_a, false, m, n, k, T(1), a, kKeys, b, n, T(0), product_.data(), n);
    dispatch(AddTo{}, static_cast<const T*>(product_.data()), totals_.data(), m * n);
  }
  void write(T* out, std::int64_t n) const { std::copy(totals_.begin(), totals_.begin() + n, out); }

 private:
  struct AddTo {
    SLUICE_KERNEL_BODY void operator()(const T* x, double* __restrict totals, std::int64_t n) const {
      for (std::int64_t i = 0; i < n; ++i) totals[i] += static_cast<double>(x[i]);
    }
  };
  static bool is_finite(const T* b, std::int64_t n) {
    int outside = 0;
    for (std::int64_t i = 0; i < n; ++i) outside |= static_cast<int>(b[i] - b[i] != T(0));
    return outside == 0;
  }
  /// Returns B with zeros in the place of the rows that it has added.
  template <class Sees>
  const T* add_what_is_not_finite(bool trans_a, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b,
                                  Sees sees) {
    finite_.assign(b, b + k * n);
    for (std::int64_t i = 0; i < k; ++i) {
      if (is_finite(b + i * n, n)) continue;
      std::fill_n(finite_.begin() + i * n, n, T(0));
      for (std::int64_t r = 0; r < m; ++r) {
        if (!sees(r, i)) continue;
        const T factor = trans_a ? a[i * kKeys + r] : a[r * kKeys + i];
        for (std::int64_t t = 0; t < n; ++t) row(r * n)[t] += static_cast<double>(factor * b[i * n + t]);
      }
    }
    return finite_.data();
  }
  std::vector<T> product_, finite_;
  std::vector<double> totals_;
};

/// The operands of a call, and the scores of a block.
template <class T>
struct Blocks {
  AttentionSizes s;
  const T *q, *k, *v, *mask;

  Blocks(ArrayContext& c, int mask_at)
      : s(c.input(0), c.input(1), c.input(2), c.inputs() > mask_at ? &c.input(mask_at) : nullptr,
          c.attributes<AttentionAttributes>()),
        q(c.input(0).as<T>()),
        k(c.input(1).as<T>()),
        v(c.input(2).as<T>()),
        mask(c.inputs() > mask_at ? c.input(mask_at).as<T>() : nullptr) {}

  std::int64_t blocks_of_queries() const { return (s.n + kQueries - 1) / kQueries; }
  std::int64_t blocks_of_keys() const { return (s.m + kKeys - 1) / kKeys; }
  const T* keys(std::int64_t head, std::int64_t j) const { return k + (s.group_of(head) * s.m + j) * s.size; }
  const T* values(std::int64_t head, std::int64_t j) const { return v + (s.group_of(head) * s.m + j) * s.value_size; }

  /// scores[r, c] (rows of kKeys) of queries i + r and keys j + c; -infinity where a query does not see a key, whatever
  /// that is, and behind the last key.
  Seen scores(std::int64_t head, std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t columns,
              T* out) const {
    gemm_here(false, true, rows, columns, s.size, static_cast<T>(s.scale), q + (head * s.n + i) * s.size, s.size,
              keys(head, j), s.size, T(0), out, kKeys);
    const std::uint64_t every = ~std::uint64_t{0} >> (64 - columns);
    Seen seen;
    for (std::int64_t r = 0; r < rows; ++r) {
      T* const row = out + r * kKeys;
      const std::int64_t below = std::clamp<std::int64_t>(s.keys_of(i + r) - j, 0, columns);
      seen.of[r] = below == 0 ? 0 : ~std::uint64_t{0} >> (64 - below);
      for (std::int64_t c = 0; c < below && mask; ++c) {
        const T added = mask[s.mask_at(head, i + r, j + c)];
        row[c] = added == -kInfinity<T> ? added : row[c] + added;
        seen.of[r] &= ~(std::uint64_t{row[c] == -kInfinity<T>} << c);
      }
      std::fill(row + below, row + kKeys, -kInfinity<T>);
      seen.all = seen.all && seen.of[r] == every;
    }
    return seen;
  }
};

template <class T>
struct Attention {
  static void run(ArrayContext& c) {
    const Blocks<T> blocks(c, 3);
    const AttentionSizes& s = blocks.s;
    T *const y = c.output(0).as<T>(), *const logarithms = c.output(1).as<T>();
    const std::int64_t each = blocks.blocks_of_queries();
    parallel_for(s.batch * s.heads * each, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> scores(static_cast<std::size_t>(kQueries * kKeys));
      Totals<T> sums(kQueries * s.value_size);
      for (std::int64_t at = begin; at < end; ++at)
        one_block(blocks, at / each, at % each * kQueries, scores, sums, y, logarithms);
    });
  }

  static void one_block(const Blocks<T>& blocks, std::int64_t head, std::int64_t i, std::vector<T>& scores,
                        Totals<T>& sums, T* all_y, T* logarithms) {
    const AttentionSizes& s = blocks.s;
    const std::int64_t rows = std::min(kQueries, s.n - i), width = s.value_size;
    T* const y = all_y + (head * s.n + i) * width;
    T largest[kQueries];
    double total[kQueries];
    std::fill(largest, largest + rows, -kInfinity<T>);
    std::fill(total, total + rows, 0.0);
    sums.clear();
    const std::int64_t keys = s.keys_of(i + rows - 1);
    for (std::int64_t j = 0; j < keys; j += kKeys) {
      const std::int64_t columns = std::min(kKeys, keys - j);
      const Seen seen = blocks.scores(head, i, rows, j, columns, scores.data());
      dispatch(SoftmaxOfBlock{}, scores.data(), rows, +largest, +total, sums.row(0), width);
      sums.add(false, rows, width, columns, scores.data(), blocks.values(head, j), seen.all, seen);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool sees = total[r] != 0;
      const double* const of_row = sums.row(r * width);
      for (std::int64_t t = 0; t < width; ++t)
        y[r * width + t] = static_cast<T>(sees ? of_row[t] / total[r] : of_row[t]);
      logarithms[head * s.n + i + r] = sees ? largest[r] + static_cast<T>(std::log(total[r])) : -kInfinity<T>;
    }
  }
};

/// Two passes: by queries for the gradient of q, by keys for those of k and v.
template <class T>
struct AttentionGrad {
  static void run(ArrayContext& c) {
    const Blocks<T> blocks(c, 6);
    const AttentionSizes& s = blocks.s;
    const T *const y = c.input(3).as<T>(), *const logarithms = c.input(4).as<T>(), *const g = c.input(5).as<T>();
    T *const dq = c.output(0).as<T>(), *const dk = c.output(1).as<T>(), *const dv = c.output(2).as<T>();
    const std::int64_t width = s.value_size;
    // The products of each query's result and its gradient, and whether that is 0: then nothing depends on the query.
    const auto queries = static_cast<std::size_t>(std::max<std::int64_t>(1, s.query_rows()));
    const Scratch kept = c.scratch(queries * sizeof(T)), kept_flags = c.scratch(queries);
    T* const deltas = kept.as<T>();
    auto* const unused = kept_flags.as<std::uint8_t>();
    parallel_for(s.query_rows(), std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     double sum = 0;
                     const T* const of_y = g + row * width;
                     for (std::int64_t t = 0; t < width; ++t) {
                       sum += static_cast<double>(of_y[t]) * static_cast<double>(y[row * width + t]);
                     }
                     deltas[row] = static_cast<T>(sum);
                     unused[row] = std::all_of(of_y, of_y + width, [](T part) { return part == T(0); }) ? 1 : 0;
                   }
                 });
    /// p and ds, the gradient of the scores, of one block.
    const auto gradients = [&](std::int64_t head, std::int64_t i, std::int64_t rows, std::int64_t j,
                               std::int64_t columns, T* p, T* ds) {
      Seen seen = blocks.scores(head, i, rows, j, columns, p);
      gemm_here(false, true, rows, columns, width, T(1), g + (head * s.n + i) * width, width, blocks.values(head, j),
                width, T(0), ds, kKeys);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t row = head * s.n + i + r;
        if (logarithms[row] == -kInfinity<T> || unused[row] != 0) seen.of[r] = 0, seen.all = false;
        T *const of_p = p + r * kKeys, *const of_ds = ds + r * kKeys;
        if (seen.of[r] != 0) {
          dispatch(GradientOfRow{}, of_p, of_ds, logarithms[row], deltas[row], static_cast<T>(s.scale));
        }
        for (std::uint64_t others = ~seen.of[r]; others != 0; others &= others - 1) {
          const int k = std::countr_zero(others);
          of_p[k] = of_ds[k] = T(0);
        }
      }
      return seen;
    };
    constexpr auto kBlock = static_cast<std::size_t>(kQueries * kKeys);
    const std::int64_t each = blocks.blocks_of_queries();
    parallel_for(s.batch * s.heads * each, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> p(kBlock), ds(kBlock);
      Totals<T> sums(kQueries * s.size);
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t head = at / each, i = at % each * kQueries, rows = std::min(kQueries, s.n - i);
        sums.clear();
        const std::int64_t keys = s.keys_of(i + rows - 1);
        for (std::int64_t j = 0; j < keys; j += kKeys) {
          const std::int64_t columns = std::min(kKeys, keys - j);
          const Seen seen = gradients(head, i, rows, j, columns, p.data(), ds.data());
          sums.add(false, rows, s.size, columns, ds.data(), blocks.keys(head, j), seen.all, seen);
        }
        sums.write(dq + (head * s.n + i) * s.size, rows * s.size);
      }
    });
    const std::int64_t of_keys = blocks.blocks_of_keys(), heads_of_group = s.groups == 0 ? 0 : s.heads / s.groups;
    parallel_for(s.batch * s.groups * of_keys, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> p(kBlock), ds(kBlock);
      Totals<T> of_k(kKeys * s.size), of_v(kKeys * width);
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t group = at / of_keys, j = at % of_keys * kKeys, columns = std::min(kKeys, s.m - j);
        of_k.clear();
        of_v.clear();
        for (std::int64_t h = 0; h < heads_of_group; ++h) {
          const std::int64_t head = group / s.groups * s.heads + group % s.groups * heads_of_group + h;
          for (std::int64_t i = s.first_query_of(j) / kQueries * kQueries; i < s.n; i += kQueries) {
            const std::int64_t rows = std::min(kQueries, s.n - i), row = head * s.n + i;
            const Seen seen = gradients(head, i, rows, j, columns, p.data(), ds.data());
            const auto is_seen = [&](std::int64_t key, std::int64_t query) { return seen(query, key); };
            of_k.add(true, columns, s.size, rows, ds.data(), blocks.q + row * s.size, seen.all, is_seen);
            of_v.add(true, columns, width, rows, p.data(), g + row * width, seen.all, is_seen);
          }
        }
        of_k.write(dk + (group * s.m + j) * s.size, columns * s.size);
        of_v.write(dv + (group * s.m + j) * width, columns * width);
      }
    });
  }
};

}  // namespace

void add_attention_kernels(Registry& registry) {
  add<Attention>(registry.get("attention"), kCpu, Direct<Floating>{}, kDense);
  add<AttentionGrad>(registry.get("attention_grad"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
