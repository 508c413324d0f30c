// For functions that are made of operators and have no row of their own.
#pragma once

#include <source_location>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::builtin {

/// While it lives, the thread's operators name the line of the program that called the function, also in their
/// gradients, and new arrays are on the device of its argument.
class Composition : ScopeGuard {
 public:
  /// Throws ArrayError for an empty handle.
  Composition(const char* name, const Operand& x) {
    ScopeState& scope = current_scope();
    scope.device = x.array.checked(name, scope.where.line() != 0 ? scope.where : x.where).device();
    if (scope.where.line() == 0) scope.where = x.where;
    name_ = name;
  }
  /// The line that errors name.
  std::source_location where() const { return current_scope().where; }
  [[noreturn]] void fail(const std::string& why) const { throw ArrayError(name_, where(), why); }
  void require(bool condition, const char* why) const {
    if (!condition) [[unlikely]]
      fail(why);
  }

 private:
  const char* name_;
};

}  // namespace sluice::builtin
