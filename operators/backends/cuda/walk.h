// Windows of one shape, walked together by a kernel.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/host_device.h"

namespace sluice::cuda {

/// The shape and strides of N windows, with as few axes as they allow. Plain data for a kernel.
template <int N>
struct Walk {
  int rank = 0;
  bool small = true;       ///< numbers of elements fit into 32 bits
  bool contiguous = true;  ///< element i of each window is at i
  std::int64_t count = 1;
  std::int64_t sizes[kMaxRank] = {};
  std::int64_t strides[N][kMaxRank] = {};

  /// Window 0 has the shape; others have its sizes, or strides of 0.
  explicit Walk(const TensorView* const (&views)[N]) {
    const Dims& shape = views[0]->shape;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      count *= shape[axis];
      if (shape[axis] == 1) continue;
      bool joins = rank > 0;
      for (int k = 0; k < N && joins; ++k) {
        joins = strides[k][rank - 1] == views[k]->strides[axis] * shape[axis];
      }
      if (!joins) {
        sizes[rank] = 1;
        ++rank;
      }
      sizes[rank - 1] *= shape[axis];
      for (int k = 0; k < N; ++k) strides[k][rank - 1] = views[k]->strides[axis];
    }
    small = count < (std::int64_t{1} << 31);
    contiguous = rank == 0 || rank == 1;
    for (int k = 0; k < N && rank == 1; ++k) contiguous = contiguous && strides[k][0] == 1;
  }

  /// Where element i of the shape is in each window, in elements.
  SLUICE_HD void find(std::int64_t i, std::int64_t (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = 0;
    if (small) {
      auto rest = static_cast<std::uint32_t>(i);
      for (int axis = rank - 1; axis >= 0; --axis) {
        const auto size = static_cast<std::uint32_t>(sizes[axis]);
        const std::uint32_t above = rest / size, index = rest - above * size;
        for (int k = 0; k < N; ++k) at[k] += static_cast<std::int64_t>(index) * strides[k][axis];
        rest = above;
      }
      return;
    }
    for (int axis = rank - 1; axis >= 0; --axis) {
      const std::int64_t above = i / sizes[axis], index = i - above * sizes[axis];
      for (int k = 0; k < N; ++k) at[k] += index * strides[k][axis];
      i = above;
    }
  }
};

}  // namespace sluice::cuda
