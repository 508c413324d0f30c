#include "sluice/nn/optim/update.h"

#include <utility>

#include "sluice/ndarray/owner.h"
#include "sluice/operators/operators.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace {

/// The dtype that rules compute in.
DType working(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype; }

}  // namespace

Target::Target(NDArray array) : array_(std::move(array)), where_(std::source_location::current()) {}

const NDArray& Target::value() const {
  if (!now_.defined()) now_ = array_.to(working(array_.dtype()));
  return now_;
}

void Target::end() {
  now_ = NDArray();
  assigned_ = false;
}

void Target::follow(const NDArray& parameter, const Layout& beside) {
  const Layout has = layout_of(array_);
  if (!beside) {
    if (has) array_ = gathered(array_);
    if (!(array_.device() == parameter.device())) array_ = array_.to(parameter.device());
    return;
  }
  const Layout wanted = array_.shape() == parameter.shape() ? beside : Layout::whole(beside.mesh(), array_.shape());
  if (has == wanted) return;
  array_ = place(has ? gathered(array_) : array_, wanted);
}

NDArray zeros_beside(const NDArray& parameter, const Dims& shape, DType dtype) {
  if (!owner_of(parameter)) return zeros(shape, dtype);
  return sluice::detail::ask_constant(parameter, {shape, dtype, parameter.device()}, Scalar(std::int64_t{0}),
                                      std::source_location::current());
}

void Target::assign(const Operand& value) {
  const NDArray& x = value.array;
  x.checked("assign", value.where);
  if (!(x.shape() == array_.shape())) {
    throw ArrayError("assign", value.where,
                     "a rule gives a value " + to_string(x.shape()) + " for an array " + to_string(array_.shape()));
  }
  if (is_floating(x.dtype()) != is_floating(array_.dtype())) {
    throw ArrayError("assign", value.where,
                     "a rule gives a value of " + std::string(name_of(x.dtype())) + " for an array of " +
                         std::string(name_of(array_.dtype())));
  }
  now_ = x.to(working(array_.dtype()));
  assigned_ = true;
}

NDArray Target::noted() const { return assigned_ ? now_.to(array_.dtype()).contiguous() : NDArray(); }

Update::Update(Target& value_, NDArray gradient_, std::int64_t step_, Kept& kept)
    : value(value_), gradient(gradient_.to(working(gradient_.dtype()))), step(step_), kept_(kept) {}

Target& Update::state(const char* name) {
  const auto at = kept_.find(name);
  if (at != kept_.end()) return at->second;
  return kept_.emplace(name, Target(zeros_like(value.array()))).first->second;
}

Target& Update::state(const char* name, const Dims& shape) {
  const auto at = kept_.find(name);
  if (at != kept_.end()) return at->second;
  const DType dtype = value.array().dtype() == DType::f64 ? DType::f64 : DType::f32;
  return kept_.emplace(name, Target(zeros_beside(value.array(), shape, dtype))).first->second;
}

NDArray Update::count() {
  if (!count_.defined()) {
    auto at = kept_.find("step");
    if (at == kept_.end()) at = kept_.emplace("step", Target(zeros_beside(value.array(), {}, DType::i64))).first;
    at->second.assign(at->second.value() + 1);
    count_ = at->second.value().to(DType::f64);
  }
  return count_;
}

}  // namespace sluice::nn
