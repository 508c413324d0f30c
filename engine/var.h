// Var<T>: a value with its variable, and accesses that hand the value to a body.
#pragma once

#include <concepts>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "sluice/engine/operation.h"
#include "sluice/engine/variable.h"

namespace sluice {

/// A value with its variable, shared by all handles: `Var<Image> frame(engine.variable(), ...)`. A body gets the value
/// from a push that lists what it names first, as its parameter: a `const T&` of read(frame), a `T&` of update(frame)
/// and write(frame). Of a push that lists accesses last, the body reaches it with `*frame`, and must have named it
/// there; other code must not.
template <class T>
class Var {
 public:
  template <class... Args>
  explicit Var(Variable variable, Args&&... args)
      : box_(std::make_shared<Box>(Box{std::move(variable), T(std::forward<Args>(args)...)})) {}
  T& operator*() const { return box_->value; }
  T* operator->() const { return &box_->value; }
  friend const Variable& variable_of(const Var& v) { return v.box_->variable; }

 private:
  struct Box {
    Variable variable;
    T value;
  };
  std::shared_ptr<Box> box_;
};

/// An access of a Var, whose body sees a V: T or const T. It is made in the argument list of the push, and refers to
/// the Var there.
template <class T, class V>
struct VarAccess {
  const Var<T>* var;
  AccessMode mode;
  std::source_location where;

  operator Access() const { return {variable_of(*var).get(), mode}; }
};

template <class T>
VarAccess<T, const T> read(const Var<T>& x, std::source_location where = std::source_location::current()) {
  return {&x, AccessMode::read, where};
}
template <class T>
VarAccess<T, T> update(const Var<T>& x, std::source_location where = std::source_location::current()) {
  return {&x, AccessMode::update, where};
}
template <class T>
VarAccess<T, T> write(const Var<T>& x, std::source_location where = std::source_location::current()) {
  return {&x, AccessMode::write, where};
}

namespace detail {

template <class A>
inline constexpr bool is_var_access = false;
template <class T, class V>
inline constexpr bool is_var_access<VarAccess<T, V>> = true;
template <class A>
concept OfVar = is_var_access<A>;

/// The closure of a push that lists its accesses first: the body, and the Vars whose values it gets.
template <class F, class... As>
struct OnValues;
template <class F, class... Ts, class... Vs>
struct OnValues<F, VarAccess<Ts, Vs>...> {
  F body;
  std::tuple<Var<Ts>...> vars;

  template <class... Before>
  static constexpr bool takes = std::is_invocable_v<F&, Before..., Vs&...>;
  template <class... Before>
  void call(Before&&... before) {
    std::apply([&](const Var<Ts>&... each) { body(std::forward<Before>(before)..., static_cast<Vs&>(*each)...); },
               vars);
  }
  void operator()() requires(takes<>) { call(); }
  void operator()(Context& context) requires(takes<Context&>) { call(context); }
  void operator()(Completion completion) requires(takes<Completion>) { call(std::move(completion)); }
  void operator()(Context& context, Completion completion) requires(takes<Context&, Completion>) {
    call(context, std::move(completion));
  }
};

}  // namespace detail
}  // namespace sluice
