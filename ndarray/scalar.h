// Scalar: a number given beside arrays, as in x * 2.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

/// A C++ number that takes the dtype of the array beside it, if that can hold it. Integers keep all 64 bits.
struct Scalar {
  double real = 0;
  std::int64_t integer = 0;
  bool is_integer = false;
  bool above_i64 = false;  ///< an integer of 2^63 or more, of which `integer` is the low bits

  Scalar() = default;
  template <class T>
  requires std::is_arithmetic_v<T> Scalar(T value)  // NOLINT(google-explicit-constructor): x * 2 reads as it should
      : real(static_cast<double>(value)),
        integer(std::is_integral_v<T> ? static_cast<std::int64_t>(value) : 0),
        is_integer(std::is_integral_v<T>) {
    if constexpr (std::is_same_v<T, bool>) {
      integer = value ? 1 : 0;
    } else if constexpr (std::is_integral_v<T>) {
      above_i64 = std::cmp_greater(value, std::numeric_limits<std::int64_t>::max());
    }
  }

  /// The number as a T. A real number for an integer T is cut towards zero.
  template <class T>
  T as() const {
    return is_integer && !above_i64 ? static_cast<T>(integer) : static_cast<T>(real);
  }
  /// Whether arrays of this dtype can hold the number: a real number is none for integers and bool, and an integer must
  /// be in their range.
  bool fits(DType dtype) const {
    if (is_floating(dtype)) return true;
    if (!is_integer || above_i64) return false;
    bool in_range = true;
    with_type(dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, bool>) {
        in_range = integer == 0 || integer == 1;
      } else if constexpr (std::is_integral_v<T>) {
        in_range = std::in_range<T>(integer);
      }
    });
    return in_range;
  }
  /// "0.5", "3000000000", "1e+300".
  std::string text() const {
    if (above_i64) return std::to_string(static_cast<std::uint64_t>(integer));
    if (!is_integer) {
      const double size = real < 0 ? -real : real;
      if (size >= 1e15 || (size < 1e-4 && size > 0)) {
        return general_text(real, 9);
      }
      std::string digits = fixed_text(real, 6);
      while (digits.ends_with('0') && !digits.ends_with(".0")) digits.pop_back();
      return digits;
    }
    return std::to_string(integer);
  }
  friend bool operator==(const Scalar& a, const Scalar& b) {
    return a.is_integer == b.is_integer && (a.is_integer ? a.integer == b.integer : a.real == b.real);
  }
};

}  // namespace sluice
