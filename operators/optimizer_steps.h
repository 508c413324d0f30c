// Optimiser steps as operators: they update weights and state in place, in one pass. They are not recorded for
// gradients.
//
// Their rows take many tensors at once. The inputs are n gradients and, if the step is gated, a gate behind them: u8,
// one element. The outputs, which are updated in place, are for each gradient the parameter and then its states:
//
//   sgd_step            w                       SgdAttributes
//   sgd_momentum_step   w, v                    SgdAttributes
//   adam_step           w, m, v                 AdamStep
//   adam_step           w, m, v, i64 scalar     AdamStep with step = 0: the scalar counts the steps that were made
//   commit              w                       none; instead of a gradient comes the new value, and i64 is taken too
//
// All gradients have one floating dtype. If the gate is not 1 the kernel writes nothing, and fails.
//
// The row `gate` makes such a gate: it reads any number of arrays, on whatever devices they are, and writes 1. If one
// of them is poisoned it is skipped as any op is, and so are those who read the gate. On a device that finds errors
// late its kernel looks, when all that it reads is there, whether a device has found one that the host did not know of.
#pragma once

#include <span>
#include <stdexcept>

#include "sluice/operators/register.h"

namespace sluice {

/// Updates w and v: d = g + weight_decay * w; v = momentum * v + d; w = w - lr * v. Pass an empty v for no momentum.
/// All arrays have one shape and floating dtype; in f16 and bf16 the step is computed in f32, and
/// each result rounded once.
void sgd_step(const NDArray& w, const NDArray& v, const Operand& gradient, double lr, double momentum,
              double weight_decay);

struct AdamStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< weight decay as in AdamW
  std::int64_t step = 1;   ///< counts from 1; 0: an array of the row counts
  static constexpr auto fields() {
    return std::array{slot<&AdamStep::lr>("lr"),
                      field<&AdamStep::beta1>("beta1"),
                      field<&AdamStep::beta2>("beta2"),
                      field<&AdamStep::eps>("eps"),
                      field<&AdamStep::weight_decay>("weight_decay"),
                      field<&AdamStep::decoupled>("decoupled"),
                      slot<&AdamStep::step>("step")};
  }
  friend bool operator==(const AdamStep&, const AdamStep&) = default;
};
/// Updates w, m (first moment) and v (second). `step.step` is at least 1.
void adam_step(const NDArray& w, const NDArray& m, const NDArray& v, const Operand& gradient, const AdamStep& step);

/// The dtypes that the row `commit` takes.
using Committed = backends::detail::Joined<backends::Floating, backends::Types<std::int64_t>>::type;

/// For kernels of the rows above: calls f(gradient, values) for each gradient, where `values` are the parameter and its
/// states. Throws, and says that nothing was written, if there is a gate and it is shut.
template <class F>
void each_step(ArrayContext& context, F&& f) {
  int gradients = context.inputs();
  if (const TensorView& last = context.input(gradients - 1); last.dtype == DType::u8) {
    if (*last.as<std::uint8_t>() != 1) {
      context.engine_context().wrote_nothing();
      throw std::runtime_error("its gate was shut");
    }
    --gradients;
  }
  const int width = context.outputs() / gradients;
  for (int i = 0; i < gradients; ++i) {
    f(context.input(i), std::span(&context.output(i * width), static_cast<std::size_t>(width)));
  }
}

}  // namespace sluice
