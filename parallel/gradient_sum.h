// The sum of microbatches' gradients by a schedule's tree, while the pipeline pushes them. Internal to parallel/.
#pragma once

#include <vector>

#include "sluice/ndarray/nd_array.h"
#include "sluice/schedule/action_lists.h"

namespace sluice::parallel::detail {

/// True for each stage whose weight gradients come in another order than that in which they are to be added.
std::vector<bool> stages_with_sums(const Schedule& schedule);

/// Adds the gradients of some leaves by a tree: each microbatch's apart from the others, each addition as soon as both
/// of its operands are pushed. What the gradients were before is added to the tree's first microbatch.
class GradientSum {
 public:
  using Gradients = std::vector<NDArray>;

  /// The tree must pass check() for so many microbatches. The leaves have no .grad() from now on until all is added.
  GradientSum(const SumTree& tree, int microbatches, std::vector<NDArray> leaves);
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  /// The microbatch's gradients are those that the leaves have now.
  void take_from_leaves(int microbatch);
  /// One for each leaf; an empty handle is none. Once for each microbatch.
  void take(int microbatch, Gradients gradients);

 private:
  static void add(Gradients& to, const Gradients& terms);

  PartialSums sums_;
  int first_;
  int left_;
  std::vector<Gradients> of_;  ///< for each sum, known by a microbatch in it, the gradient of each leaf
  Gradients leaves_, before_;
};

}  // namespace sluice::parallel::detail
