// The scalar functions of elementwise operators, written once for all backends.
//
// A unary functor has the function f(x) and its derivative df(v). Here v is x or, with `from_output`, f(x), whichever
// is cheaper to keep. To add one: the functor and its entry in the list at the end; its function in elementwise.h and
// elementwise.cc; there also its derivative<> in terms of operators, for gradients of gradients; its case in
// tests/operators/ops_table.h. Rows, kernels, broadcasting and gradients are made from the list.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "sluice/resources/host_device.h"

namespace sluice::functors {

/// Integer arithmetic wraps on overflow, as the machine does, instead of being undefined.
template <class T, class F>
SLUICE_HD inline T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

#define SLUICE_UNARY(Name, text, takes_integers, keeps_output, f_of_x, df_of_v) \
  struct Name {                                                                 \
    static constexpr const char* name = text;                                   \
    static constexpr const char* grad_name = text "_grad";                      \
    static constexpr bool integers = takes_integers;                            \
    static constexpr bool from_output = keeps_output;                           \
    template <class T>                                                          \
    SLUICE_HD T operator()(T x) const {                                         \
      return static_cast<T>(f_of_x);                                            \
    }                                                                           \
    template <class T>                                                          \
    SLUICE_HD static T df([[maybe_unused]] T v) {                               \
      return static_cast<T>(df_of_v);                                           \
    }                                                                           \
  }

SLUICE_UNARY(Neg, "neg", true, false, wrapping(T(0), x, [](auto a, auto b) { return a - b; }), -1);
SLUICE_UNARY(Abs, "abs", true, false,
             x<T(0) ? wrapping(T(0), x, [](auto a, auto b) { return a - b; }) : x, v> T(0) ? 1
             : v < T(0) ? -1
                        : 0);
SLUICE_UNARY(Square, "square", true, false, wrapping(x, x, [](auto a, auto b) { return a * b; }), 2 * v);
SLUICE_UNARY(Exp, "exp", false, true, std::exp(x), v);
SLUICE_UNARY(Log, "log", false, false, std::log(x), 1 / v);
SLUICE_UNARY(Sqrt, "sqrt", false, true, std::sqrt(x), T(0.5) / v);
SLUICE_UNARY(Reciprocal, "reciprocal", false, true, 1 / x, -v* v);
SLUICE_UNARY(Sin, "sin", false, false, std::sin(x), std::cos(v));
SLUICE_UNARY(Cos, "cos", false, false, std::cos(x), -std::sin(v));
SLUICE_UNARY(Tanh, "tanh", false, true, std::tanh(x), 1 - v * v);
SLUICE_UNARY(Erf, "erf", false, false, std::erf(x), T(1.1283791670955126) * std::exp(-v * v));
SLUICE_UNARY(Sigmoid, "sigmoid", false, true, 1 / (1 + std::exp(-x)), v*(1 - v));
SLUICE_UNARY(Relu, "relu", true, true, x<T(0) ? T(0) : x, v> T(0) ? 1 : 0);
SLUICE_UNARY(Gelu, "gelu", false, false, T(0.5) * x * (1 + std::erf(x * T(0.70710678118654752))),
             T(0.5) * (1 + std::erf(v * T(0.70710678118654752))) +
                 v * T(0.39894228040143268) * std::exp(T(-0.5) * v * v));
#undef SLUICE_UNARY

#define SLUICE_BINARY(Name, text, takes_integers, f_of_a_b)    \
  struct Name {                                                \
    static constexpr const char* name = text;                  \
    static constexpr const char* scalar_name = text "_scalar"; \
    static constexpr bool integers = takes_integers;           \
    template <class T>                                         \
    SLUICE_HD auto operator()(T a, T b) const {                \
      return f_of_a_b;                                         \
    }                                                          \
  }

template <class T>
SLUICE_HD inline T divide(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return 0;
    if (b == -1) return wrapping(T(0), a, [](auto x, auto y) { return x - y; });  // the least number has no negative
  }
  return a / b;
}

SLUICE_BINARY(Add, "add", true, wrapping(a, b, [](auto x, auto y) { return x + y; }));
SLUICE_BINARY(Sub, "sub", true, wrapping(a, b, [](auto x, auto y) { return x - y; }));
SLUICE_BINARY(Mul, "mul", true, wrapping(a, b, [](auto x, auto y) { return x * y; }));
SLUICE_BINARY(Div, "div", true, divide(a, b));
SLUICE_BINARY(Maximum, "maximum", true, (a != a || a >= b) ? a : b);
SLUICE_BINARY(Minimum, "minimum", true, (a != a || a <= b) ? a : b);
SLUICE_BINARY(Pow, "pow", false, static_cast<T>(std::pow(a, b)));
SLUICE_BINARY(Equal, "equal", true, a == b);
SLUICE_BINARY(NotEqual, "not_equal", true, a != b);
SLUICE_BINARY(Less, "less", true, a < b);
SLUICE_BINARY(LessEqual, "less_equal", true, a <= b);
SLUICE_BINARY(Greater, "greater", true, a > b);
SLUICE_BINARY(GreaterEqual, "greater_equal", true, a >= b);
#undef SLUICE_BINARY

/// g f'(x), from g and the value that was kept.
template <class F>
struct Derivative {
  static constexpr bool integers = false;
  template <class T>
  SLUICE_HD T operator()(T g, T v) const {
    return g * F::template df<T>(v);
  }
};
/// Where relu is flat the gradient is 0, whatever comes: infinity times 0 would be NaN.
template <>
struct Derivative<Relu> {
  static constexpr bool integers = false;
  template <class T>
  SLUICE_HD T operator()(T g, T v) const {
    return v > T(0) ? g : T(0);
  }
};

template <class... F>
struct List {
  /// Calls f.template operator()<F>() for each functor.
  template <class Visit>
  static void each(Visit visit) {
    (visit.template operator()<F>(), ...);
  }
};
using Unary = List<Neg, Abs, Square, Exp, Log, Sqrt, Reciprocal, Sin, Cos, Tanh, Erf, Sigmoid, Relu, Gelu>;
using Binary = List<Add, Sub, Mul, Div, Maximum, Minimum, Pow>;
using Comparison = List<Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual>;

}  // namespace sluice::functors
