// Walks strided windows of one shape together, element by element.
#pragma once

#include <array>
#include <cstdint>

#include "sluice/ndarray/tensor_view.h"

namespace sluice::reference {

/// Calls element(offsets) for every index, in row-major order: all of `views` are walked as windows of views[0]'s
/// shape; offsets are in elements, one for each window.
template <int N, class Element>
void for_each_element(const std::array<const TensorView*, N>& views, Element element) {
  if (views[0]->count() == 0) return;
  const Dims& shape = views[0]->shape;
  std::array<std::int64_t, kMaxRank> index{};
  for (;;) {
    std::array<std::int64_t, N> at{};
    for (std::size_t k = 0; k < N; ++k) {
      for (int i = 0; i < shape.rank(); ++i) at[k] += index[static_cast<std::size_t>(i)] * views[k]->strides[i];
    }
    element(at);
    int i = shape.rank() - 1;
    for (; i >= 0; --i) {
      if (++index[static_cast<std::size_t>(i)] < shape[i]) break;
      index[static_cast<std::size_t>(i)] = 0;
    }
    if (i < 0) return;
  }
}

/// Element i of a contiguous window of labels or row numbers: i64, i32 or u8.
inline std::int64_t label(const TensorView& labels, std::int64_t i) {
  if (labels.dtype == DType::i64) return labels.as<std::int64_t>()[i];
  return labels.dtype == DType::i32 ? labels.as<std::int32_t>()[i] : labels.as<std::uint8_t>()[i];
}

/// Calls visit(i, offset) for each element of a window in row-major order.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  std::int64_t i = 0;
  for_each_element<1>({&view}, [&](auto at) { visit(i++, at[0]); });
}

}  // namespace sluice::reference
