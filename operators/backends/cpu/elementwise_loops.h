// Loops of elementwise kernels and of sums, over contiguous memory: split over threads, compiled for the CPU at hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {

/// Elements of one chunk of an elementwise loop; an array up to this size runs on the calling thread.
inline constexpr std::int64_t kElementwiseGrain = 32768;
/// Elements of one leaf of a sum's tree.
inline constexpr std::int64_t kSumBlock = 4096;
/// What elements of T are summed in: f32 in double, so that a sum of any length is rounded once.
template <class T>
using TotalOf = std::conditional_t<std::is_same_v<T, float>, double, T>;

namespace detail {
template <class F>
struct FillLoop {
  F f;
  template <class R>
  SLUICE_KERNEL_BODY void operator()(R* out, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) out[i] = f(i);
  }
};
template <class F>
struct UnaryLoop {
  F f;
  template <class T, class R>
  SLUICE_KERNEL_BODY void operator()(const T* x, R* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
  }
};
template <class F>
struct BinaryLoop {
  F f;
  template <class A, class B, class R>
  SLUICE_KERNEL_BODY void operator()(const A* a, const B* b, R* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  }
};
template <class F>
struct ScalarRightLoop {
  F f;
  template <class A, class B, class R>
  SLUICE_KERNEL_BODY void operator()(const A* a, B b, R* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b);
  }
};
template <class F>
struct ScalarLeftLoop {
  F f;
  template <class A, class B, class R>
  SLUICE_KERNEL_BODY void operator()(A a, const B* b, R* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a, b[i]);
  }
};
template <class F>
struct TernaryLoop {
  F f;
  template <class A, class B, class C, class R>
  SLUICE_KERNEL_BODY void operator()(const A* a, const B* b, const C* c, R* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i], c[i]);
  }
};

/// Asks for the n elements that a loop which reads memory once, in order, comes to 8 KiB later. The processor does so
/// by itself, but only to the end of a page. The address may be beyond the array.
template <class T>
SLUICE_KERNEL_BODY void prefetch_ahead([[maybe_unused]] const T* x, [[maybe_unused]] int n) {
#if defined(__GNUC__)
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(x) + 8192;
  for (std::uintptr_t at = 0; at < static_cast<std::uintptr_t>(n) * sizeof(T); at += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + at));
  }
#endif
}

/// One leaf of a sum: 32 running sums, so that the additions overlap and vectorise, added pairwise at the end.
struct BlockSum {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t n, A* out) const {
    constexpr int lanes = 32;
    A sums[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      prefetch_ahead(x + i, lanes);
      for (int l = 0; l < lanes; ++l) sums[l] += static_cast<A>(x[i + l]);
    }
    for (int l = 0; i < n; ++i, ++l) sums[l] += static_cast<A>(x[i]);
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    *out = sums[0];
  }
};

/// The sum of a row, in A: short ones without the running sums.
template <class A, class T>
SLUICE_KERNEL_BODY A row_total(const T* x, std::int64_t n) {
  A total{};
  if (n > 32) {
    BlockSum{}(x, n, &total);
  } else {
    for (std::int64_t i = 0; i < n; ++i) total += static_cast<A>(x[i]);
  }
  return total;
}

/// The largest of `least` and the numbers of a row, in lanes; what is no number is passed over.
template <class T>
SLUICE_KERNEL_BODY T row_largest(const T* x, std::int64_t n, T least) {
  constexpr std::int64_t lanes = 16;
  T largest[lanes];
  for (std::int64_t k = 0; k < lanes; ++k) largest[k] = least;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t k = 0; k < lanes; ++k) largest[k] = x[i + k] > largest[k] ? x[i + k] : largest[k];
  }
  for (std::int64_t k = 0; i + k < n; ++k) largest[k] = x[i + k] > largest[k] ? x[i + k] : largest[k];
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t k = 0; k < half; ++k)
      largest[k] = largest[k + half] > largest[k] ? largest[k + half] : largest[k];
  }
  return largest[0];
}

