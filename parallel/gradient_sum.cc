#include "sluice/parallel/gradient_sum.h"

#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/operators/operators.h"

namespace sluice::parallel::detail {

GradientsBefore::GradientsBefore(const std::vector<nn::Named>& slots) {
  const NoGrad no_grad;
  for (const nn::Named& slot : slots) {
    const NDArray& value = slot.state->value;
    if (slot.state->kind != nn::Kind::parameter || !value.defined() || !value.requires_grad()) continue;
    const NDArray gradient = value.grad();
    list_.push_back({slot.state, gradient.defined() ? gradient.copy() : gradient});
  }
}

GradientsBefore::~GradientsBefore() {
  for (const One& one : list_) {
    try {
      one.state->value.set_grad(one.gradient);
    } catch (...) {  // it is another array by now, or there is no memory: then it has no gradient
      one.state->value.zero_grad();
    }
  }
}

void GradientsBefore::forget(const std::unordered_set<const nn::State*>& stepped) {
  std::erase_if(list_, [&](const One& one) { return stepped.contains(one.state.get()); });
}

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

GradientSum::~GradientSum() {
  for (std::size_t i = 0; left_ > 0 && i < leaves_.size(); ++i) leaves_[i].set_grad(before_[i]);
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
