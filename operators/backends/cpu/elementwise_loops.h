// Loops of elementwise kernels and of sums, over contiguous memory: split over threads, compiled for the CPU at hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {

/// Elements of one chunk of an elementwise loop; an array up to this size runs on the calling thread.
inline constexpr std::int64_t kElementwiseGrain = 32768;
/// Elements of one leaf of a sum's tree.
inline constexpr std::int64_t kSumBlock = 4096;

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

/// sums[j] += x[i, j], rows in order.
struct RowSums {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t rows, std::int64_t columns, T* sums) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) sums[j] += x[i * columns + j];
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

/// out[j] = the sum over i of x[i * columns + j], for x of shape (rows, columns): the gradient of a bias. Blocks of
/// rows whose size depends on the shape alone, each summed in row order, and added in block order. out must not overlap
/// x.
template <class T>
void sum_rows(const T* x, std::int64_t rows, std::int64_t columns, T* out) {
  if (columns <= 0) return;
  const std::int64_t block = std::max<std::int64_t>(16, kElementwiseGrain / columns);
  const std::int64_t blocks = std::max<std::int64_t>(1, (rows + block - 1) / block);
  std::vector<T> parts(static_cast<std::size_t>((blocks - 1) * columns));
  T* rest = parts.data();
  parallel_for(blocks, 1, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      T* sums = b == 0 ? out : rest + (b - 1) * columns;
      std::fill(sums, sums + columns, T{});
      dispatch(detail::RowSums{}, x + b * block * columns, std::min(block, rows - b * block), columns, sums);
    }
  });
  dispatch(detail::RowSums{}, static_cast<const T*>(rest), blocks - 1, columns, out);
}

}  // namespace sluice::cpu_backend
