// Operators that cut, join, repeat and pad arrays, beside the views of NDArray. Any dtype; gradients flow through all.
#pragma once

#include <vector>

#include "sluice/operators/registry.h"

namespace sluice {

/// Parts of `size` elements along an axis (the last may be shorter), or of sizes[0], sizes[1], ..., which must add up
/// to the axis. Views.
std::vector<NDArray> split(const Operand& x, std::int64_t size, int axis = 0);
std::vector<NDArray> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis = 0);
/// At most n parts of one size along an axis; the last may be shorter. Views.
std::vector<NDArray> chunk(const Operand& x, std::int64_t n, int axis = 0);

enum class PadMode : std::uint8_t {
  constant,  ///< with a number
  edge,      ///< with the first and the last element: a a a b c c
  reflect,   ///< as a mirror on the first and the last element: c b a b c b; not more than the axis has beside it
  wrap,      ///< from the other end: b c a b c a, as often as needed
};
struct Padding {
  std::int64_t before = 0, after = 0;
};
struct PadOptions {
  PadMode mode = PadMode::constant;
  Scalar value = 0;
};
/// x with elements added before and after, for each axis: pad(x, {{0, 0}, {1, 2}}). Sizes are 0 or more.
NDArray pad(const Operand& x, const std::vector<Padding>& sizes, const PadOptions& options = {});

/// The elements moved by `shift` places along an axis; those that leave at the end come in at the beginning.
NDArray roll(const Operand& x, std::int64_t shift, int axis = 0);
/// x several times along each axis: tile(x, {2, 1}). Missing axes, of x or of `times`, are added in front.
NDArray tile(const Operand& x, const Dims& times);
/// Each element `times` times in a row, along an axis.
NDArray repeat(const Operand& x, std::int64_t times, int axis = 0);

/// For arrays of shapes (a,), (b,), ...: as many arrays of shape (a, b, ...), where array i changes along axis i only.
/// Views that cannot be written.
std::vector<NDArray> meshgrid(const NDArrays& arrays, std::source_location where = std::source_location::current());
/// The lower or upper triangle of each matrix of the last two axes: elements (i, j) with j - i <= diagonal, or >=
/// diagonal; the others are 0.
NDArray tril(const Operand& x, std::int64_t diagonal = 0);
NDArray triu(const Operand& x, std::int64_t diagonal = 0);

}  // namespace sluice
