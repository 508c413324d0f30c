// Elementwise functions that are made of the operators of elementwise.h: limits, mixtures and products of several
// arrays. Gradients flow through them to all arrays.
#pragma once

#include <optional>

#include "sluice/operators/elementwise.h"

namespace sluice {

struct ClipOptions {
  std::optional<Scalar> low = {}, high = {};
};
/// x with smaller elements raised to `low`, and then larger ones lowered to `high`: clip(x, {.low = 0, .high = 1}). One
/// of the two may be missing. Of floating dtypes and integers, which must be able to hold the numbers. NaN stays. The
/// gradient is 0 where an element was changed, and passes where it is equal to a limit. Throws ArrayError where both
/// are missing or one does not fit the dtype.
NDArray clip(const Operand& x, const ClipOptions& options);

/// The point between a and b that is the part `weight` of the way from a: exactly a at 0 and b at 1; beyond them for
/// weights outside. Floating dtypes; arrays broadcast.
NDArray lerp(const Operand& a, const Operand& b, const Operand& weight);
NDArray lerp(const Operand& a, const Operand& b, const ScalarOperand& weight);

struct ProductOptions {
  Scalar value = 1;  ///< a factor of the product
};
/// x + value a b, and x + value a / b (of integers cut towards zero, before the factor). Arrays broadcast. Dtypes as
/// for + and *.
NDArray addcmul(const Operand& x, const Operand& a, const Operand& b, const ProductOptions& options = {});
NDArray addcdiv(const Operand& x, const Operand& a, const Operand& b, const ProductOptions& options = {});

}  // namespace sluice
