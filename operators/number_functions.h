// What the expressions of the elementwise table may use on numbers, beside + - * / and the table's own operators. On
// arrays the operators of these names are found instead, where there are any.
#pragma once

#include <cmath>
#include <type_traits>

#include "sluice/resources/host_device.h"

namespace sluice::functors {

using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atan2;
using std::atanh;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::hypot;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::pow;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;

template <class T>
concept Number = std::is_arithmetic_v<T>;

/// Without a comparison where there is nothing to compare.
template <Number T>
SLUICE_HD bool below_zero(T x) {
  if constexpr (std::is_unsigned_v<T>) {
    return false;
  } else {
    return x < T(0);
  }
}

/// -1, 0 or 1, and NaN of NaN.
template <Number T>
SLUICE_HD T sign_of(T x) {
  return x > T(0) ? T(1) : below_zero(x) ? T(-1) : x;
}

// Integers are whole already.
#define SLUICE_ROUNDS(name, of_floating) \
  template <Number T>                    \
  SLUICE_HD T name(T x) {                \
    if constexpr (std::is_integral_v<T>) \
      return x;                          \
    else                                 \
      return of_floating(x);             \
  }
SLUICE_ROUNDS(floored, std::floor)
SLUICE_ROUNDS(ceiled, std::ceil)
SLUICE_ROUNDS(truncated, std::trunc)
SLUICE_ROUNDS(rounded, std::rint)  // half to even
#undef SLUICE_ROUNDS

/// The rest of a / b cut towards zero: it has the sign of a. Integers: by 0 gives 0.
template <Number T>
SLUICE_HD T rest_of_truncated(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == T(0)) return T(0);
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return T(0);
    }
    return static_cast<T>(a % b);
  } else {
    return std::fmod(a, b);
  }
}
/// The rest of a / b rounded down: it has the sign of b, as % in Python. Integers: by 0 gives 0.
template <Number T>
SLUICE_HD T rest_of_floored(T a, T b) {
  const T rest = rest_of_truncated(a, b);
  if constexpr (std::is_integral_v<T>) {
    return rest != T(0) && below_zero(rest) != below_zero(b) ? static_cast<T>(rest + b) : rest;
  } else {
    if (rest == T(0)) return std::copysign(rest, b);
    return (rest < T(0)) != (b < T(0)) ? rest + b : rest;
  }
}
/// a to the power of b. Integers wrap; for b < 0 it is 1 / a^-b cut towards zero, and 0 for a = 0.
template <Number T>
SLUICE_HD T power_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (below_zero(b)) return a == T(1) ? T(1) : a == T(-1) ? ((b & T(1)) != T(0) ? T(-1) : T(1)) : T(0);
    using U = std::make_unsigned_t<T>;
    U base = static_cast<U>(a), result = 1;
    for (U left = static_cast<U>(b); left != 0; left = static_cast<U>(left >> 1)) {
      if ((left & 1) != 0) result = static_cast<U>(result * base);
      base = static_cast<U>(base * base);
    }
    return static_cast<T>(result);
  } else {
    return std::pow(a, b);
  }
}

/// a / b rounded down. Integers: by 0 gives 0. It fits rest_of_floored: a is b times it plus the rest, also where the
/// quotient itself would be rounded up to a whole number.
template <Number T>
SLUICE_HD T divide_floored(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == T(0)) return T(0);
    if constexpr (std::is_signed_v<T>) {
      using U = std::make_unsigned_t<T>;
      if (b == T(-1)) return static_cast<T>(U(0) - static_cast<U>(a));  // the least number has no negative
    }
    const T rest = static_cast<T>(a % b), quotient = static_cast<T>(a / b);
    return rest != T(0) && below_zero(rest) != below_zero(b) ? static_cast<T>(quotient - 1) : quotient;
  } else {
    const T quotient = a / b;
    if (b == T(0) || quotient - quotient != T(0)) return quotient;  // infinite or NaN
    if (b - b != T(0)) return a == T(0) || (a < T(0)) == (b < T(0)) ? quotient : T(-1);
    const T whole = (a - rest_of_floored(a, b)) / b;
    if (whole == T(0)) return std::copysign(T(0), quotient);
    return std::rint(whole);
  }
}

/// 1 / (1 + exp(-x)), without an exp that is out of range where the result is not.
template <Number T>
SLUICE_HD T sigmoid_of(T x) {
  const T e = exp(-std::fabs(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}
/// x times a share of it; 0 where the share is 0, of -infinity too.
template <Number T>
SLUICE_HD T times_share(T x, T share) {
  return share == T(0) ? -share : x * share;
}
/// log(1 + exp(x)).
template <Number T>
SLUICE_HD T softplus_of(T x) {
  return (x > T(0) ? x : x < T(0) ? T(0) : x) + log1p(exp(-std::fabs(x)));
}
/// x times a ramp from 0 at -3 to 1 at 3.
template <Number T>
SLUICE_HD T hardswish_of(T x) {
  return x <= T(-3) ? T(0) : x >= T(3) ? x : x * ((x + T(3)) / T(6));
}
/// log(exp(a) + exp(b)).
template <Number T>
SLUICE_HD T log_of_sum(T a, T b) {
  if (a == b) return a + T(0.69314718055994531);  // infinities too, whose difference is NaN
  return (a > b ? a : b) + log1p(exp(-std::fabs(a - b)));
}

/// The x with erf(x) = y: a formula that is right to three digits, and two steps of Halley's method. Near 1 the steps
/// go by erfc, because 1 - y is exact where erf(x) - y is not.
template <Number T>
SLUICE_HD T erf_inverse(T y) {
  const T size = std::fabs(y);
  if (!(size < T(1))) return size == T(1) ? y / (T(1) - size) : (y - y) / (y - y);
  T x = size * T(0.88622692545275801);
  if (size > T(0.1)) {
    const T log_rest = log((T(1) - size) * (T(1) + size)), half = T(4.3307467508) + log_rest / T(2);
    x = sqrt(sqrt(half * half - log_rest / T(0.147)) - half);
  }
  for (int i = 0; i < 3; ++i) {
    const T off = size < T(0.5) ? erf(x) - size : (T(1) - size) - erfc(x);
    const T newton = off / (T(1.1283791670955126) * exp(-x * x));
    x -= newton / (T(1) + x * newton);
  }
  return y < T(0) ? -x : size == T(0) ? y : x;
}

/// Bits of integers, and of bool its value.
template <Number T>
SLUICE_HD T inverted(T x) {
  if constexpr (std::is_same_v<T, bool>)
    return !x;
  else
    return static_cast<T>(~x);
}

}  // namespace sluice::functors