/// sums[j] += x[i, j], rows in order; rows are `step` elements apart. Four rows at a time, so that a sum is loaded and
/// stored once for four elements.
struct RowSums {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t rows, std::int64_t step, std::int64_t columns,
                                     A* __restrict sums) const {
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4, x += 4 * step) {
      const T *second = x + step, *third = second + step, *fourth = third + step;
      for (std::int64_t j = 0; j < columns; ++j) {
        A total = sums[j] + static_cast<A>(x[j]);
        total += static_cast<A>(second[j]);
        total += static_cast<A>(third[j]);
        sums[j] = total + static_cast<A>(fourth[j]);
      }
    }
    for (; i < rows; ++i, x += step) {
      for (std::int64_t j = 0; j < columns; ++j) sums[j] += static_cast<A>(x[j]);
    }
  }
};
/// sums[o, j] = the sum over i of x[o, i, j].
struct MiddleSums {
  template <class T, class A>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t outer, std::int64_t rows, std::int64_t columns,
                                     A* sums) const {
    for (std::int64_t o = 0; o < outer; ++o, x += rows * columns, sums += columns) {
      for (std::int64_t j = 0; j < columns; ++j) sums[j] = A{};
      RowSums{}(x, rows, columns, columns, sums);
    }
  }
};
}  // namespace detail

// All of these: n elements, contiguous; an output may be the same memory as an input (in place), but not overlap it
// otherwise. Blocking; threads by parallel_for; any thread may call. f is called in no particular order and must be a
// pure function of its arguments; it is compiled for the instruction set in use, so keep it inline and without branches
// that cannot become a select. n <= 0 does nothing.

/// y[i] = f(x[i]).
template <class T, class R, class F>
void map_unary(const T* x, R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    dispatch(detail::UnaryLoop<F>{f}, x + begin, y + begin, end - begin);
  });
}

/// y[i] = f(a[i], b[i]).
template <class A, class B, class R, class F>
void map_binary(const A* a, const B* b, R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    dispatch(detail::BinaryLoop<F>{f}, a + begin, b + begin, y + begin, end - begin);
  });
}

/// y[i] = f(a[i], b), one b for all.
template <class A, class B, class R, class F>
void map_scalar_right(const A* a, B b, R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    dispatch(detail::ScalarRightLoop<F>{f}, a + begin, b, y + begin, end - begin);
  });
}

/// y[i] = f(a, b[i]), one a for all.
template <class A, class B, class R, class F>
void map_scalar_left(A a, const B* b, R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    dispatch(detail::ScalarLeftLoop<F>{f}, a, b + begin, y + begin, end - begin);
  });
}

/// y[i] = f(a[i], b[i], c[i]).
template <class A, class B, class C, class R, class F>
void map_ternary(const A* a, const B* b, const C* c, R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    dispatch(detail::TernaryLoop<F>{f}, a + begin, b + begin, c + begin, y + begin, end - begin);
  });
}

/// y[i] = f(i): fills, ranges.
template <class R, class F>
void map_index(R* y, std::int64_t n, F f) {
  parallel_for(n, kElementwiseGrain, [=](std::int64_t begin, std::int64_t end) {
    auto shifted = [f, begin](std::int64_t i) { return f(begin + i); };
    dispatch(detail::FillLoop<decltype(shifted)>{shifted}, y + begin, end - begin);
  });
}

/// The sum of x[0..n), in A (say, double for float input). A tree that depends on n alone: blocks of kSumBlock, each
/// with 32 running sums, added in index order; so the same bits on any number of threads. 0 for n <= 0.
template <class A, class T>
A sum(const T* x, std::int64_t n) {
  if (n <= 0) return A{};
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  if (blocks == 1) {
    A only{};
    dispatch(detail::BlockSum{}, x, n, &only);
    return only;
  }
  std::vector<A> parts(static_cast<std::size_t>(blocks));
  A* out = parts.data();
  parallel_for(blocks, kElementwiseGrain / kSumBlock, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      dispatch(detail::BlockSum{}, x + b * kSumBlock, std::min(kSumBlock, n - b * kSumBlock), out + b);
    }
  });
  A total{};
  for (const A& part : parts) total += part;
  return total;
}

