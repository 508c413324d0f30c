// Windows of images, laid out beside each other: what convolutions and poolings of any kind are made of.
#pragma once

#include <array>

#include "sluice/ndarray/attribute_fields.h"
#include "sluice/operators/registry.h"

namespace sluice {

/// A size along the height and one along the width of an image; one number is both.
struct Size2d {
  std::int64_t height = 1, width = 1;
  Size2d(std::int64_t both) : height(both), width(both) {}  // NOLINT: made by conversion
  Size2d(std::int64_t h, std::int64_t w) : height(h), width(w) {}
  friend bool operator==(const Size2d&, const Size2d&) = default;
};

struct UnfoldOptions {
  Size2d stride = 1;
  Size2d padding = 0;  ///< zeros on each side
  Size2d dilation = 1;
};
/// The elements of each window of x (n, channels, height, width), of floating dtypes, as
/// (n, channels, kernel height, kernel width, out height, out width): result[n, c, i, j, y, x'] is the element of
/// channel c at row y * stride + i * dilation - padding and likewise for the column, 0 in the padding. It has the
/// kernel's size times the memory of x (for stride 1). Throws ArrayError where the kernel does not fit the image.
NDArray unfold2d(const Operand& x, Size2d kernel, const UnfoldOptions& options = {});

/// For the rows unfold2d and unfold2d_grad. Heights come first.
struct UnfoldAttributes {
  Dims kernel, stride, padding, dilation;
  Dims wanted;  ///< for the gradient: the shape of x
  static constexpr auto fields() {
    return std::array{field<&UnfoldAttributes::kernel>("kernel"), field<&UnfoldAttributes::stride>("stride"),
                      field<&UnfoldAttributes::padding>("padding"), field<&UnfoldAttributes::dilation>("dilation"),
                      field<&UnfoldAttributes::wanted>("wanted")};
  }
  friend bool operator==(const UnfoldAttributes&, const UnfoldAttributes&) = default;
};

}  // namespace sluice
