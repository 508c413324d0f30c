#include "sluice/ndarray/owner.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "sluice/ndarray/grad_mode.h"

namespace sluice {

// Here, and not in storage.cc, because an Owned is known here.
Array::Array(Engine& engine, DType dtype, const Dims& shape, Ref<Version> version)
    : engine_(&engine),
      core_(version->variable().get()->core),
      device_(version->buffer().device()),
      dtype_(dtype),
      shape_(shape),
      version_(std::move(version)) {
  version_->shown();
}

Array::Array(Engine& engine, const Spec& spec, Ref<detail::Owned> owned)
    : engine_(&engine),
      core_(nullptr),
      device_(spec.device),
      dtype_(spec.dtype),
      kind_(Kind::owned),
      shape_(spec.shape),
      owned_(std::move(owned)) {}

Array::~Array() {
  if (!version_) return;
  if (listed_) ShareGroup::strike_snapshot(group(), this);
  if (stays_ && version_->buffer().import()) version_->buffer().import()->set_recorded(false);
  version_->hidden();
}

namespace {

/// Another array of an owner with the history that `of` has now. Called with its mutex held.
Ref<Array> like(const Array& of, Ref<Owner> owner) {
  Ref<Array> copy(new Array(of.engine(), {of.shape(), of.dtype(), of.device()},
                            Ref<detail::Owned>(new detail::Owned(std::move(owner)))));
  copy->history = of.history;
  copy->history_output = of.history_output;
  copy->leaf = of.leaf;
  return copy;
}

}  // namespace

Ref<Array> Array::twin() { return like(*this, owned_->owner); }

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

namespace {
std::atomic<std::uint64_t> changes{1};
}  // namespace

std::uint64_t detail::histories_changed() noexcept { return changes.load(std::memory_order_acquire); }
void detail::one_more_history_changed() noexcept { changes.fetch_add(1, std::memory_order_acq_rel); }

NDArray detail::value_of(const NDArray& x) {
  if (!x.defined() || x.array()->kind() != Array::Kind::owned) return {};
  return x.array()->owned()->owner->value();
}

bool detail::is_owned_view(const NDArray& x) { return x.array()->owned() && x.array()->owned()->view; }

Ref<Array> detail::snapshot_of(const Ref<Array>& array) {
  if (array->kind() != Array::Kind::owned) {
    const std::lock_guard lock(array->mutex());
    return array->snapshot();
  }
  const Ref<Owner> value = array->owned()->owner->snapshot();
  const std::lock_guard lock(array->mutex());
  return like(*array, value);
}

NDArray detail::ask_constant(const NDArray& like, const Spec& spec, const Scalar& value,
                             const std::source_location& where) {
  const ScopeGuard scope;
  current_scope().interpreter = 0;
  const NoGrad constant;
  NDArray made = owner_of(like, where)->constant(spec, value, where);
  made.checked("Owner::constant", where);
  if (made.spec() == spec) return made;
  throw ArrayError("Owner::constant", where, to_string(made.spec()) + " in place of " + to_string(spec));
}

detail::Owned::~Owned() {
  for (std::unique_ptr<View> last = std::move(view); last;) {
    const NDArray shown = last->call.input();
    last->call.let_go();
    const Ref<Owned> next = shown.array() && shown.array()->refs() == 1 ? shown.array()->owned() : Ref<Owned>();
    last = next && next->refs() == 2 ? std::move(next->view) : nullptr;
  }
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

void detail::ask_for_view(ViewCall& call) {
  const Ref<Owner> owner = call.input().array()->owned()->owner;
  owner->view(call);
  if (!call.result().defined()) throw ArrayError(call.name(), call.where(), "its owner did not answer the view");
}

}  // namespace sluice
