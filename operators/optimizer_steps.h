// Optimiser steps as operators: they update weights and state in place, in one pass. They are not recorded for
// gradients.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

/// Updates w and v: d = g + weight_decay * w; v = momentum * v + d; w = w - lr * v. Pass an empty v for no momentum.
/// All arrays have one shape and floating dtype; in f16 and bf16 the step is computed in f32, and
/// each result rounded once.
void sgd_step(const NDArray& w, const NDArray& v, const Operand& gradient, double lr, double momentum,
              double weight_decay);

struct AdamStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< weight decay as in AdamW
  std::int64_t step = 1;   ///< counts from 1
  friend bool operator==(const AdamStep&, const AdamStep&) = default;
};
/// Updates w, m (first moment) and v (second).
void adam_step(const NDArray& w, const NDArray& m, const NDArray& v, const Operand& gradient, const AdamStep& step);

/// Adds `terms` to target, one after another in their order. All arrays have one shape and dtype.
void accumulate(const NDArray& target, std::span<const NDArray> terms,
                std::source_location where = std::source_location::current());
/// The sum of the terms in their order.
NDArray add_n(std::span<const NDArray> terms, std::source_location where = std::source_location::current());

}  // namespace sluice
