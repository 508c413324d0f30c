// Gradients. Operators on with_grad() arrays are recorded on a tape; these functions run it backwards.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/ndarray/grad_mode.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/operators/registry.h"

namespace sluice {

/// Adds to the .grad() of the leaves the gradients of the sum over i of <roots[i], gradients[i]>. gradients[i] has the
/// shape and dtype of roots[i]; an empty handle counts as 1 for a root with one element. The gradient of an array that
/// is used several times is ((g1 + g2) + g3), where g1 belongs to the use that the program makes first. Beyond 16 uses
/// the last 16 are added first, and their sum stands as the last term: of 20 uses, ((((g1 + g2) + g3) + g4) + s), where
/// s is the sum of g5 to g20. The sum is then added into .grad() in the order of pushes. Frees the tape unless
/// the options say otherwise. Pushes and returns; does not wait. Throws ArrayError for a root without history, a tape
/// that was freed before, and shapes that differ. Several threads may run backward on separate graphs at once.
void backward(const NDArrays& roots, const NDArrays& gradients, const BackwardOptions& options = {},
              std::source_location where = std::source_location::current());

struct GradOptions {
  bool create_graph = false;  ///< the gradients are recorded themselves, and can be differentiated; keeps the tape
  bool retain = false;        ///< keeps the tape, for another pass
};
/// Returns the gradients of `y`'s only element with respect to each of `xs`, which are leaves or results on the way to
/// y. It does not change .grad(). The result is an empty handle for an x that y does not depend on. Frees the tape
/// unless the options say otherwise.
std::vector<NDArray> grad(const NDArray& y, const NDArrays& xs, const GradOptions& options = {},
                          std::source_location where = std::source_location::current());
/// The same for <roots, gradients> as in backward().
std::vector<NDArray> grad(const NDArrays& roots, const NDArrays& gradients, const NDArrays& xs,
                          const GradOptions& options = {},
                          std::source_location where = std::source_location::current());

}  // namespace sluice
