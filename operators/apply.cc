// The path of every operator: checks, shapes, recording, push.
#include <algorithm>
#include <atomic>

#include "sluice/operators/registry.h"

namespace sluice {
namespace {

thread_local int rank_limit = 1 << 30;
std::atomic<detail::Recorder*> recorder{nullptr};

bool has_history(const NDArray& x) {
  Array& array = *x.array();
  std::lock_guard lock(array.mutex());
  return static_cast<bool>(array.history);
}

std::string plural(int n) { return std::to_string(n) + (n == 1 ? " input" : " inputs"); }

/// Few values on the stack, many on the heap.
template <class T>
class Few {
 public:
  explicit Few(std::size_t n)
      : many_(n > kInline ? n : 0), span_(n > kInline ? std::span<T>(many_) : std::span<T>(few_).first(n)) {}
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;
  T& operator[](std::size_t i) { return span_[i]; }
  std::span<T> span() { return span_; }

 private:
  static constexpr std::size_t kInline = 4;
  std::array<T, kInline> few_{};
  std::vector<T> many_;
  std::span<T> span_;
};

void check_inputs(const Operator& op, std::span<const NDArray* const> inputs, const ApplyOptions& options) {
  const int n = static_cast<int>(inputs.size());
  if (n < op.min_inputs || n > op.max_inputs) {
    throw ArrayError(op.name, options.where, plural(n) + " given, " + plural(op.min_inputs) + " wanted");
  }
  for (const NDArray* x : inputs) {
    const Device device = x->checked(op.name, options.where).device();
    if (!options.on.given && !(device == inputs[0]->device())) {
      throw ArrayError(
          op.name, options.where,
          "arrays on " + to_string(inputs[0]->device()) + " and " + to_string(device) + "; use to(device)");
    }
  }
}

void check_target(const Operator& op, const NDArray& target, const Spec& wanted, Device device,
                  const std::source_location& where) {
  const Array& array = target.checked(op.name, where);
  if (!(target.shape() == wanted.shape) || target.dtype() != wanted.dtype) {
    throw ArrayError(op.name, where,
                     to_string(wanted.shape) + " " + std::string(name_of(wanted.dtype)) + " does not fit the target " +
                         to_string(target.shape()) + " " + std::string(name_of(target.dtype())));
  }
  if (!(array.device() == device)) {
    throw ArrayError(op.name, where, "a target on " + to_string(array.device()) + ", inputs on " + to_string(device));
  }
}

/// What the gradients that are wanted need kept.
std::uint32_t kept_values(const Operator& op, std::span<const NDArray* const> inputs) {
  std::uint32_t kept = 0;
  if (op.needs.empty()) return kept;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (has_history(*inputs[i])) kept |= op.needs[std::min(i, op.needs.size() - 1)];
  }
  return kept;
}

}  // namespace

int KernelRankLimit::current() { return rank_limit; }
KernelRankLimit::KernelRankLimit(int max_rank) : saved_(rank_limit) { rank_limit = max_rank; }
KernelRankLimit::~KernelRankLimit() { rank_limit = saved_; }

void detail::set_recorder(Recorder* r) { recorder.store(r, std::memory_order_release); }

