// What nn::save and nn::load ask of an optimiser.
#include <algorithm>
#include <utility>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/nn/optim/optimizer.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/infer.h"

namespace sluice::nn {

std::map<std::string, Spec> Optimizer::kept_by_rule(const One& one) const {
  std::map<std::string, Spec> specs;
  const State& state = *one.parameter.state;
  const Spec of = state.value.defined() ? state.value.spec() : Spec{state.shape, DType::f32, current_scope().device};
  (void)shapes_of([&] {
    const NoGrad off;
    const DeviceScope scope(of.device);
    Kept kept;
    Target target(zeros(of.shape, of.dtype));
    Update update(target, zeros(of.shape, of.dtype), 0, kept);
    rules_[one.rule].rule(update);
    for (const auto& [name, kept_target] : kept) specs.emplace(name, kept_target.array().spec());
  });
  return specs;
}

std::vector<SavedArray> Optimizer::saved_arrays() const {
  std::vector<SavedArray> list;
  for (const One& one : list_) {
    for (const auto& [name, target] : one.kept) list.push_back({one.parameter.name + "." + name, target.array()});
  }
  return list;
}

std::vector<std::string> Optimizer::load_arrays(const std::vector<SavedArray>& arrays, bool check_only) {
  std::map<std::string, NDArray> left;
  for (const SavedArray& array : arrays) left.emplace(array.name, array.value);
  std::vector<std::string> wrong;
  std::vector<Kept> loaded(list_.size());
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const One& one = list_[i];
    if (one.parameter.state->frozen) continue;
    std::vector<std::string> missing;
    for (const auto& [name, spec] : kept_by_rule(one)) {
      const auto at = left.find(one.parameter.name + "." + name);
      if (at == left.end()) {
        missing.push_back(one.parameter.name + "." + name);
        continue;
      }
      const NDArray& array = at->second;
      const bool known = one.parameter.state->value.defined();  // a net without values takes the file's dtypes
      if (!(array.shape() == spec.shape) || (known && array.dtype() != spec.dtype)) {
        wrong.push_back("'" + at->first + "' is " + std::string(name_of(array.dtype())) + " " +
                        to_string(array.shape()) + ", wanted " + std::string(name_of(spec.dtype)) + " " +
                        to_string(spec.shape));
      } else if (!check_only) {
        const NDArray there = array.to(spec.device);
        loaded[i].emplace(name, Target(there.same_array(array) ? array.copy() : there));
      }
      left.erase(at);
    }
    // A parameter that never had a gradient has nothing.
    const std::string prefix = one.parameter.name + ".";
    const bool some = std::any_of(arrays.begin(), arrays.end(), [&](const SavedArray& a) {
      return a.name.starts_with(prefix) && a.name.find('.', prefix.size()) == std::string::npos;
    });
    if (some) {
      for (const std::string& name : missing) wrong.push_back("no tensor '" + name + "'");
    }
  }
  for (const auto& [name, array] : left) wrong.push_back("'" + name + "' is not expected");
  if (check_only || !wrong.empty()) return wrong;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    list_[i].kept = std::move(loaded[i]);
    list_[i].made = {};
  }
  return wrong;
}

void Optimizer::set_counts(const std::map<std::string, std::int64_t>& counts) {
  const auto steps = counts.find("steps");
  if (counts.size() != 1 || steps == counts.end() || steps->second < 0) {
    throw UsageError("[nn::Optimizer] its counts are {\"steps\", a number from 0}");
  }
  steps_ = steps->second;
}

}  // namespace sluice::nn
