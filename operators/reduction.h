// Reductions over axes, and operators made of them. Negative axes count from the last; no axes means all of them.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

// The reductions of reduction_table.inc, which says what each computes: name(x, axes, keep). The axes are dropped or,
// with `keep`, stay with size 1. Results come by a fixed tree, so the bits are the same on any number of threads.
// Throws ArrayError for axes that x does not have, and where there are no elements and no result over none.
#define SLUICE_REDUCTION(Name, name, ...) NDArray name(const Operand& x, const Dims& axes = {}, bool keep = false);
#include "sluice/operators/reduction_table.inc"

/// The mean, of floating dtypes. The mean over no elements is NaN.
NDArray mean(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The index (i64) of the first largest element along one axis. The axis is dropped or, with `keep`, stays with size 1.
NDArray argmax(const Operand& x, int axis = -1, bool keep = false);
/// Sums over the axes that broadcasting from `shape` added or widened, so that the result has `shape`.
NDArray sum_to(const Operand& x, const Dims& shape);

/// Softmax and its logarithm over one axis, of floating dtypes, safe against overflow.
NDArray softmax(const Operand& x, int axis = -1);
NDArray log_softmax(const Operand& x, int axis = -1);

}  // namespace sluice
