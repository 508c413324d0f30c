// The path of every operator: checks, shapes, recording, push.
#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <optional>

#include "sluice/ndarray/check_device.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/interpreter.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/compose.h"
#include "sluice/operators/infer.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/registry.h"

namespace sluice {
namespace {

thread_local int rank_limit = 1 << 30;
std::atomic<detail::Recorder*> tape_recorder{nullptr};

/// True if one of them is an owner's.
bool check_inputs(const Operator& op, std::span<const NDArray* const> inputs, const ApplyOptions& options,
                  const std::source_location& where) {
  detail::check_count(op, inputs.size(), where);
  bool owned = false;
  for (const NDArray* x : inputs) {
    const Array& array = x->present(op.name, where);
    if (array.kind() != Array::Kind::memory) [[unlikely]]
      owned |= x->checked(op.name, where).kind() == Array::Kind::owned;
    const Device device = array.device();
    if (!options.on.given && !(device == inputs[0]->device())) {
      detail::refuse_devices(op, inputs[0]->device(), device, where);
    }
  }
  return owned;
}

/// True if it is an owner's.
bool check_target(const Operator& op, const NDArray& target, const Spec& wanted, const std::source_location& where) {
  const Array& array = target.checked(op.name, where);
  if (!(target.shape() == wanted.shape) || target.dtype() != wanted.dtype) {
    throw ArrayError(op.name, where,
                     to_string(wanted.shape) + " " + std::string(name_of(wanted.dtype)) + " does not fit the target " +
                         to_string(target.shape()) + " " + std::string(name_of(target.dtype())));
  }
  if (!(array.device() == wanted.device)) {
    throw ArrayError(op.name, where,
                     "a target on " + to_string(array.device()) + ", inputs on " + to_string(wanted.device));
  }
  return array.kind() == Array::Kind::owned;
}

/// The inputs as an elementwise kernel sees them: broadcast, with strides of 0.
struct Widened {
  std::vector<NDArray> arrays;
  std::vector<const NDArray*> pointers;

