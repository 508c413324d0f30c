// Scalar: a number given beside arrays, as in x * 2.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "sluice/ndarray/dtype.h"

namespace sluice {

/// A C++ number that takes the dtype of the array beside it. Integers keep all 64 bits.
struct Scalar {
  double real = 0;
  std::int64_t integer = 0;
  bool is_integer = false;

  Scalar() = default;
  template <class T>
  requires std::is_arithmetic_v<T> Scalar(T value)  // NOLINT(google-explicit-constructor): x * 2 reads as it should
      : real(static_cast<double>(value)),
        integer(std::is_integral_v<T> ? static_cast<std::int64_t>(value) : 0),
        is_integer(std::is_integral_v<T>) {}

  /// The number as a T. A real number for an integer T is cut towards zero.
  template <class T>
  T as() const {
    return is_integer ? static_cast<T>(integer) : static_cast<T>(real);
  }
  friend bool operator==(const Scalar& a, const Scalar& b) {
    return a.is_integer == b.is_integer && (a.is_integer ? a.integer == b.integer : a.real == b.real);
  }
};

}  // namespace sluice
