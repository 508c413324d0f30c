// The function of the library that a program called, for errors. Internal.
#pragma once

#include <source_location>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/user_names.h"

namespace sluice::detail {

/// While it lives, what the thread throws at a call, and the errors of what it pushes, name this line of the program
/// and the function that was called there. Inside of another one the outer one's line and name stay. `name` is a
/// literal.
class Called {
 public:
  Called(const char* name, const std::source_location& where)
      : scope_(current_scope()), where_(scope_.where), called_(called_function()) {
    if (where_.line() == 0) scope_.where = where;
    if (!called_) called_function() = name;
  }
  ~Called() {
    scope_.where = where_;
    called_function() = called_;
  }
  Called(const Called&) = delete;
  Called& operator=(const Called&) = delete;

  /// The line that errors name.
  std::source_location where() const { return scope_.where; }

 protected:
  ScopeState& scope_;  ///< the thread's, which stays where it is during a call

 private:
  std::source_location where_;
  const char* called_;
};

}  // namespace sluice::detail
