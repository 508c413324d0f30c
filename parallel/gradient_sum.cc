#include "sluice/parallel/gradient_sum.h"

#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/operators/operators.h"

namespace sluice::parallel::detail {

std::vector<bool> stages_with_sums(const Schedule& schedule) {
  std::vector<bool> apart(static_cast<std::size_t>(schedule.stages), !is_in_order(schedule.sum));
  std::vector<int> next(apart.size());
  for (const auto& actions : schedule.per_device) {
    for (const Action& a : actions) {
      const auto s = static_cast<std::size_t>(a.stage);
      if (gives(a.kind, Result::weight_gradient) && a.microbatch != next[s]++) apart[s] = true;
    }
  }
  return apart;
}

GradientSum::GradientSum(const SumTree& tree, int microbatches, std::vector<NDArray> leaves)
    : sums_(tree, microbatches),
      first_(tree.empty() ? 0 : tree.postfix.front()),
      left_(microbatches),
      of_(static_cast<std::size_t>(microbatches)),
      leaves_(std::move(leaves)) {
  for (const NDArray& leaf : leaves_) {
    before_.push_back(leaf.grad());
    leaf.zero_grad();
  }
}

void GradientSum::take_from_leaves(int microbatch) {
  Gradients here;
  for (const NDArray& leaf : leaves_) {
    here.push_back(leaf.grad());
    leaf.zero_grad();
  }
  take(microbatch, std::move(here));
}

void GradientSum::take(int microbatch, Gradients gradients) {
  const NoGrad no_grad;
  Gradients& here = of_[static_cast<std::size_t>(microbatch)];
  here = std::move(gradients);
  if (microbatch == first_) add(here, before_);
  int whole = microbatch;
  sums_.arrive(microbatch, [&](int to, int from) {
    Gradients terms = std::exchange(of_[static_cast<std::size_t>(from)], {});
    add(of_[static_cast<std::size_t>(to)], terms);
    whole = to;
  });
  if (--left_ > 0) return;
  const Gradients& sum = of_[static_cast<std::size_t>(whole)];
  for (std::size_t i = 0; i < leaves_.size(); ++i) leaves_[i].set_grad(sum[i]);
}

void GradientSum::add(Gradients& to, const Gradients& terms) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (!terms[i].defined()) continue;
    to[i] = to[i].defined() ? to[i] + terms[i] : terms[i];
  }
}

}  // namespace sluice::parallel::detail
