// Reductions over axes, and what is made of them. Axes may be negative; no axes means all of them.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// Sums over `axes` (f32 f64 i32 i64), by a fixed tree: the same bits on any number of threads. The axes go away, or
/// with `keep` stay with size 1. The sum of nothing is 0.
NDArray sum(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The mean, f32 and f64. Of nothing: NaN.
NDArray mean(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The largest element (f32 f64 i32 i64); NaN wins. ArrayError where nothing is reduced over. Equal largest elements:
/// the gradient goes to the first.
NDArray max(const Operand& x, const Dims& axes = {}, bool keep = false);
/// The index (i64) of the first largest element along one axis, which goes away, or stays with size 1.
NDArray argmax(const Operand& x, int axis = -1, bool keep = false);
/// Sums over axes that broadcasting had added or widened, so that the result has `shape`.
NDArray sum_to(const Operand& x, const Dims& shape);

/// Over one axis, f32 and f64, safe against overflow.
NDArray softmax(const Operand& x, int axis = -1);
NDArray log_softmax(const Operand& x, int axis = -1);

/// Sum over the rows of -log softmax(logits)[row, label] divided by `divisor` (0: the number of rows, so the mean; in a
/// pipeline: the whole batch's rows, so that microbatches add up to the batch's mean). logits: (n, classes), f32 or
/// f64; labels: (n,), i64, i32 or u8. The result is a scalar. A label outside of [0, classes) gives NaN.
NDArray cross_entropy(const Operand& logits, const Operand& labels, double divisor = 0);

}  // namespace sluice
