// Losses.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// The sum over the rows of -log softmax(logits)[row, label], divided by `divisor`. A divisor of 0 means the number of
/// rows, so that the result is the mean. In a pipeline the divisor is the number of rows of the whole batch, so that
/// the microbatches add up to the batch's mean. logits: (n, classes), floating; labels: (n,), i64, i32 or u8. The
/// result is a scalar. A label outside of [0, classes) gives NaN.
NDArray cross_entropy(const Operand& logits, const Operand& labels, double divisor = 0);

}  // namespace sluice
