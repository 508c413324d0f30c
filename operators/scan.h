// Scans: results over the elements before and with each one, along one axis. Negative axes count from the last. Each
// returns an array of x's shape, in order from the first element to the last, or with `reverse` from the last to the
// first. The bits are the same on any number of threads. All have gradients, and gradients of gradients, also where
// elements are 0. Throws ArrayError for an axis that x does not have.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

struct ScanOptions {
  bool reverse = false;  ///< element k is over k and the elements after it
};

/// Running sums and products, of floating dtypes and integers. Floating ones are kept in f64; those of i8, u8 and bool
/// are i64, as sums are.
NDArray cumsum(const Operand& x, int axis = -1, const ScanOptions& options = {});
NDArray cumprod(const Operand& x, int axis = -1, const ScanOptions& options = {});
/// log(cumsum(exp(x))), of floating dtypes, safe against overflow.
NDArray logcumsumexp(const Operand& x, int axis = -1, const ScanOptions& options = {});
/// y[k] = a[k] y[k - 1] + b[k], and y[0] = b[0]: a linear recurrence. a and b have one shape; their dtypes are
/// converted to one.
NDArray linear_scan(const Operand& a, const Operand& b, int axis = -1, const ScanOptions& options = {});

/// A running extreme and the place of it along the axis (i64).
struct ValuesAndIndices {
  NDArray values, indices;
};
/// The largest, or smallest, element so far, and the place of the first such. From the first NaN on it is NaN.
ValuesAndIndices cummax(const Operand& x, int axis = -1);
ValuesAndIndices cummin(const Operand& x, int axis = -1);

/// x[k + 1] - x[k] along an axis (of bool: whether they differ), n times over: the axis has n elements less, or none.
NDArray diff(const Operand& x, int n = 1, int axis = -1);

}  // namespace sluice
