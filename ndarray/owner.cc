#include "sluice/ndarray/owner.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice {

NDArray owned_array(const Spec& spec, Ref<Owner> owner, std::source_location where) {
  if (!owner) throw UsageError("[owned_array] " + to_string(where) + ": a null owner");
  check_shape("owned_array", spec.shape, spec.dtype, where);
  detail::views_are_told.store(true, std::memory_order_relaxed);
  return NDArray(
      Ref<Array>(new Array(default_engine(), spec, Ref<detail::Owned>(new detail::Owned(std::move(owner))))));
}

Ref<Owner> owner_of(const NDArray& x, std::source_location where) {
  const Array& array = x.checked("owner_of", where);
  return array.owned() ? array.owned()->owner : Ref<Owner>();
}

void detail::check_memory(const Array& array, std::string_view operation, const std::source_location& where) {
  if (array.kind() == Array::Kind::owned) throw ArrayError(operation, where, array.owned()->owner->refusal());
  check_absent(operation, where);
}

/// One owner's turn at a call.
struct Asking {
  static std::vector<NDArray> of(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                                 const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                                 std::span<const Spec> specs, const std::source_location& where) {
    Ref<Owner> owner;
    for (const NDArray* x : inputs) {
      if (!owner) owner = owner_of(*x, where);
    }
    for (const NDArray& y : targets) {
      if (!owner) owner = owner_of(y, where);
    }
    Call call(row, inputs, attributes, targets, updates, specs, where);
    call.who_ = "its owner";
    owner->apply(call);
    if (!call.answered_) throw ArrayError(row.name, where, "its owner did not answer the call");
    return std::move(call.results_);
  }
};

std::vector<NDArray> detail::ask_owner(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                                       const Attributes& attributes, std::span<const NDArray> targets,
                                       const Updates& updates, std::span<const Spec> specs,
                                       const std::source_location& where) {
  return Asking::of(row, inputs, attributes, targets, updates, specs, where);
}

}  // namespace sluice
