// Products of stacks of matrices: which matrices of two operands each matrix of the result is made of.
#pragma once

#include "sluice/ndarray/dims.h"

namespace sluice {

/// The axes of a stack of matrices but for the last two.
inline Dims batch_axes(const Dims& shape) {
  return Dims(std::span(shape.begin(), shape.size() < 2 ? 0 : shape.size() - 2));
}

/// Strides of an operand's batch axes as the result's batch axes see them: 0 where the operand is broadcast. The result
/// has at least as many axes.
inline Dims batch_strides(const Dims& shape, const Dims& strides, const Dims& result) {
  Dims seen;
  const int added = result.rank() - shape.rank();
  for (int i = 0; i < result.rank() - 2; ++i)
    seen.push_back(i < added || shape[i - added] == 1 ? 0 : strides[i - added]);
  return seen;
}

/// Where matrix i of the result lies in an operand.
inline std::int64_t batch_offset(std::int64_t i, const Dims& axes, const Dims& strides) {
  std::int64_t offset = 0;
  for (int axis = axes.rank() - 1; axis >= 0; --axis) {
    offset += i % axes[axis] * strides[axis];
    i /= axes[axis];
  }
  return offset;
}

}  // namespace sluice
