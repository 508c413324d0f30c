// Clipping gradients by their common norm.
#pragma once

#include <source_location>

#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/optimizer.h"

namespace sluice {

/// Scales the gradients of all parameters by one number, so that their norm, as if they were one vector, is at most
/// max_norm (Pascanu et al., On the difficulty of training recurrent neural networks, 2013):
///
///   norm = sqrt(sum over the parameters of sum(g^2));    g *= min(1, max_norm / (norm + 1e-6))
///
/// Returns the norm from before, a scalar on the first gradient's device; print or read it only where that may wait.
/// Parameters without a gradient are left out; without any gradient the norm is 0. The sum is in the order of the
/// parameters, f32 or wider, so it has the same bits on however many devices they are. Every gradient must be there
/// before the first is scaled: in a pipeline this is where a step's overlap ends. If a gradient carries an error then
/// all do afterwards, and the optimiser's gate skips the step; a norm that is infinite or NaN makes the gradients 0 or
/// NaN (AnomalyScope finds out where it came from). Pushes and returns. Throws ArrayError for max_norm that is not
/// above 0, and for gradients on devices without kernels of these operators.
NDArray clip_gradients(const ParameterList& parameters, double max_norm,
                       std::source_location where = std::source_location::current());

}  // namespace sluice
