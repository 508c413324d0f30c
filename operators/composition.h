// For functions that are made of operators and have no row of their own.
#pragma once

#include <source_location>
#include <string>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::builtin {

/// While it lives, the thread's operators name the line of the program that called the function, also in their
/// gradients, and what they throw at the call names the function. Inside of another one the outer one's line and name
/// stay.
class Composition : public detail::Called {
 public:
  Composition(const char* name, const std::source_location& where)
      : Called(name, where), device_(scope_.device), name_(name) {}
  /// The same, and new arrays are on the argument's device. Throws ArrayError for an empty handle.
  Composition(const char* name, const Operand& x) : Composition(name, x.where) {
    scope_.device = x.array.checked(name, x.where).device();
  }
  ~Composition() { scope_.device = device_; }
  Composition(const Composition&) = delete;
  Composition& operator=(const Composition&) = delete;

  [[noreturn]] void fail(const std::string& why) const { throw ArrayError(name_, where(), why); }
  void require(bool condition, const char* why) const {
    if (!condition) [[unlikely]]
      fail(why);
  }

 private:
  Device device_;
  const char* name_;
};

}  // namespace sluice::builtin
