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

/// What one step operation keeps: its inputs are gradients (and perhaps the gate), its outputs `width` arrays for each
/// parameter.
struct StepBody {
  std::vector<KernelFunction> kernels;  ///< of each parameter
  Attributes attributes;
  std::size_t width = 1;
  bool gated = false;

  static void run(ArrayContext& context) {
    const auto& self = context.attributes<StepBody>();
    if (self.gated && *context.input(static_cast<int>(self.kernels.size())).as<std::uint8_t>() != 1) {
      context.engine_context().wrote_nothing();
      throw std::runtime_error("its gate was shut");
    }
    for (std::size_t i = 0; i < self.kernels.size(); ++i) {
      const std::span<const TensorView> values(&context.output(static_cast<int>(i * self.width)), self.width);
      const std::span<const TensorView> gradient(&context.input(static_cast<int>(i)), 1);
      ArrayContext part = context.part(gradient, values, self.attributes.data());
      self.kernels[i](part);
    }
  }
};

const Kernel* chosen_kernel(const Operator& row, const NDArray& value) {
  return row.kernel(value.device().kind, value.dtype(), KernelRankLimit::current());
}

/// The gate on a device: opens it if, when all that the step builds upon is over, the devices have found no error that
/// the host did not know of as this was issued (what is known has poisoned the gate's inputs). One kernel looks, once,
/// for all devices.
struct Latch {
  bool alone = false;  ///< the errors of the gate's own device count, no others

  static void run(ArrayContext& context) {
    Provider& provider = context.provider();
    const Device here = context.device();
    std::vector<std::uint64_t> settled;
    for (int i = 0; i < provider.devices(); ++i) {
      const Device device{here.kind, static_cast<std::uint8_t>(i)};
      const bool counts = device == here || !context.attributes<Latch>().alone;
      settled.push_back(counts ? context.engine_context().settled_errors(device) : kAny);
    }
    auto* const gate = context.output().as<std::uint8_t>();
    const MemoryUse use{gate, 1, true};
    context.stream().launch(
        [&provider, gate, known = std::move(settled)] {
          for (std::size_t i = 0; i < known.size(); ++i) {
            if (known[i] != kAny && provider.errors(static_cast<int>(i)) != known[i]) {
              throw std::runtime_error("a device had found an error before the step");
            }
          }
          *gate = 1;
        },
        {&use, 1});
  }
  static constexpr std::uint64_t kAny = ~std::uint64_t{0};
};

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
    const Kernel* kernel = chosen_kernel(row, value);
    if (!kernel) {
      throw ArrayError(row.name, where,
                       "parameter '" + name + "': no kernel for " + std::string(name_of(value.dtype())) + " on " +
                           sluice::to_string(value.device()));
    }
    kernels_.push_back(kernel->run);
    std::vector<NDArray>& states = states_.emplace_back();
    for (const StateSpec& spec : state_specs_) {
      states.push_back(spec.counter ? new_counter(value.device(), where) : zeros_like({value, where}));
    }
  }

  // On the CPU a few operations run at once. On a device one is issued as a whole or not at all.
  const std::size_t few = gate ? 32 / (1 + state_specs_.size()) : 1;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NDArray& value = parameters_[i].value;
    const Device device = value.device();
    const bool issues = chosen_kernel(row, value)->issues;
    const std::size_t most = gate && device.kind != DeviceKind::cpu ? parameters_.size() : few;
    auto open = std::find_if(groups_.rbegin(), groups_.rend(),
                             [&](const Group& g) { return g.device == device && g.issues == issues; });
    if (open == groups_.rend() || open->members.size() == most) {
      groups_.push_back({device, issues, {}});
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
    Group with_gradient{group.device, group.issues, {}};
    for (std::size_t i : group.members) {
      const auto& [name, value] = parameters_[i];
      const NDArray gradient = value.grad();
      if (!gradient) continue;
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
    if (gate) current_scope().cancel = nullptr;  // until this returns: who cancels the gate cancels all, or else none
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
  const bool late = device.kind != DeviceKind::cpu;
  const std::byte shut{0};
  const NDArray gate = detail::host_array({&shut, 1}, {1}, DType::u8, device);
  ArrayPush push;
  push.body = late ? Latch::run : [](ArrayContext& context) { *context.output().as<std::uint8_t>() = 1; };
  const Attributes latch(Latch{!gate_});
  if (late) push.attributes = &latch;
  push.inputs = inputs;
  push.outputs = std::span(&gate, 1);
  push.issues = late;
  push.options.name = "gate";
  push.options.on = device;
  push.where = where;
  push_arrays(push);
  return gate;
}

/// `alone`: no other operation steps behind the same gate.
void Optimizer::push_step(const Group& group, const NDArray& gate, bool alone, const Attributes& attributes,
                          std::source_location where) {
  StepBody body;
  body.attributes = attributes;
  body.width = 1 + state_specs_.size();
  body.gated = static_cast<bool>(gate);
  std::vector<NDArray> outputs;
  for (std::size_t i : group.members) {
    body.kernels.push_back(kernels_[i]);
    outputs.push_back(parameters_[i].value);
    outputs.insert(outputs.end(), states_[i].begin(), states_[i].end());
  }
  std::vector<const NDArray*> inputs;
  for (const NDArray& gradient : group.gradients) inputs.push_back(&gradient);
  if (gate) inputs.push_back(&gate);

  ArrayPush push;
  push.body = StepBody::run;
  const Attributes closure(std::move(body));
  push.attributes = &closure;
  push.inputs = inputs;
  push.outputs = outputs;
  push.updates_all = true;
  push.elementwise = true;
  push.dense_inputs = push.dense_outputs = true;
  push.issues = group.issues;
  // Behind the gate the other devices' kernels are on their way.
  push.tries = 3;
  push.torn_unissued = !alone;
  push.options.name = row_.name;
  push.options.on = group.device;
  push.where = where;
  push_arrays(push);
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
