// Operands of the tests' table of operators in other layouts, and what a refused call must say.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops_table.h"

namespace sluice::testing {

/// Where the elements of an operand lie in a buffer of `elements` elements.
struct Layout {
  Dims shape, strides;
  std::int64_t offset = 0, elements = 0;
  bool injective = true;  ///< no two elements share a place
};

inline constexpr const char* kLayouts[] = {"transposed",      "reversed",    "every second",
                                           "cut out",         "axes turned", "broadcast 0",
                                           "broadcast, last", "one element", "overlapping"};
inline constexpr int kLayoutCount = static_cast<int>(std::size(kLayouts));

/// The layout `kind` of kLayouts for a shape.
inline Layout layout_of(int kind, const Dims& shape) {
  const int rank = shape.rank();
  Layout l{.shape = shape, .strides = row_major(shape)};
  /// Row-major strides over sizes[i], in the order of axes that starts with `slowest`.
  const auto lay_out = [&](const std::vector<std::int64_t>& sizes, int slowest, int direction) {
    std::int64_t stride = 1;
    for (int k = 0; k < rank; ++k) {
      const int axis = ((slowest - direction * (k + 1)) % rank + rank) % rank;
      l.strides[axis] = stride;
      stride *= sizes[static_cast<std::size_t>(axis)];
    }
  };
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < rank; ++i) sizes.push_back(shape[i]);
  switch (kind) {
    case 0:
      if (rank > 0) lay_out(sizes, rank - 1, -1);
      break;
    case 1:
      for (int i = 0; i < rank; ++i) {
        l.offset += l.strides[i] * std::max<std::int64_t>(shape[i] - 1, 0);
        l.strides[i] = -l.strides[i];
      }
      break;
    case 2:
      for (std::int64_t& size : sizes) size = 2 * size + 1;
      if (rank > 0) lay_out(sizes, 0, 1);
      for (int i = 0; i < rank; ++i) {
        l.offset += l.strides[i];
        l.strides[i] *= 2;
      }
      break;
    case 3:
      for (std::int64_t& size : sizes) size += 3;
      if (rank > 0) lay_out(sizes, 0, 1);
      for (int i = 0; i < rank; ++i) l.offset += l.strides[i] * (i % 2 + 1);
      break;
    case 4:
      if (rank > 0) lay_out(sizes, 1 % rank, 1);
      break;
    case 5:
    case 6:
      if (rank > 0) l.strides[kind == 5 ? 0 : rank - 1] = 0;
      break;
    case 7:
      for (int i = 0; i < rank; ++i) l.strides[i] = 0;
      break;
    default:
      for (int i = 0; i < rank; ++i) l.strides[i] = 1;
  }
  l.injective = kind < 5;
  l.elements = 1 + l.offset;
  for (int i = 0; i < rank; ++i)
    l.elements += std::max<std::int64_t>(l.strides[i], 0) * std::max<std::int64_t>(shape[i] - 1, 0);
  return l;
}

/// Calls f(place) for each element of the layout, in row-major order.
template <class F>
void each_place(const Layout& l, F&& f) {
  const std::int64_t count = l.shape.count();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t place = l.offset, rest = n;
    for (int i = l.shape.rank() - 1; i >= 0; --i) {
      place += rest % l.shape[i] * l.strides[i];
      rest /= l.shape[i];
    }
    f(static_cast<std::size_t>(place));
  }
}

/// A buffer with x's elements in that layout, and NaN in the gaps. Where elements share a place, the last one is there.
inline std::vector<double> in_layout(const Layout& l, const std::vector<double>& x) {
  std::vector<double> buffer(static_cast<std::size_t>(l.elements), std::numeric_limits<double>::quiet_NaN());
  auto next = x.begin();
  each_place(l, [&](std::size_t place) { buffer[place] = *next++; });
  return buffer;
}

/// The errors of bad input are one line, which begins with the operator and the line of the table's case.
inline void expect_clear_line(const std::string& text, const std::string& what) {
  EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
  EXPECT_LE(text.size(), 300U) << what << ": " << text;
  const std::size_t close = text.find("] ");
  EXPECT_TRUE(text.starts_with("[") && close != text.npos) << what << ": " << text;
  if (close == text.npos) return;
  const std::string where = text.substr(close + 2);
  const std::size_t colon = where.find(':');
  EXPECT_TRUE(where.starts_with("ops_table") && colon != where.npos && std::isdigit(where[colon + 1]))
      << what << ": " << text;
}

}  // namespace sluice::testing
