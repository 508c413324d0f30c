// Numbers of elements, and writes by them, of the CPU backend.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/operators/lines.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct Index {
  static void run(ArrayContext& c) {
    const std::int64_t size = c.attributes<AxisAttributes>().size, n = c.output().count();
    const T* in = c.input(0).as<T>();
    auto* out = c.output().as<std::int64_t>();
    std::atomic<std::int64_t> first_bad{n};  // the error names the first, on any number of threads
    parallel_for(n, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t bad = n;
      for (std::int64_t i = end - 1; i >= begin; --i) {
        const std::int64_t given = in[i], at = given < 0 ? given + size : given;
        out[i] = at;
        if (at < 0 || at >= size) bad = i;
      }
      std::int64_t seen = first_bad.load(std::memory_order_relaxed);
      while (bad < seen && !first_bad.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
      }
    });
    const std::int64_t bad = first_bad.load(std::memory_order_relaxed);
    if (bad == n) return;
    throw std::out_of_range("[index] " + std::to_string(static_cast<std::int64_t>(in[bad])) + " on an axis of " +
                            std::to_string(size));
  }
};

/// The columns are split between threads, so that each sees the rows in order.
template <class F>
void by_columns(std::int64_t rows, std::int64_t width, F f) {
  parallel_for(width, std::max<std::int64_t>(64, kElementwiseGrain / std::max<std::int64_t>(1, rows)), f);
}

/// y[rows[i]] += in[i], in totals of the whole of y: where y is small beside what is added to it.
template <class T>
void add_to_totals(T* y, std::int64_t count, const T* in, const std::int64_t* rows, std::int64_t n,
                   std::int64_t width) {
  using A = scans::Wide<T>;
  using C = compute_of<T>;
  std::vector<A> totals(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) totals[static_cast<std::size_t>(i)] = static_cast<A>(static_cast<C>(y[i]));
  by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      A* const out = totals.data() + rows[i] * width;
      for (std::int64_t j = begin; j < end; ++j) {
        out[j] = functors::plus(out[j], static_cast<A>(static_cast<C>(in[i * width + j])));
      }
    }
  });
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(static_cast<C>(totals[static_cast<std::size_t>(i)]));
}

/// What f32 is added to one element at most without a total: few enough for the roundings to stay below 1e-6.
constexpr std::int64_t kMostAdded = 16;

/// The numbers i whose row is named more than kMostAdded times, by rows and in order. Rows that share a place in the
/// table count as one: then some rows are here that need not be.
std::vector<std::int64_t> often_named(const std::int64_t* rows, std::int64_t n) {
  const std::size_t places = std::bit_ceil(static_cast<std::size_t>(2 * n));
  const auto place = [=](std::int64_t row) { return static_cast<std::size_t>(row) & (places - 1); };
  std::vector<std::uint8_t> times(places);
  bool any = false;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t& seen = times[place(rows[i])];
    if (seen <= kMostAdded) ++seen;
    any |= seen > kMostAdded;
  }
  std::vector<std::int64_t> found;
  if (!any) return found;
  for (std::int64_t i = 0; i < n; ++i) {
    if (times[place(rows[i])] > kMostAdded) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(), [=](std::int64_t a, std::int64_t b) { return rows[a] < rows[b]; });
  return found;
}

/// The same for f32 where y is large: only the rows that are named often have totals, one row after the other.
void add_rows_in_place(float* y, const float* in, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  const std::vector<std::int64_t> often = often_named(rows, n);
  std::vector<bool> done(often.empty() ? 0 : static_cast<std::size_t>(n));
  for (const std::int64_t i : often) done[static_cast<std::size_t>(i)] = true;
  by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (!often.empty() && done[static_cast<std::size_t>(i)]) continue;
      float* const out = y + rows[i] * width;
      for (std::int64_t j = begin; j < end; ++j) out[j] += in[i * width + j];
    }
    std::vector<double> totals(static_cast<std::size_t>(end - begin));
    for (std::size_t at = 0; at < often.size();) {
      const std::int64_t row = rows[often[at]];
      float* const out = y + row * width;
      std::copy(out + begin, out + end, totals.begin());
      for (; at < often.size() && rows[often[at]] == row; ++at) {
        const float* const from = in + often[at] * width;
        for (std::int64_t j = begin; j < end; ++j) {
          totals[static_cast<std::size_t>(j - begin)] += static_cast<double>(from[j]);
        }
      }
      for (std::int64_t j = begin; j < end; ++j) {
        out[j] = static_cast<float>(totals[static_cast<std::size_t>(j - begin)]);
      }
    }
  });
}

template <class T>
void add_rows(ArrayContext& c, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  T* const y = c.output().as<T>();
  const T* const in = c.input(1).as<T>();
  if constexpr (std::is_same_v<T, float>) {
    if (c.output().shape[0] > n / 4) return add_rows_in_place(y, in, rows, n, width);
  }
  if constexpr (std::is_same_v<T, compute_of<T>> && !std::is_same_v<T, float>) {
    by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < n; ++i) {
        T* const out = y + rows[i] * width;
        for (std::int64_t j = begin; j < end; ++j) out[j] = static_cast<T>(out[j] + in[i * width + j]);
      }
    });
  } else {
    add_to_totals(y, c.output().count(), in, rows, n, width);
  }
}

void put_rows(ArrayContext& c) {
  const TensorView& y = c.output();
  const auto item = static_cast<std::int64_t>(size_of(y.dtype));
  if (y.count() == 0) return;
  if (c.inputs() == 3) {
    parallel_for(y.count() * item, 4 * kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(y.data + begin, c.input(2).data + begin, static_cast<std::size_t>(end - begin));
    });
  }
  const std::int64_t n = c.input(0).count(), width = y.count() / y.shape[0];
  const auto* rows = c.input(0).as<std::int64_t>();
  if (c.attributes<PutAttributes>().add) {
    with_type(y.dtype, [&]<class T>() {
      if constexpr (has_arithmetic(dtype_of<T>)) add_rows<T>(c, rows, n, width);
    });
    return;
  }
  by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
    const auto bytes = static_cast<std::size_t>((end - begin) * item);
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(y.data + (rows[i] * width + begin) * item, c.input(1).data + (i * width + begin) * item, bytes);
    }
  });
}

}  // namespace

void add_indexing_kernels(Registry& registry) {
  add<Index>(registry.get("index"), kCpu, Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  add(registry.get("put_rows"), kCpu, put_rows, kDense);
}

}  // namespace sluice::cpu_backend
