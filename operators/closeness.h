// Whether arrays are equal, or nearly so.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

struct CloseOptions {
  double rtol = 1e-5, atol = 1e-8;
  bool equal_nan = false;  ///< NaN is close to NaN
};
/// Where |a - b| <= atol + rtol |b|, as bool. Arrays of any dtypes that mix (promote() in ndarray/dtype.h) and
/// broadcast; differences are taken in f32 or f64, of integers in f64. Infinities are close to those of their sign
/// alone. b is the one that is right: the tolerance is of its size.
NDArray isclose(const Operand& a, const Operand& b, const CloseOptions& options = {});
/// Whether all elements are close; true if there are none. Waits, and throws Error while an array is poisoned.
bool allclose(const Operand& a, const Operand& b, const CloseOptions& options = {});

struct EqualOptions {
  bool equal_nan = false;  ///< NaN equals NaN
};
/// Whether a and b have one shape and equal elements, in the dtype of both. Waits, and throws Error while an array is
/// poisoned.
bool array_equal(const Operand& a, const Operand& b, const EqualOptions& options = {});

}  // namespace sluice
