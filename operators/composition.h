// For functions that are made of operators and have no row of their own.
#pragma once

#include <source_location>
#include <string>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/user_names.h"

namespace sluice::builtin {

/// While it lives, the thread's operators name the line of the program that called the function, also in their
/// gradients, and what they throw at the call names the function. Inside of another one the outer one's line and name
/// stay.
class Composition {
 public:
  Composition(const char* name, const std::source_location& where)
      : scope_(current_scope()),
        where_(scope_.where),
        device_(scope_.device),
        called_(detail::called_function()),
        name_(name) {
    if (where_.line() == 0) scope_.where = where;
    if (!called_) detail::called_function() = name;
  }
  /// The same, and new arrays are on the argument's device. Throws ArrayError for an empty handle.
  Composition(const char* name, const Operand& x) : Composition(name, x.where) {
    scope_.device = x.array.checked(name, x.where).device();
  }
  ~Composition() {
    scope_.where = where_;
    scope_.device = device_;
    detail::called_function() = called_;
  }
  Composition(const Composition&) = delete;
  Composition& operator=(const Composition&) = delete;

  /// The line that errors name.
  std::source_location where() const { return scope_.where; }
  [[noreturn]] void fail(const std::string& why) const { throw ArrayError(name_, where(), why); }
  void require(bool condition, const char* why) const {
    if (!condition) [[unlikely]]
      fail(why);
  }

 private:
  ScopeState& scope_;  ///< the thread's, which stays where it is during a call
  std::source_location where_;
  Device device_;
  const char* called_;
  const char* name_;
};

}  // namespace sluice::builtin