std::vector<NDArray> apply_all(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                               const ApplyOptions& options) {
  check_inputs(op, inputs, options);
  Few<Spec> specs(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) specs[i] = {inputs[i]->shape(), inputs[i]->dtype()};
  Signature signature(op.name, options.where, specs.span(), attributes);
  op.infer(signature);
  const std::span<const Spec> wanted = signature.outputs();

  const Device device = options.on.given        ? options.on.device
                        : !inputs.empty()       ? inputs[0]->device()
                        : !options.into.empty() ? options.into[0].checked(op.name, options.where).device()
                                                : current_scope().device;
  const DType key = op.key < 0 ? wanted[0].dtype : specs[static_cast<std::size_t>(op.key)].dtype;
  const Device runs_on = options.lane.given ? options.lane.device : device;
  const Kernel* kernel = op.kernel(runs_on.kind, key, rank_limit);
  if (!kernel) {
    throw ArrayError(op.name, options.where,
                     "no kernel for " + std::string(name_of(key)) + " on " + to_string(runs_on));
  }

  std::vector<NDArray> outputs;
  const bool in_place = !options.into.empty();
  if (in_place) {
    if (options.into.size() != wanted.size()) throw ArrayError(op.name, options.where, "a wrong number of targets");
    for (std::size_t i = 0; i < wanted.size(); ++i) check_target(op, options.into[i], wanted[i], device, options.where);
    outputs.assign(options.into.begin(), options.into.end());
  } else {
    outputs.reserve(wanted.size());
    for (const Spec& spec : wanted) {
      outputs.push_back(options.pinned.kind == DeviceKind::cpu
                            ? empty(spec.shape, spec.dtype, device)
                            : detail::empty_pinned(spec.shape, spec.dtype, options.pinned));
    }
  }

  ArrayPush push;
  push.body = kernel->run;
  push.closure = attributes.pointer();
  push.outputs = outputs;
  push.updates = options.updates;
  push.elementwise = op.elementwise;
  push.dense_inputs = kernel->dense_inputs;
  push.dense_outputs = kernel->dense_outputs;
  push.issues = kernel->issues;
  push.where = options.where;
  push.options.on = options.lane.given ? options.lane : options.on;
  push.options.priority = options.priority;
  push.options.op = &op;
  push.options.attributes = attributes.pointer();
  for (const NDArray& y : outputs) push.options.bytes += y.bytes();

  // Elementwise kernels see their inputs broadcast: strides of 0 cost nothing.
  Few<NDArray> widened(op.elementwise ? inputs.size() : 0);
  Few<const NDArray*> seen(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    seen[i] = inputs[i];
    if (op.elementwise && !(inputs[i]->shape() == outputs[0].shape())) {
      widened[i] = inputs[i]->broadcast_to(outputs[0].shape(), options.where);
      seen[i] = &widened[i];
    }
  }
  push.inputs = seen.span();

  bool record = false;
  detail::Recorder* tape = grad_mode() ? recorder.load(std::memory_order_acquire) : nullptr;
  if (tape) {
    if (op.gradient && is_floating(wanted[0].dtype)) {
      record = std::any_of(inputs.begin(), inputs.end(), [](const NDArray* x) { return has_history(*x); });
    }
    if (in_place) {
      for (const NDArray& y : outputs) {
        std::lock_guard lock(y.array()->mutex());
        if (y.array()->leaf) {
          throw ArrayError(op.name, options.where,
                           "writes in place to an array that wants a gradient; use a NoGrad scope");
        }
        record = record || y.array()->history;
      }
      if (record && outputs[0].array()->stays() && !outputs[0].array()->imported()) {
        throw ArrayError(op.name, options.where, "a recorded write to a partitioned array");
      }
      if (record && (outputs.size() > 1 || options.updates != 0)) {
        throw ArrayError(op.name, options.where, "has no gradient: call it in a NoGrad scope, or on detached arrays");
      }
    }
  }
  if (!record) {
    push_arrays(push);
    return outputs;
  }
  const std::uint32_t kept = op.gradient ? kept_values(op, inputs) : 0;
  push.save_inputs = kept & 0xffffU;
  push.save_outputs = kept >> 16U;
  push.want_histories = true;
  push.history = tape->begin();
  ArrayPushResult result = push_arrays(push);
  tape->finish(push.history, op, attributes, inputs, outputs, in_place, result, options.where);
  return outputs;
}

NDArray apply(const Operator& op, std::initializer_list<const NDArray*> inputs, const Attributes& attributes,
              const ApplyOptions& options) {
  return std::move(apply_all(op, std::span(inputs.begin(), inputs.size()), attributes, options)[0]);
}

}  // namespace sluice
