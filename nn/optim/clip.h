// Clipping gradients, between backward and a step.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "sluice/nn/net/net.h"

namespace sluice::nn {

namespace detail {
NDArray clip_gradients(const Contents& net, double max_norm, std::source_location where);
void clip_values(const Contents& net, double max, std::source_location where);
std::vector<std::pair<std::string, NDArray>> gradient_norms(const Contents& net, std::source_location where);
}  // namespace detail

/// Scales all gradients of the net by one number, so that their norm, as if they were one vector, is at most max_norm
/// (Pascanu et al., On the difficulty of training recurrent neural networks, 2013):
///
///   norm = sqrt(sum of g^2);  g *= min(1, max_norm / (norm + 1e-6))
///
/// Returns the norm from before, a scalar of f64 on the first gradient's device; 0 without gradients. The squares are
/// added by index of a gradient's first axis, 4,096 at a time, then in f64 over these sums and over paths: so the norm
/// has the same bits on however many devices the parameters are, and on a mesh that replicates their gradients or cuts
/// the first axis (of vectors of more than 65,536 elements not). Where other axes are cut it agrees to rounding. On a
/// mesh replicas count once, and the sums are sent to the first place. If a gradient carries an error
/// then all do afterwards, and the step is refused. A norm that is infinite or NaN makes the gradients 0 or NaN. Pushes
/// and returns. Throws ArrayError for a max_norm that is not above 0.
template <class Net>
NDArray clip_gradients(const Net& net, double max_norm, std::source_location where = std::source_location::current()) {
  return detail::clip_gradients(contents(net), max_norm, where);
}

/// Each element of each gradient is brought to [-max, max]. Throws ArrayError for a max that is not above 0.
template <class Net>
void clip_values(const Net& net, double max, std::source_location where = std::source_location::current()) {
  detail::clip_values(contents(net), max, where);
}

/// The norm of each gradient, by path: scalars of f64 on the gradients' devices. For logs; does not wait.
template <class Net>
std::vector<std::pair<std::string, NDArray>> gradient_norms(
    const Net& net, std::source_location where = std::source_location::current()) {
  return detail::gradient_norms(contents(net), where);
}

}  // namespace sluice::nn