  Widened(std::span<const NDArray* const> inputs, const Dims& shape, const std::source_location& where) {
    arrays.reserve(inputs.size());
    for (const NDArray* x : inputs) {
      pointers.push_back(x->shape() == shape ? x : &arrays.emplace_back(x->broadcast_to(shape, where)));
    }
  }
};

}  // namespace

int KernelRankLimit::current() { return rank_limit; }
KernelRankLimit::KernelRankLimit(int max_rank) : saved_(rank_limit) { rank_limit = max_rank; }
KernelRankLimit::~KernelRankLimit() { rank_limit = saved_; }

void detail::set_recorder(Recorder* r) { tape_recorder.store(r, std::memory_order_release); }

namespace {

using Made = ShortList<NDArray, 1>;

/// New arrays are put into `made`. `promised` are the specs that an interpreter's caller was told; null: there is none.
void apply_row(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
               const ApplyOptions& options, Made& made, const std::span<const Spec>* promised = nullptr);

/// Makes the call by way of the thread's interpreters.
void interpret_row(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                   const ApplyOptions& options, std::span<const Spec> specs, const std::source_location& where,
                   Made& made) {
  struct Outside final : detail::Proceed {
    const Operator& op;
    const ApplyOptions& options;
    Outside(const Operator& of, const ApplyOptions& with) : op(of), options(with) {}
    std::vector<NDArray> operator()(std::span<const NDArray* const> given, const Attributes& with,
                                    std::span<const Spec> promised) override {
      Made made;
      apply_row(op, given, with, options, made, &promised);
      return {std::make_move_iterator(made.begin()), std::make_move_iterator(made.end())};
    }
  } outside(op, options);
  std::vector<NDArray> results =
      detail::interpret(op, inputs, attributes, options.into, options.updates, specs, where, outside);
  if (!options.into.empty()) return;
  for (NDArray& y : results) made.emplace_back(std::move(y));
}

/// Records a call that `ask` makes of other calls.
void record_made(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                 std::span<const NDArray> targets, const Updates& updates, const std::source_location& where,
                 const std::function<std::vector<NDArray>()>& ask, Made& made) {
  const ScopeGuard scope;
  current_scope().where = where;
  const detail::Recorder* const recorder = tape_recorder.load(std::memory_order_acquire);
  for (NDArray& y : recorder ? recorder->owned(op, inputs, attributes, targets, updates, where, ask) : ask()) {
    made.emplace_back(std::move(y));
  }
}

/// Has the owner of an operand make the call, and records it.
void ask_owner(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
               const ApplyOptions& options, std::span<const Spec> specs, const std::source_location& where,
               Made& made) {
  const auto ask = [&] {
    std::vector<NDArray> results =
        detail::ask_owner(op, inputs, attributes, options.into, options.updates, specs, where);
    if (!options.into.empty()) results.clear();
    return results;
  };
  record_made(op, inputs, attributes, options.into, options.updates, where, std::ref(ask), made);
}

/// Makes the call of other rows, apart from its targets, and records it as one of the row. All of that is of the values
/// that the operands have at one instant, whoever writes them meanwhile.
void compose_row(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                 const ApplyOptions& options, const std::source_location& where, Made& made) {
  const std::vector<NDArray> values = detail::values_now(inputs);
  std::vector<const NDArray*> operands;
  for (const NDArray& x : values) operands.push_back(&x);
  const auto ask = [&] {
    const NoGrad apart;
    return builtin::composed(op, operands, attributes, where);
  };
  Made results;
  record_made(op, operands, attributes, {}, {}, where, std::ref(ask), options.into.empty() ? made : results);
  for (std::size_t i = 0; i < options.into.size(); ++i) options.into[i].assign({results[i], where});
}

[[noreturn]] void refuse_change(const Operator& op, std::span<const Spec> specs, std::span<const Spec> promised,
                                const std::source_location& where) {
  const auto in_words = [](std::span<const Spec> list) {
    std::string text;
    for (const Spec& spec : list) text += (text.empty() ? "" : ", ") + to_string(spec);
    return text;
  };
  throw ArrayError(
      op.name, where,
      "as an interpreter changed it the call gives " + in_words(specs) + "; its caller expects " + in_words(promised));
}

[[noreturn]] void refuse_kernel(const Operator& op, const Signature& call, Device device,
                                const std::source_location& where) {
  detail::check_device(op.name, device, where);
  const bool elsewhere = device.kind != DeviceKind::cpu && op.kernel(DeviceKind::cpu, call, rank_limit);
  throw ArrayError(op.name, where,
                   "no kernel for " + std::string(name_of(op.key_of(call))) + " on " + to_string(device) +
                       (elsewhere ? "; CPUs have one: use to(cpu(0))" : ""));
}

void apply_row(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
               const ApplyOptions& options, Made& made, const std::span<const Spec>* promised) {
  const ScopeState& scope = current_scope();
  const std::source_location where = scope.where.line() != 0 ? scope.where : options.where;
  bool owned = check_inputs(op, inputs, options, where);
  const Device device = options.on.given        ? options.on.device
                        : !inputs.empty()       ? inputs[0]->array()->device()
                        : !options.into.empty() ? options.into[0].checked(op.name, where).device()
                                                : scope.device;
  Signature signature(op.name, where, inputs, attributes, device);
  op.infer(signature);
  const std::span<const Spec> wanted = signature.outputs();
  const bool in_place = !options.into.empty();
  if (in_place) {
    if (options.into.size() != wanted.size()) throw ArrayError(op.name, where, "a wrong number of targets");
    for (std::size_t i = 0; i < wanted.size(); ++i) owned |= check_target(op, options.into[i], wanted[i], where);
  }
  if (promised && !std::equal(wanted.begin(), wanted.end(), promised->begin(), promised->end())) [[unlikely]]
    refuse_change(op, wanted, *promised, where);
  if (scope.interpreter != 0 && detail::interpreted()) [[unlikely]]
    return interpret_row(op, inputs, attributes, options, wanted, where, made);
  if (owned) [[unlikely]]
    return ask_owner(op, inputs, attributes, options, wanted, where, made);

  const Device runs_on = options.lane.given ? options.lane.device : device;
  const Kernel* kernel = op.kernel(runs_on.kind, signature, rank_limit);
  if (!kernel) [[unlikely]] {
    detail::check_device(op.name, runs_on, where);
    kernel = op.kernel(runs_on.kind, signature, rank_limit);  // the device may have brought its kernels
  }
  if (!kernel) [[unlikely]] {
    // A kernel that changes its targets, or copies between devices, is not what a composition is.
    const bool plain = !options.updates.any() && !options.lane.given && options.pinned.kind == DeviceKind::cpu;
    if (!plain || !detail::composes(op, signature, runs_on)) refuse_kernel(op, signature, runs_on, where);
    return compose_row(op, inputs, attributes, options, where, made);
  }

  ArrayPush push;
  if (in_place) {
    push.outputs = options.into;
  } else {
    for (const Spec& spec : wanted) {
      made.emplace_back(options.pinned.kind == DeviceKind::cpu
                            ? detail::new_array(spec.shape, spec.dtype, device, true)
                            : detail::empty_pinned(spec.shape, spec.dtype, options.pinned));
    }
    push.outputs = {made.begin(), made.size()};
    push.fresh = true;
  }
  push.body = kernel->run;
  push.attributes = &attributes;
  push.updates = options.updates;
  push.elementwise = op.elementwise;
  push.dense_inputs = kernel->dense_inputs;
  push.dense_outputs = kernel->dense_outputs;
  push.issues = kernel->issues;
  push.tries = options.tries;
  push.torn_unissued = options.torn_unissued;
  push.where = where;
  push.options.on = options.lane.given ? options.lane : options.on;
  if (!push.options.on.given) push.options.on = device;
  push.options.priority = options.priority;
  push.options.op = &op;
  push.options.scopeless = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (options.updates.contains(i)) continue;  // it takes no memory: the value is there
    push.options.bytes += static_cast<std::size_t>(wanted[i].shape.count()) * size_of(wanted[i].dtype);
  }
  if (kernel->scratch) push.options.bytes += kernel->scratch(signature);

