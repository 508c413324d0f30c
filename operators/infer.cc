#include "sluice/operators/infer.h"

#include <string>

#include "sluice/engine/scope.h"
#include "sluice/operators/costs.h"

namespace sluice {
namespace {

std::string inputs_in_words(std::size_t n) { return std::to_string(n) + (n == 1 ? " input" : " inputs"); }

}  // namespace

void detail::check_count(const Operator& row, std::size_t inputs, const std::source_location& where) {
  const auto least = static_cast<std::size_t>(row.min_inputs), most = static_cast<std::size_t>(row.max_inputs);
  if (inputs >= least && inputs <= most) [[likely]]
    return;
  throw ArrayError(row.name, where, inputs_in_words(inputs) + " given, " + inputs_in_words(least) + " wanted");
}

void detail::refuse_devices(const Operator& row, Device first, Device other, const std::source_location& where) {
  throw ArrayError(row.name, where, "arrays on " + to_string(first) + " and " + to_string(other) + "; use to(device)");
}

namespace {

/// The call with its outputs, which `use` is given.
template <class F>
auto inferred(const Operator& row, std::span<const Spec> inputs, const Attributes& attributes, Place on,
              std::source_location where, F use) {
  const ScopeState& scope = current_scope();
  if (scope.where.line() != 0) where = scope.where;
  detail::check_count(row, inputs.size(), where);
  for (const Spec& x : inputs) {
    if (!on.given && !(x.device == inputs[0].device)) detail::refuse_devices(row, inputs[0].device, x.device, where);
  }
  Signature signature(row.name, where, inputs, attributes,
                      on.given         ? on.device
                      : inputs.empty() ? scope.device
                                       : inputs[0].device);
  row.infer(signature);
  return use(signature);
}

}  // namespace

std::vector<Spec> infer(const Operator& row, std::span<const Spec> inputs, const Attributes& attributes, Place on,
                        std::source_location where) {
  return inferred(row, inputs, attributes, on, where, [](const Signature& call) {
    return std::vector<Spec>(call.outputs().begin(), call.outputs().end());
  });
}

Cost cost_of(const Operator& row, std::span<const Spec> inputs, const Attributes& attributes, Place on,
             std::source_location where) {
  return inferred(row, inputs, attributes, on, where, [&](const Signature& call) {
    return row.cost ? row.cost(call) : row.elementwise ? costs::each_output<>(call) : costs::moves(call);
  });
}

const Operator& row_of(const Call& call) {
  return static_cast<const Operator&>(call.row());  // calls are made of rows alone
}

Cost cost_of(const Call& call) {
  std::vector<Spec> inputs;
  for (const NDArray* x : call.inputs()) inputs.push_back(x->spec());
  return cost_of(row_of(call), inputs, call.attributes(), call.specs()[0].device, call.where());
}

}  // namespace sluice
