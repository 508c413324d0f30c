// Walking several strided windows of one shape together.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "sluice/engine/loops.h"
#include "sluice/ndarray/tensor_view.h"

namespace sluice::cpu_backend {

/// N windows of one shape after axes of size 1 are dropped and neighbours that all windows step through evenly joined.
template <int N>
struct JoinedAxes {
  Dims shape;
  std::array<Dims, N> strides;

  explicit JoinedAxes(const std::array<const TensorView*, N>& views) {
    const Dims& from = views[0]->shape;
    for (int i = 0; i < from.rank(); ++i) {
      if (from[i] == 1) continue;
      const int last = shape.rank() - 1;
      bool even = last >= 0;
      for (std::size_t k = 0; even && k < N; ++k) {
        even = strides[k][last] == views[k]->strides[i] * from[i];
      }
      if (even) {
        shape[last] *= from[i];
        for (std::size_t k = 0; k < N; ++k) strides[k][last] = views[k]->strides[i];
      } else {
        shape.push_back(from[i]);
        for (std::size_t k = 0; k < N; ++k) strides[k].push_back(views[k]->strides[i]);
      }
    }
    if (shape.empty()) {
      shape.push_back(from.count());
      for (std::size_t k = 0; k < N; ++k) strides[k].push_back(1);
    }
  }
  /// The last axis, along which rows run.
  std::int64_t row() const { return shape.back(); }
  std::int64_t rows() const { return row() == 0 ? 0 : shape.count() / row(); }

  /// Calls visit(offsets) for rows [begin, end): the element offset of each window's row.
  template <class Visit>
  void each_row(std::int64_t begin, std::int64_t end, Visit visit) const {
    std::array<std::int64_t, kMaxRank> index{};
    std::array<std::int64_t, N> at{};
    std::int64_t rest = begin;
    for (int i = shape.rank() - 2; i >= 0; --i) {
      const std::int64_t k = rest % shape[i];
      index[static_cast<std::size_t>(i)] = k;
      rest /= shape[i];
      for (std::size_t w = 0; w < N; ++w) at[w] += k * strides[w][i];
    }
    for (std::int64_t row_index = begin; row_index < end; ++row_index) {
      visit(at);
      for (int i = shape.rank() - 2; i >= 0; --i) {
        auto& k = index[static_cast<std::size_t>(i)];
        for (std::size_t w = 0; w < N; ++w) at[w] += strides[w][i];
        if (++k < shape[i]) break;
        for (std::size_t w = 0; w < N; ++w) at[w] -= k * strides[w][i];
        k = 0;
      }
    }
  }
};

/// Calls row(offsets, n, steps) for stretches of rows of the windows, split over parallel_for into pieces that depend
/// on the shape alone: all of `views` have views[0]'s shape; offsets and steps are in elements.
template <int N, class Row>
void for_each_row(const std::array<const TensorView*, N>& views, std::int64_t grain, Row row) {
  if (views[0]->count() == 0) return;
  const JoinedAxes<N> axes(views);
  std::array<std::int64_t, N> steps;
  for (std::size_t k = 0; k < N; ++k) steps[k] = axes.strides[k].back();
  if (axes.shape.rank() == 1) {
    parallel_for(axes.row(), grain, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::int64_t, N> at;
      for (std::size_t k = 0; k < N; ++k) at[k] = begin * steps[k];
      row(at, end - begin, steps);
    });
    return;
  }
  parallel_for(axes.rows(), std::max<std::int64_t>(1, grain / axes.row()), [&](std::int64_t begin, std::int64_t end) {
    axes.each_row(begin, end, [&](const std::array<std::int64_t, N>& at) { row(at, axes.row(), steps); });
  });
}

}  // namespace sluice::cpu_backend
