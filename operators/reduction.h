// Reductions over axes, and operators made of them. Axes are one, as 0, or several, as {0, -1}, where negative axes
// count from the last; all of them where none are given; and {} means none: the result is then x, folded with nothing.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

struct ReduceOptions {
  bool keep = false;  ///< the axes stay, with size 1; else they are dropped
};

// The reductions of reduction_table.inc, which says what each computes: sum(x), sum(x, 0), sum(x, {0, -1}, {.keep =
// true}). Results come by a fixed tree, so the bits are the same on any number of threads. f32, f16 and bf16 are summed
// in double along any axes, softmax's rows too, so a sum of any length is rounded once; sums and products of i8, u8 and
// bool are i64. Throws ArrayError for axes that x does not have, and where there are no elements and no result over
// none.
#define SLUICE_REDUCTION(Name, name, ...) \
  NDArray name(const Operand& x, const Axes& axes = all, const ReduceOptions& options = {});
#include "sluice/operators/reduction_table.inc"

/// The mean, of floating dtypes. The mean over no elements is NaN.
NDArray mean(const Operand& x, const Axes& axes = all, const ReduceOptions& options = {});
/// The index (i64) of the first largest, or smallest, element along one axis; with `all` its row-major index in x. NaN
/// counts as largest, and as smallest.
NDArray argmax(const Operand& x, int axis = -1, const ReduceOptions& options = {});
NDArray argmax(const Operand& x, All, const ReduceOptions& options = {});
NDArray argmin(const Operand& x, int axis = -1, const ReduceOptions& options = {});
NDArray argmin(const Operand& x, All, const ReduceOptions& options = {});
/// Whether any element, or every one, is not 0: bool. Over no elements any is false and all is true. all(x), all(x,
/// axes) and all(x, axes, options) are calls of the object `all` (ndarray/slice.h). NaN is not 0.
NDArray any(const Operand& x, const Axes& axes = all, const ReduceOptions& options = {});
/// How many elements are not 0: i64.
NDArray count_nonzero(const Operand& x, const Axes& axes = all, const ReduceOptions& options = {});
/// Sums over the axes that broadcasting from `shape` added or widened, so that the result has `shape`. Where there is
/// nothing to sum it is x itself, or a view of it.
NDArray sum_to(const Operand& x, const Dims& shape);

/// Softmax and its logarithm over one axis, of floating dtypes, safe against overflow.
NDArray softmax(const Operand& x, int axis = -1);
NDArray log_softmax(const Operand& x, int axis = -1);

}  // namespace sluice
