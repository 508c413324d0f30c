// Rows that are added to the rows of an array by their numbers: gradients of embeddings, index_add, scatter_add.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/lines.h"

namespace sluice::cpu_backend {

/// The columns are split between threads, so that each sees the rows in order.
template <class F>
void by_columns(std::int64_t rows, std::int64_t width, F f) {
  parallel_for(width, std::max<std::int64_t>(64, kElementwiseGrain / std::max<std::int64_t>(1, rows)), f);
}

namespace detail {
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

/// The numbers i whose row is named often, by rows and in order: about all rows that more than some ten others are
/// added to. Rows that share a place in the table count as one: then some rows are here that need not be. Of narrow
/// rows one of eight is counted, in a place of the eight that follows no pattern, because counting takes as long as
/// adding.
inline std::vector<std::int64_t> often_named(const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  const std::int64_t step = width < 8 ? 8 : 1, most = step == 1 ? 16 : 8;
  std::vector<std::int64_t> found;
  if (n / step <= most) return found;
  const std::size_t places = std::bit_ceil(static_cast<std::size_t>(n / 4 + 1));
  const auto place = [=](std::int64_t row) { return static_cast<std::size_t>(row) & (places - 1); };
  std::vector<std::uint8_t> table(places);
  std::uint8_t* const times = table.data();
  for (std::int64_t i = 0; i + step <= n; i += step) {
    const auto chosen = static_cast<std::int64_t>((static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15U) >> 61U);
    const std::size_t at = place(rows[i + (step == 1 ? 0 : chosen)]);
    times[at] = static_cast<std::uint8_t>(times[at] + (times[at] <= most ? 1 : 0));
  }
  if (*std::max_element(table.begin(), table.end()) <= most) return found;
  for (std::int64_t i = 0; i < n; ++i) {
    if (times[place(rows[i])] > most) found.push_back(i);
  }
  std::stable_sort(found.begin(), found.end(), [=](std::int64_t a, std::int64_t b) { return rows[a] < rows[b]; });
  return found;
}

/// The same for f32 where y is large: only the rows that are named often have totals, one row after the other.
inline void add_rows_in_place(float* y, const float* in, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  const std::vector<std::int64_t> often = often_named(rows, n, width);
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

}  // namespace detail

/// y[rows[i]] += in[i] in the order of i, for y of `count` elements and n rows of `width` elements, whose numbers are
/// in range. f32, f16 and bf16 are added in double where many rows meet; bits depend on shapes and `rows` alone.
template <class T>
void add_rows(T* y, std::int64_t count, const T* in, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  if (count == 0 || n == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    if (count / width > n / 8) return detail::add_rows_in_place(y, in, rows, n, width);
  }
  if constexpr (std::is_same_v<T, compute_of<T>> && !std::is_same_v<T, float>) {
    by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < n; ++i) {
        T* const out = y + rows[i] * width;
        for (std::int64_t j = begin; j < end; ++j) out[j] = functors::plus(out[j], in[i * width + j]);
      }
    });
  } else {
    detail::add_to_totals(y, count, in, rows, n, width);
  }
}

}  // namespace sluice::cpu_backend
