#include "sluice/nn/optimizer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/push.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"

namespace sluice {
namespace {

/// Arrays that one operation of a gated step changes on the CPU: there a few operations run at once.
constexpr std::size_t kArraysOfAnOperation = 32;

/// Counts steps, on the parameter's device.
NDArray new_counter(Device device, const std::source_location& where) {
  const DeviceScope scope(device);
  return zeros({}, DType::i64, where);
}

}  // namespace

ParameterList::ParameterList(std::initializer_list<NDArray> arrays) {
  for (const NDArray& array : arrays) arrays_.push_back({std::to_string(arrays_.size()), array});
}

ParameterList::ParameterList(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& p : parameters) arrays_.push_back({p.name, *p.value});
}

Optimizer::Optimizer(const Operator& row, const ParameterList& parameters, std::vector<StateSpec> state, double lr,
                     bool gate, std::source_location where)
    : row_(row), parameters_(parameters.arrays()), state_specs_(std::move(state)), lr_(lr), gate_(gate) {
  NoGrad no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, value] = parameters_[i];
    value.checked(row.name, where);
    if (!value.requires_grad()) throw ArrayError(row.name, where, "parameter '" + name + "' wants no gradient");
    for (std::size_t j = 0; j < i; ++j) {
      if (value.same_array(parameters_[j].value)) {
        throw ArrayError(row.name, where, "parameters '" + parameters_[j].name + "' and '" + name + "' are one array");
      }
    }
    if (!row.kernel(value.device().kind, value.dtype(), KernelRankLimit::current())) {
      throw ArrayError(row.name, where,
                       "parameter '" + name + "': no kernel for " + std::string(name_of(value.dtype())) + " on " +
                           sluice::to_string(value.device()));
    }
    std::vector<NDArray>& states = states_.emplace_back();
    for (const StateSpec& spec : state_specs_) {
      states.push_back(spec.counter ? new_counter(value.device(), where) : zeros_like({value, where}));
    }
  }

  // On a device one operation is issued as a whole or not at all.
  const std::size_t few = gate ? kArraysOfAnOperation / (1 + state_specs_.size()) : 1;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NDArray& value = parameters_[i].value;
    const Device device = value.device();
    const DType dtype = value.dtype();
    const std::size_t most = gate && device.kind != DeviceKind::cpu ? parameters_.size() : few;
    auto open = std::find_if(groups_.rbegin(), groups_.rend(),
                             [&](const Group& g) { return g.device == device && g.dtype == dtype; });
    if (open == groups_.rend() || open->members.size() == most) {
      groups_.push_back({device, dtype, {}});
      open = groups_.rbegin();
    }
    open->members.push_back(i);
  }
}

void Optimizer::step(std::source_location where) {
  NoGrad no_grad;
  std::vector<Group> groups;  // with the parameters that have a gradient
  Device late = cpu(0);       // a device that finds errors late
  for (const Group& group : groups_) {
    Group with_gradient{group.device, group.dtype, {}};
    for (std::size_t i : group.members) {
      const auto& [name, value] = parameters_[i];
      const NDArray gradient = value.grad();
      if (!gradient.defined()) continue;
      if (gradient.shape() != value.shape() || gradient.dtype() != value.dtype()) {
        throw ArrayError(row_.name, where,
                         "parameter '" + name + "' is " + std::string(name_of(value.dtype())) + " " +
                             sluice::to_string(value.shape()) + ", its gradient " +
                             std::string(name_of(gradient.dtype())) + " " + sluice::to_string(gradient.shape()));
      }
      with_gradient.members.push_back(i);
      with_gradient.gradients.push_back(gradient);
    }
    if (with_gradient.members.empty()) continue;
    if (late.kind == DeviceKind::cpu) late = group.device;
    groups.push_back(std::move(with_gradient));
  }
  // What fails before the gate shows there: so the copies that writing to held weights needs come first, and those of
  // gradients that are not dense.
  for (Group& group : groups) {
    for (std::size_t i : group.members) {
      copy_held_values({&parameters_[i].value, 1}, where);
      copy_held_values(states_[i], where);
    }
    if (!gate_) continue;
    for (NDArray& gradient : group.gradients) gradient = gradient.contiguous(where);
  }
  const Attributes attributes = this->attributes();
  if (gate_) {
    // One operation of the host that reads all gradients is a gate by itself: it runs or is skipped as a whole.
    const bool own_gate = groups.size() > 1 || late.kind != DeviceKind::cpu;
    const NDArray gate = own_gate ? push_gate(groups, late, where) : NDArray();
    if (gate.defined())
      current_scope().cancel = nullptr;  // until this returns: who cancels the gate cancels all, or else none
    for (const Group& group : groups) push_step(group, gate, groups.size() == 1, attributes, where);
  } else {
    for (const Group& group : groups) {
      const bool own_gate = group.device.kind != DeviceKind::cpu;
      push_step(group, own_gate ? push_gate({&group, 1}, group.device, where) : NDArray(), true, attributes, where);
    }
  }
  zero_grad();
}

