// Losses and metrics.
#pragma once

#include "sluice/operators/loss.h"  // cross_entropy

namespace sluice {

/// How many rows of logits (n, classes) have their largest element at the label (n,) (i64, i32 or u8; the first of
/// equal elements counts): an i64 scalar. Pushes; does not wait, and is not recorded for gradients.
NDArray accuracy(const Operand& logits, const Operand& labels);

}  // namespace sluice
