#include "sluice/autograd/custom.h"

#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/owner.h"

namespace sluice {
namespace autograd {
namespace {

struct CustomCall {
  const char* name;
  std::function<std::vector<NDArray>(const Saved&, const std::vector<NDArray>&)> backward;
  int results;
  bool zeros;
  std::vector<int> kept;  ///< of each saved array: its place among the saved inputs, or -1 - the result that it is
};

void custom_gradient(GradientContext& context) {
  const CustomCall& call = context.attributes().get<CustomCall>();
  Saved saved;
  for (const int at : call.kept) saved.arrays_.push_back(at < 0 ? context.output(-1 - at) : context.input(at));
  std::vector<NDArray> gradients;
  for (int i = 0; i < call.results; ++i) {
    gradients.push_back(call.zeros || context.has_gradient(i) ? context.gradient(i) : NDArray());
  }
  std::vector<NDArray> results = call.backward(saved, gradients);
  const auto count = static_cast<std::size_t>(context.inputs());
  if (results.size() != count) {
    throw ArrayError(
        call.name, context.where(),
        "its backward gave " + std::to_string(results.size()) + " gradients for " + std::to_string(count) + " inputs");
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!results[i].defined() || !context.wanted(static_cast<int>(i))) continue;
    const Spec& wanted = context.input_spec(static_cast<int>(i));
    if (!(results[i].shape() == wanted.shape) || results[i].dtype() != wanted.dtype) {
      throw ArrayError(call.name, context.where(),
                       "its backward gave " + to_string(results[i].shape()) + " " +
                           std::string(name_of(results[i].dtype())) + " for input " + std::to_string(i) + ", " +
                           to_string(wanted.shape) + " " + std::string(name_of(wanted.dtype)));
    }
    context.set(static_cast<int>(i), std::move(results[i]));
  }
}

const Operator& custom_row() {
  return detail::first_use([] {
    auto* made = new Operator();
    made->name = "custom";
    made->gradient = custom_gradient;
    made->joint_gradient = true;  // the program's function is called once
    return made;
  });
}

Ref<Version> version_of(const NDArray& x) {
  std::lock_guard lock(x.array()->mutex());
  return x.array()->version();
}

/// True if `kept`, which is no input, is the value of the result.
bool same_value(const NDArray& kept, const NDArray& result) {
  const Ref<Owner> of_kept = owner_of(kept), of_result = owner_of(result);
  if (past_of(kept).node || !of_kept != !of_result) return false;
  if (of_kept) {  // the values of their parts
    const std::vector<NDArray> a = of_kept->parts(), b = of_result->parts();
    return kept.shape() == result.shape() && std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value);
  }
  return version_of(kept) == version_of(result) && kept.shape() == result.shape() &&
         kept.strides() == result.strides() && kept.offset() == result.offset();
}

}  // namespace
}  // namespace autograd

void Saved::keep(const NDArrays& arrays, std::source_location where) {
  for (const NDArray& given : arrays) {
    given.checked("Saved::keep", where);
    const NDArray x = Rerun::seen(given);
    arrays_.push_back(x.on(detail::snapshot_of(x.array())));
  }
}

const NDArray& Saved::operator[](std::size_t i) const {
  if (i >= arrays_.size()) {
    throw ArrayError("Saved", std::source_location::current(),
                     "array " + std::to_string(i) + " of " + std::to_string(arrays_.size()) + " that were kept");
  }
  return arrays_[i];
}

std::vector<NDArray> apply_custom(const CustomFunction& function, const NDArrays& xs, std::source_location where) {
  using autograd::Past;
  if (!function.forward || !function.backward) {
    throw ArrayError(function.name, where, "a custom function without forward or without backward");
  }
  if (xs.empty()) throw ArrayError(function.name, where, "a custom function of no arrays");
  std::vector<Past> past;
  bool recorded = false;
  for (const NDArray& x : xs) {
    x.checked(function.name, where);
    past.push_back(autograd::past_of(x));
    recorded = recorded || (past.back().node && is_floating(x.dtype()));
  }
  recorded = recorded && grad_mode();
  const std::vector<NDArray> inputs(xs.begin(), xs.end());
  Saved saved;
  std::vector<NDArray> made, results;
  {
    const NoGrad scope;
    made = function.forward(saved, inputs);
    for (const NDArray& y : made) {
      y.checked(function.name, where);
      results.push_back(autograd::own_value(y, where));
    }
  }
  if (!recorded) return results;
  autograd::CustomCall call{function.name, function.backward, static_cast<int>(results.size()), function.zeros, {}};
  std::vector<NDArray> kept_inputs, kept_outputs(results.size());
  for (NDArray& kept : saved.arrays_) {
    std::size_t at = 0;
    while (at < made.size() && !autograd::same_value(kept, made[at])) ++at;
    if (at < made.size()) {
      kept_outputs[at] = autograd::own_value(results[at], where);
      call.kept.push_back(-1 - static_cast<int>(at));
    } else {
      call.kept.push_back(static_cast<int>(kept_inputs.size()));
      kept_inputs.push_back(std::move(kept));
    }
  }
  made.clear();
  saved.arrays_.clear();
  const Ref<autograd::Node> node =
      autograd::record(autograd::custom_row(), Attributes(std::move(call)), inputs, past, results, where);
  const autograd::Recomputation* const checkpointed = autograd::Recomputation::current();
  if (node->freed || (checkpointed && !checkpointed->is_again())) return results;
  node->saved_inputs = std::move(kept_inputs);
  node->saved_outputs = std::move(kept_outputs);
  return results;
}

GradientHook on_gradient(const NDArray& x, std::function<NDArray(const NDArray& gradient)> f,
                         std::source_location where) {
  x.checked("on_gradient", where);
  if (!f) throw ArrayError("on_gradient", where, "no function");
  const autograd::Past past = autograd::past_of(x);
  if (!past.node) throw ArrayError("on_gradient", where, "an array that wants no gradient");
  if (detail::is_owned_view(x)) {
    throw ArrayError("on_gradient", where, "a view of an array of an owner: the hook must be on the array itself");
  }
  std::shared_ptr<const autograd::Window> window = autograd::window_of(x);
  if (window && !autograd::shows_all_once(*window)) {
    throw ArrayError(
        "on_gradient", where,
        "a view of a part of an array, or one that repeats elements: the hook must be on the array itself");
  }
  GradientHook hook;
  hook.call_ = std::make_shared<std::function<NDArray(const NDArray&)>>(std::move(f));
  std::lock_guard lock(past.node->mutex);
  if (!past.node->hooks) past.node->hooks = std::make_unique<std::vector<autograd::Hook>>();
  past.node->hooks->push_back({past.output, hook.call_, std::move(window)});
  return hook;
}

void GradientHook::remove() {
  if (call_) *call_ = nullptr;
}

}  // namespace sluice