/// Calls finish(first, totals, n) with the sums over i of x[o, i, j], for x of shape (outer, rows, columns): the totals
/// (TotalOf<T>) are those of elements [first, first + n) of the result (outer, columns). Pieces of columns, and blocks
/// of rows that are summed in row order and added in block order, depend on the shape alone. `finish` is called from
/// several threads.
template <class T, class Finish>
void sum_middle(const T* x, std::int64_t outer, std::int64_t rows, std::int64_t columns, const Finish& finish) {
  using A = TotalOf<T>;
  constexpr std::int64_t most = 1024;  // columns of a piece, whose totals stay in the first-level cache
  if (outer <= 0 || columns <= 0) return;
  const std::int64_t width = std::min(most, columns), pieces = (columns + width - 1) / width;
  const std::int64_t block = std::max<std::int64_t>(16, kElementwiseGrain / width);
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows + block - 1) / block);
  // Short rows are taken several at a time, as one row of totals of their own, which fills vectors.
  const std::int64_t together = std::min(std::max<std::int64_t>(1, 64 / columns), std::max<std::int64_t>(1, rows / 8));
  if (blocks == 1 && pieces == 1 && together == 1) {  // small: several at once
    const std::int64_t size = std::max<std::int64_t>(1, rows * columns);
    const std::int64_t at_once = std::clamp<std::int64_t>(kElementwiseGrain / size, 1, most / columns);
    parallel_for((outer + at_once - 1) / at_once, std::max<std::int64_t>(1, kElementwiseGrain / (at_once * size)),
                 [&](std::int64_t begin, std::int64_t end) {
                   A totals[most];
                   for (std::int64_t o = begin * at_once; o < std::min(outer, end * at_once); o += at_once) {
                     const std::int64_t n = std::min(at_once, outer - o);
                     dispatch(detail::MiddleSums{}, x + o * rows * columns, n, rows, columns, &totals[0]);
                     finish(o * columns, static_cast<const A*>(totals), n * columns);
                   }
                 });
    return;
  }
  std::vector<A> parts(static_cast<std::size_t>(blocks == 1 ? 0 : outer * blocks * columns));
  const std::int64_t work = std::max<std::int64_t>(1, std::min(block, rows) * width);
  parallel_for(outer * pieces * blocks, std::max<std::int64_t>(1, kElementwiseGrain / work),
               [&](std::int64_t begin, std::int64_t end) {
                 A totals[most];
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t o = task / (pieces * blocks), first = task / blocks % pieces * width;
                   const std::int64_t b = task % blocks, n = std::min(width, columns - first);
                   const std::int64_t height = std::min(block, rows - b * block), whole = height / together;
                   const T* const from = x + (o * rows + b * block) * columns + first;
                   std::fill(totals, totals + together * n, A{});
                   dispatch(detail::RowSums{}, from, whole, together * columns, together * n, &totals[0]);
                   if (whole * together < height) {
                     dispatch(detail::RowSums{}, from + whole * together * columns, height - whole * together, columns,
                              n, &totals[0]);
                   }
                   for (std::int64_t k = 1; k < together; ++k) {
                     for (std::int64_t j = 0; j < n; ++j) totals[j] += totals[k * n + j];
                   }
                   if (blocks == 1) {
                     finish(o * columns + first, static_cast<const A*>(totals), n);
                   } else {
                     std::copy(totals, totals + n, parts.data() + (o * blocks + b) * columns + first);
                   }
                 }
               });
  if (blocks == 1) return;
  parallel_for(outer * pieces, std::max<std::int64_t>(1, kElementwiseGrain / (blocks * width)),
               [&](std::int64_t begin, std::int64_t end) {
                 A totals[most];
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t o = task / pieces, first = task % pieces * width;
                   const std::int64_t n = std::min(width, columns - first);
                   std::fill(totals, totals + n, A{});
                   dispatch(detail::RowSums{}, static_cast<const A*>(parts.data()) + o * blocks * columns + first,
                            blocks, columns, n, &totals[0]);
                   finish(o * columns + first, static_cast<const A*>(totals), n);
                 }
               });
}

/// out[j] = the sum over i of x[i * columns + j], for x of shape (rows, columns): the gradient of a bias. out must not
/// overlap x.
template <class T>
void sum_rows(const T* x, std::int64_t rows, std::int64_t columns, T* out) {
  sum_middle(x, 1, rows, columns, [out](std::int64_t first, const TotalOf<T>* totals, std::int64_t n) {
    for (std::int64_t j = 0; j < n; ++j) out[first + j] = static_cast<T>(totals[j]);
  });
}

}  // namespace sluice::cpu_backend
