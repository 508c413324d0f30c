#include "sluice/nn/module.h"

#include <unordered_map>
#include <unordered_set>

#include "sluice/autograd/gradients.h"
#include "sluice/engine/layer.h"

namespace sluice {

NDArray Module::call(std::string_view name, const NDArray& x) {
  if (!named_children_) {
    for (const NamedModule& child : children()) child.module->name_ = child.name;
    named_children_ = true;
  }
  const LayerScope scope(name);
  return forward(x);
}

void Module::collect(const std::string& prefix, std::vector<NamedParameter>& out) {
  for (const NamedModule& child : children()) child.module->collect(prefix + child.name + ".", out);
}

std::vector<NamedParameter> Module::parameters() {
  std::vector<NamedParameter> list;
  collect("", list);
  std::unordered_set<const Array*> seen;
  std::erase_if(
      list, [&](const NamedParameter& p) { return p.value->defined() && !seen.insert(p.value->array().get()).second; });
  return list;
}

void Module::to(Device device) {
  NoGrad no_grad;
  const detail::SharedParameters shared(*this);
  std::vector<NamedParameter> list;
  collect("", list);
  for (const NamedParameter& parameter : list) {
    NDArray& value = *parameter.value;
    if (!value.defined() || value.device() == device) continue;
    const bool wants_gradient = value.requires_grad();
    const NDArray gradient = value.grad();
    value = value.to(device);
    if (wants_gradient) value.with_grad();
    if (gradient.defined()) value.set_grad(gradient.to(device));
  }
  shared.rejoin();
}

namespace detail {

bool same_view(const NDArray& x, const NDArray& y) {
  return x.same_array(y) && x.shape() == y.shape() && x.strides() == y.strides() && x.offset() == y.offset();
}

SharedParameters::SharedParameters(Module& module) {
  std::vector<NamedParameter> list;
  module.collect("", list);
  std::unordered_map<const Array*, const NDArray*> first;
  for (const NamedParameter& p : list) {
    if (!p.value->defined()) continue;
    const auto [at, is_first] = first.try_emplace(p.value->array().get(), p.value);
    if (!is_first && at->second != p.value && same_view(*at->second, *p.value)) of_.emplace_back(p.value, at->second);
  }
}

void SharedParameters::rejoin() const {
  for (const auto& [handle, first] : of_) *handle = *first;
}

}  // namespace detail

}  // namespace sluice
