#include "sluice/nn/optimizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/push.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"

namespace sluice {
namespace {

/// What one step operation keeps: its inputs are gradients (and perhaps the gate), its outputs `width` arrays for each
/// parameter.
template <class Rule>
struct StepBody {
  std::shared_ptr<const Rule> rule;
  std::vector<KernelFunction> kernels;  ///< of each parameter
  std::size_t width;

  static void run(ArrayContext& context) {
    const auto& self = context.attributes<StepBody>();
    for (std::size_t i = 0; i < self.kernels.size(); ++i) {
      const std::span<const TensorView> values(&context.output(static_cast<int>(i * self.width)), self.width);
      (*self.rule)(self.kernels[i], context.input(static_cast<int>(i)), values, context.engine_context());
    }
  }
};

/// A counter in host memory, which an operation on any device counts up when it is issued.
NDArray new_counter() {
  const std::int64_t zero = 0;
  return from_bytes(std::as_bytes(std::span(&zero, 1)), {}, DType::i64, cpu(0));
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
    const Kernel* kernel = row.kernel(value.device().kind, value.dtype());
    if (!kernel) {
      throw ArrayError(row.name, where,
                       "parameter '" + name + "': no kernel for " + std::string(name_of(value.dtype())) + " on " +
                           sluice::to_string(value.device()));
    }
    kernels_.push_back(kernel->run);
    std::vector<NDArray>& states = states_.emplace_back();
    for (const StateSpec& spec : state_specs_) {
      states.push_back(spec.counter ? new_counter() : zeros_like({value, where}));
    }
  }

  // A push says in a word of 32 bits which of its outputs it also reads: so many parameters fit one operation.
  const std::size_t most = gate ? 32 / (1 + state_specs_.size()) : 1;
  std::map<std::pair<DeviceKind, int>, std::size_t> open;  // the device's last group
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Device device = parameters_[i].value.device();
    auto [it, fresh] = open.try_emplace({device.kind, device.index}, groups_.size());
    if (!fresh && groups_[it->second].size() == most) {
      it->second = groups_.size();
      fresh = true;
    }
    if (fresh) groups_.emplace_back();
    groups_[it->second].push_back(i);
  }
}

void Optimizer::step(std::source_location where) {
  NoGrad no_grad;
  std::vector<std::vector<std::size_t>> members;  // of each group: parameters with a gradient
  for (const std::vector<std::size_t>& group : groups_) {
    std::vector<std::size_t>& with_gradient = members.emplace_back();
    for (std::size_t i : group) {
      const auto& [name, value] = parameters_[i];
      const NDArray gradient = value.grad();
      if (!gradient) continue;
      if (gradient.shape() != value.shape() || gradient.dtype() != value.dtype()) {
        throw ArrayError(row_.name, where,
                         "parameter '" + name + "' is " + std::string(name_of(value.dtype())) + " " +
                             sluice::to_string(value.shape()) + ", its gradient " +
                             std::string(name_of(gradient.dtype())) + " " + sluice::to_string(gradient.shape()));
      }
      with_gradient.push_back(i);
    }
    if (with_gradient.empty()) members.pop_back();
  }
  // One operation that reads all gradients is a gate by itself: it runs or is skipped as a whole.
  const NDArray gate = gate_ && members.size() > 1 ? push_gate(where) : NDArray();
  if (gate) current_scope().cancel = nullptr;  // until this returns: who cancels the gate cancels all, or else none
  const auto rule = std::make_shared<const Rule>(this->rule());
  for (const std::vector<std::size_t>& group : members) push_step(group, gate, rule, where);
  zero_grad();
}

/// An array of one byte that is written if all gradients and parameters are good; else it is poisoned, and so are those
/// who read it.
NDArray Optimizer::push_gate(std::source_location where) const {
  std::vector<NDArray> gradients;
  std::vector<const NDArray*> inputs;
  gradients.reserve(parameters_.size());
  for (const NamedArray& parameter : parameters_) {
    if (NDArray gradient = parameter.value.grad()) inputs.push_back(&gradients.emplace_back(std::move(gradient)));
    inputs.push_back(&parameter.value);
  }
  const NDArray gate = empty({1}, DType::u8, cpu(0));
  ArrayPush push;
  push.body = [](ArrayContext& context) { *context.output().as<std::uint8_t>() = 1; };
  push.inputs = inputs;
  push.outputs = std::span(&gate, 1);
  push.options.name = "gate";
  push.where = where;
  push_arrays(push);
  return gate;
}

void Optimizer::push_step(std::span<const std::size_t> members, const NDArray& gate,
                          const std::shared_ptr<const Rule>& rule, std::source_location where) {
  auto body = std::make_shared<StepBody<Rule>>();
  body->rule = rule;
  body->width = 1 + state_specs_.size();
  std::vector<NDArray> gradients, outputs;
  for (std::size_t i : members) {
    const NDArray& value = parameters_[i].value;
    body->kernels.push_back(kernels_[i]);
    gradients.push_back(value.grad());
    outputs.push_back(value);
    outputs.insert(outputs.end(), states_[i].begin(), states_[i].end());
  }
  std::vector<const NDArray*> inputs;
  for (const NDArray& gradient : gradients) inputs.push_back(&gradient);
  if (gate) inputs.push_back(&gate);

  ArrayPush push;
  push.body = StepBody<Rule>::run;
  push.closure = std::move(body);
  push.inputs = inputs;
  push.outputs = outputs;
  push.updates = static_cast<std::uint32_t>((std::uint64_t{1} << outputs.size()) - 1);
  push.elementwise = true;
  push.dense_inputs = push.dense_outputs = true;
  push.options.name = row_.name;
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

Optimizer::Rule Sgd::rule() const {
  return [attributes = SgdAttributes{lr(), options_.momentum, options_.weight_decay}](
             KernelFunction kernel, const TensorView& gradient, std::span<const TensorView> values, Context& context) {
    ArrayContext arguments(std::span(&gradient, 1), values, &attributes, &context);
    kernel(arguments);
  };
}

Adam::Adam(const ParameterList& parameters, const AdamOptions& options, std::source_location where)
    : Optimizer(Registry::instance().get("adam_step"), parameters,
                {{"exp_avg", false}, {"exp_avg_sq", false}, {"step", true}}, options.lr, options.gate, where),
      options_(options) {}

Optimizer::Rule Adam::rule() const {
  const AdamStep pushed{.lr = lr(),
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .eps = options_.eps,
                        .weight_decay = options_.weight_decay,
                        .decoupled = options_.decoupled,
                        .step = 0};
  return [pushed](KernelFunction kernel, const TensorView& gradient, std::span<const TensorView> values,
                  Context& context) {
    AdamStep attributes = pushed;
    attributes.step = *values.back().as<std::int64_t>() += 1;
    ArrayContext arguments(std::span(&gradient, 1), values.first(3), &attributes, &context);
    kernel(arguments);
  };
}

}  // namespace sluice