/// An array of one byte that is 1 if all gradients, parameters and states are good; else it is poisoned, and so are
/// those who read it. On a device that finds errors late they may be reading it by then: they read 0.
NDArray Optimizer::push_gate(std::span<const Group> groups, Device device, std::source_location where) const {
  std::vector<const NDArray*> inputs;
  for (const Group& group : groups) {
    for (const NDArray& gradient : group.gradients) inputs.push_back(&gradient);
    for (std::size_t i : group.members) {
      inputs.push_back(&parameters_[i].value);
      for (const NDArray& state : states_[i]) inputs.push_back(&state);
    }
  }
  const std::byte shut{0};
  const NDArray gate = detail::host_array({&shut, 1}, {1}, DType::u8, device);
  static const Operator& row = Registry::instance().get("gate");
  apply_into(row, inputs, GateAttributes{!gate_},
             {.where = where, .into = std::span(&gate, 1), .on = gate.device(), .lane = device});
  return gate;
}

/// `alone`: no other operation steps behind the same gate.
void Optimizer::push_step(const Group& group, const NDArray& gate, bool alone, const Attributes& attributes,
                          std::source_location where) {
  std::vector<NDArray> values;
  for (std::size_t i : group.members) {
    values.push_back(parameters_[i].value);
    values.insert(values.end(), states_[i].begin(), states_[i].end());
  }
  std::vector<const NDArray*> inputs;
  for (const NDArray& gradient : group.gradients) inputs.push_back(&gradient);
  if (gate.defined()) inputs.push_back(&gate);
  // Behind the gate the other devices' kernels are on their way.
  apply_into(row_, inputs, attributes,
             {.where = where,
              .into = values,
              .updates = Updates::all(),
              .on = group.device,
              .tries = 3,
              .torn_unissued = !alone});
}

void Optimizer::zero_grad() {
  for (const NamedArray& parameter : parameters_) parameter.value.zero_grad();
}

void Optimizer::recover(std::source_location where) {
  const auto heal = [&](const NDArray& x) { x.engine().recover(x, where); };
  for (const NamedArray& parameter : parameters_) heal(parameter.value);
  for (const std::vector<NDArray>& states : states_) std::for_each(states.begin(), states.end(), heal);
  zero_grad();
}

std::vector<NamedArray> Optimizer::state() const {
  std::vector<NamedArray> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t k = 0; k < state_specs_.size(); ++k) {
      list.push_back({parameters_[i].name + "." + state_specs_[k].name, states_[i][k]});
    }
  }
  return list;
}

Sgd::Sgd(const ParameterList& parameters, const SgdOptions& options, std::source_location where)
    : Optimizer(Registry::instance().get(options.momentum == 0 ? "sgd_step" : "sgd_momentum_step"), parameters,
                options.momentum == 0 ? std::vector<StateSpec>{} : std::vector<StateSpec>{{"momentum", false}},
                options.lr, options.gate, where),
      options_(options) {}

Attributes Sgd::attributes() const { return SgdAttributes{lr(), options_.momentum, options_.weight_decay}; }

Adam::Adam(const ParameterList& parameters, const AdamOptions& options, std::source_location where)
    : Optimizer(Registry::instance().get("adam_step"), parameters,
                {{"exp_avg", false}, {"exp_avg_sq", false}, {"step", true}}, options.lr, options.gate, where),
      options_(options) {}

Attributes Adam::attributes() const {
  return AdamStep{.lr = lr(),
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = options_.weight_decay,
                  .decoupled = options_.decoupled,
                  .step = 0};  // the kernel counts
}

}  // namespace sluice
