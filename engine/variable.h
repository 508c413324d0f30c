// Variables: the names under which the engine orders operations, and the four ways to access them.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <source_location>
#include <utility>

namespace sluice {

class Engine;

namespace detail {
class CoreBase;

/// The part of a variable that its handles use. The protocol's part follows it in memory (engine/detail/record.h).
struct VariableBase {
  std::atomic<std::uint32_t> refs{1};
  std::uint32_t number = 0;  ///< in the order in which variables are made: the order in which pushes lock several
  CoreBase* core = nullptr;
  const char* name = nullptr;
};
void destroy_variable(VariableBase* variable) noexcept;
}  // namespace detail

/// A handle to a variable of one engine. Copies name the same variable. It lives until the last handle and the last op
/// that names it are gone. Thread-safe like a shared_ptr.
class Variable {
 public:
  Variable() = default;
  explicit Variable(detail::VariableBase* adopted) : base_(adopted) {}
  Variable(const Variable& other) : base_(other.base_) {
    if (base_) base_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  Variable(Variable&& other) noexcept : base_(std::exchange(other.base_, nullptr)) {}
  Variable& operator=(Variable other) noexcept {
    std::swap(base_, other.base_);
    return *this;
  }
  ~Variable() {
    if (base_ && base_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) detail::destroy_variable(base_);
  }
  explicit operator bool() const { return base_ != nullptr; }
  const char* name() const { return base_ && base_->name ? base_->name : ""; }
  detail::VariableBase* get() const { return base_; }
  friend bool operator==(const Variable& a, const Variable& b) { return a.base_ == b.base_; }

 private:
  detail::VariableBase* base_ = nullptr;
};

/// read: sees the value, and may run beside other reads. All other modes exclude every other op. update: sees and
/// changes the value. write: overwrites all of it, so that a poisoned variable heals. order: in push order, but there
/// is no value and no poison (for library handles and schedules). first: the write that gives a new variable its
/// value, before any other op names it; if it fails the variable has none.
enum class AccessMode : std::uint8_t { read, update, write, order, first };

/// One access of a push. It does not own the variable; it is made in the argument list of the push.
struct Access {
  detail::VariableBase* variable = nullptr;
  AccessMode mode = AccessMode::read;
};

inline const Variable& variable_of(const Variable& v) { return v; }

/// Something with a variable: a Variable, a Var<T> (var.h), or whatever `variable_of(x)` finds by argument-dependent
/// lookup.
template <class T>
concept HasVariable = requires(const T& x) {
  { variable_of(x) } -> std::convertible_to<const Variable&>;
};

namespace detail {
/// variable_of(x), which is told the place of the call where it takes one.
decltype(auto) variable_at(const HasVariable auto& x, [[maybe_unused]] const std::source_location& where) {
  if constexpr (requires { variable_of(x, where); }) {
    return variable_of(x, where);
  } else {
    return variable_of(x);
  }
}
/// Calls f for each variable of x: for what has several, each_variable_of(x, f, where) is found as variable_of is.
template <class X, class F>
void each_variable_at(const X& x, F&& f, const std::source_location& where) {
  if constexpr (requires { each_variable_of(x, f, where); }) {
    each_variable_of(x, f, where);
  } else {
    f(variable_at(x, where));
  }
}
VariableBase* base_at(const HasVariable auto& x, const std::source_location& where) {
  return static_cast<const Variable&>(variable_at(x, where)).get();
}
}  // namespace detail

Access read(const HasVariable auto& x, std::source_location where = std::source_location::current()) {
  return {detail::base_at(x, where), AccessMode::read};
}
Access update(const HasVariable auto& x, std::source_location where = std::source_location::current()) {
  return {detail::base_at(x, where), AccessMode::update};
}
Access write(const HasVariable auto& x, std::source_location where = std::source_location::current()) {
  return {detail::base_at(x, where), AccessMode::write};
}
Access order(const HasVariable auto& x, std::source_location where = std::source_location::current()) {
  return {detail::base_at(x, where), AccessMode::order};
}

}  // namespace sluice
