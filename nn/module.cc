#include "sluice/nn/module.h"

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
  return list;
}

void Module::to(Device device) {
  NoGrad no_grad;
  for (const NamedParameter& parameter : parameters()) {
    NDArray& value = *parameter.value;
    if (value.device() == device) continue;
    const bool wants_gradient = value.requires_grad();
    const NDArray gradient = value.grad();
    value = value.to(device);
    if (wants_gradient) value.with_grad();
    if (gradient.defined()) value.set_grad(gradient.to(device));
  }
}

}  // namespace sluice
