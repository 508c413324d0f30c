#include "sluice/nn/module.h"

#include "sluice/autograd/gradients.h"

namespace sluice {

void Module::collect(const std::string&, std::vector<NamedParameter>&) {}

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
    if (gradient) value.set_grad(gradient.to(device));
  }
}

}  // namespace sluice
