// Reductions over axes, and operators made of them. Negative axes count from the last; no axes means all of them.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// Sums over `axes` (f32 f64 i32 i64), by a fixed tree, so the bits are the same on any number of threads. The axes are
/// dropped or, with `keep`, stay with size 1. The sum over no elements is 0.
NDArray sum(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The mean, in f32 and f64. The mean over no elements is NaN.
NDArray mean(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The largest element (f32 f64 i32 i64); NaN if any is NaN. Throws ArrayError where there are no elements to choose
/// from. Of equal largest elements the first gets the gradient.
NDArray max(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The index (i64) of the first largest element along one axis. The axis is dropped or, with `keep`, stays with size 1.
NDArray argmax(const Operand& x, int axis = -1, bool keep = false);
/// Sums over the axes that broadcasting from `shape` added or widened, so that the result has `shape`.
NDArray sum_to(const Operand& x, const Dims& shape);

/// Softmax and its logarithm over one axis, in f32 and f64, safe against overflow.
NDArray softmax(const Operand& x, int axis = -1);
NDArray log_softmax(const Operand& x, int axis = -1);

/// The sum over the rows of -log softmax(logits)[row, label], divided by `divisor`. A divisor of 0 means the number of
/// rows, so that the result is the mean. In a pipeline the divisor is the number of rows of the whole batch, so that
/// the microbatches add up to the batch's mean. logits: (n, classes), f32 or f64; labels: (n,), i64, i32 or u8. The
/// result is a scalar. A label outside of [0, classes) gives NaN.
NDArray cross_entropy(const Operand& logits, const Operand& labels, double divisor = 0);

}  // namespace sluice
