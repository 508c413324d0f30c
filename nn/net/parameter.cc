#include "sluice/nn/net/parameter.h"

#include <string_view>

#include "sluice/engine/layer.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {

namespace {

const sluice::detail::Layer* layer_named(std::string_view path) {
  if (path.empty()) return nullptr;
  const ScopeGuard scope;
  current_scope().layer = nullptr;  // the path is the whole one
  const sluice::detail::Layer* layer = nullptr;
  {
    const LayerScope made(path);  // it lives for ever
    layer = current_scope().layer;
  }
  return layer;
}

}  // namespace

void State::set_path(std::string new_path) {
  path = std::move(new_path);
  const std::size_t dot = path.rfind('.');
  layer = layer_named(dot == std::string::npos ? std::string_view() : std::string_view(path).substr(0, dot));
}

void Place::set_path(std::string path) {
  path_ = std::move(path);
  layer_ = layer_named(path_);
  known_ = true;
}

NDArray State::laid_out(const NDArray& x) const {
  if (!layout) return x;
  const NDArray lies = layout_of(x) == layout ? x : sluice::place(gathered(x.detach()), layout);
  return in_calls == layout ? lies : with_call_layout(lies, in_calls);
}

NDArray State::at_rest() const {
  const Layout lies = layout_of(value);
  return lies ? reshard(Operand(value.detach()), lies) : value.detach();
}

NDArray State::copied() const {
  const NDArray copy = at_rest().copy();
  return layout && layout_of(copy) == layout ? laid_out(copy) : copy;
}

namespace {

/// `array` stands for the state's value, or is it.
void want_gradient_of(const State& state, const NDArray& array, const std::source_location& from) {
  if (!state.is_trained()) return;
  array.with_grad(from);
  if (state.gradient && !(state.gradient == state.layout) && layout_of(array) == state.layout) {
    set_gradient_layout(array, state.gradient, from);
  }
}

}  // namespace

void State::want_gradient(std::source_location from) { want_gradient_of(*this, value, from); }

std::string State::text() const {
  return (path.empty() ? "" : "'" + path + "' ") + sluice::to_string(shape) +
         (path.empty() ? " made at " + sluice::to_string(where) : "");
}

Slot::Slot(Kind kind, Dims shape, Init init, std::source_location where)
    : Slot(std::make_shared<State>(State{kind, shape, std::move(init), where})) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    leave();
    state_ = std::move(other.state_);
  }
  return *this;
}

State& Slot::checked_state() const {
  if (!state_) throw UsageError("[nn] a parameter is used that was moved away");
  return *state_;
}

void Slot::become(const std::shared_ptr<State>& state) {
  ++state->holders;
  leave();
  state_ = state;
}

NDArray detail::passing(const NDArray& x, const Placements& to, const std::source_location& where) {
  return reshard(Operand(x, where), to);
}

constinit thread_local Reads* Reads::current_ = nullptr;

const sluice::detail::Layer* Here::below_reads(const sluice::detail::Layer* layer) {
  const sluice::detail::Layer* const above = Reads::current()->above();
  if (!above) return layer;
  const ScopeGuard scope;
  current_scope().layer = above;
  const LayerScope made(sluice::detail::path_of(layer));  // it lives for ever
  return current_scope().layer;
}

const NDArray& Slot::other_value() const {
  State& state = checked_state();
  if (Reads* const reads = Reads::current()) return reads->read(state_);
  if (DryRun* const run = DryRun::current()) {
    if (!state.stand_in.defined()) {
      state.stand_in = state.laid_out(empty(state.shape, DType::f32, state.where));
      want_gradient_of(state, state.stand_in, state.where);
      run->at_end([held = state_] { held->stand_in = NDArray(); });
    }
    return state.stand_in;
  }
  throw UsageError("[nn] the parameter " + state.text() +
                   " is used before nn::initialise or nn::load reached it: call nn::initialise(net, seed), or "
                   "nn::complete(net, seed) for a new part; if that was done, parts() of the class that holds it does "
                   "not list it");
}

void Slot::assign(const Operand& x) const {
  const State& state = checked_state();
  const NDArray& array = x.array;
  array.checked("assign", x.where);
  if (!(array.shape() == state.shape)) {
    throw ArrayError("assign", x.where, "an array " + to_string(array.shape()) + " for the parameter " + state.text());
  }
  const NDArray to = value();
  const NoGrad off;
  if (state.layout && !owner_of(array)) return to.assign(Operand(state.laid_out(array), x.where));
  to.assign(Operand(array.detach(), x.where));
}

}  // namespace sluice::nn