  push.inputs = inputs;
  std::optional<Widened> widened;
  if (op.elementwise) {
    for (const NDArray* x : inputs) {
      if (x->shape() == wanted[0].shape) [[likely]]
        continue;
      widened.emplace(inputs, wanted[0].shape, where);
      push.inputs = widened->pointers;
      break;
    }
  }

  detail::Recorder* const recorder = grad_mode() ? tape_recorder.load(std::memory_order_acquire) : nullptr;
  if (!recorder) {
    push_arrays(push);
    return;
  }
  Tape tape;
  tape.flows = op.gradient && is_floating(wanted[0].dtype);
  tape.in_place = in_place;
  tape.needs = op.needs;
  tape.begin = recorder->begin;
  if (tape.flows || in_place) push.tape = &tape;
  push_arrays(push);
  if (tape.history) recorder->finish(op, attributes, inputs, push.outputs, tape, where);
}

}  // namespace

void detail::check_kernel(const Operator& row, const Signature& call, Device device,
                          const std::source_location& where) {
  if (!DryRun::current()) check_device(row.name, device, where);
  if (row.kernel(device.kind, call, rank_limit) || may_compose(row)) return;
  check_device(row.name, device, where);
  if (!row.kernel(device.kind, call, rank_limit)) refuse_kernel(row, call, device, where);
}

std::vector<NDArray> apply_all(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                               const ApplyOptions& options) {
  Made made;
  apply_row(op, inputs, attributes, options, made);
  if (!options.into.empty()) return {options.into.begin(), options.into.end()};
  return {std::make_move_iterator(made.begin()), std::make_move_iterator(made.end())};
}

NDArray builtin::apply_one(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                           const std::source_location& where) {
  Made made;
  apply_row(op, inputs, attributes, {.where = where}, made);
  return std::move(made[0]);
}

void apply_into(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                const ApplyOptions& options) {
  Made none;
  apply_row(op, inputs, attributes, options, none);
}

NDArray apply(const Operator& op, std::initializer_list<const NDArray*> inputs, const Attributes& attributes,
              const ApplyOptions& options) {
  Made made;
  apply_row(op, std::span(inputs.begin(), inputs.size()), attributes, options, made);
  return options.into.empty() ? std::move(made[0]) : options.into[0];
}

}  // namespace sluice
