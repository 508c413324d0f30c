// Which elements of a buffer a view touches.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// First and one past the last element that a window touches.
inline std::pair<std::int64_t, std::int64_t> extent(const Dims& shape, const Dims& strides, std::int64_t offset) {
  std::int64_t low = offset, high = offset;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) return {offset, offset};
    const std::int64_t reach = (shape[i] - 1) * strides[i];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high + 1};
}

/// The bytes that a window on a buffer lies in.
inline Stretch stretch_of(const NDArray& x, const Buffer& buffer) {
  const auto [low, high] = extent(x.shape(), x.strides(), x.offset());
  const auto item = static_cast<std::intptr_t>(size_of(x.dtype()));
  return Stretch::of(buffer, low * item, high * item);
}

/// True if two indices of the window name one element: exact, unless strides were chosen to make that hard to tell.
bool overlaps_itself_at_length(const NDArray& x);
inline bool overlaps_itself(const NDArray& x) {
  if (x.count() <= 1 || x.is_contiguous()) return false;
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> axes;  // (stride, size), by stride
  std::size_t n = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (x.shape()[i] <= 1) continue;
    const std::int64_t stride = std::abs(x.strides()[i]);
    std::size_t at = n++;
    for (; at > 0 && stride < axes[at - 1].first; --at) axes[at] = axes[at - 1];
    axes[at] = {stride, x.shape()[i]};
  }
  std::int64_t reach = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (axes[i].first == 0) return true;
    if (axes[i].first <= reach) return overlaps_itself_at_length(x);  // never for windows made by slicing and permuting
    reach += axes[i].first * (axes[i].second - 1);
  }
  return false;
}

/// True if two windows that begin at one place touch the same elements at the same indices.
inline bool same_elements(const NDArray& a, const NDArray& b) {
  return a.shape() == b.shape() && a.strides() == b.strides();
}
inline bool same_window(const NDArray& a, const NDArray& b) { return a.offset() == b.offset() && same_elements(a, b); }

}  // namespace sluice
