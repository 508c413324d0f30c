// The elementwise operators and the reductions as functors on numbers, made from their tables. A functor is what the
// operator is: every backend compiles it, and the tests judge it by formulas of their own
// (tests/operators/ops_table.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "sluice/operators/number_functions.h"
#include "sluice/resources/host_device.h"

namespace sluice::functors {

#define SLUICE_UNARY(Name, function, ...) \
  template <Number T>                     \
  SLUICE_HD T function(T x);
#define SLUICE_BINARY(Name, function, ...) \
  template <Number T>                      \
  SLUICE_HD T function(T a, T b);
#define SLUICE_COMPARISON(Name, function, ...) \
  template <Number T>                          \
  SLUICE_HD bool function(T a, T b);
#define SLUICE_PREDICATE(Name, function, ...) \
  template <Number T>                         \
  SLUICE_HD bool function(T x);
#include "sluice/operators/elementwise_table.inc"
template <Number T>
SLUICE_HD T where(bool condition, T a, T b) {
  return condition ? a : b;
}
template <Number T>
SLUICE_HD T zeros_like(T) {
  return T(0);
}

/// Integer arithmetic wraps on overflow, as the machine does, instead of being undefined.
template <Number T, class F>
SLUICE_HD T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}
template <Number T>
SLUICE_HD T plus(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x + y; });
}
template <Number T>
SLUICE_HD T minus(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x - y; });
}
template <Number T>
SLUICE_HD T times(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x * y; });
}
/// Of floating numbers the sign changes, of zeros too.
template <Number T>
SLUICE_HD T negative(T x) {
  if constexpr (std::is_integral_v<T>) {
    return minus(T(0), x);
  } else {
    return -x;
  }
}
template <Number T>
SLUICE_HD T magnitude(T x) {
  if constexpr (std::is_integral_v<T>) {
    return below_zero(x) ? minus(T(0), x) : x;
  } else {
    return std::fabs(x);
  }
}
/// Integers: towards zero; by 0 gives 0.
template <Number T>
SLUICE_HD T divide(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == T(0)) return T(0);
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return minus(T(0), a);  // the least number has no negative
    }
  }
  return static_cast<T>(a / b);
}

/// log(exp(a) + exp(b)), which overflows nowhere; NaN if any is NaN.
template <Number T>
SLUICE_HD T log_add(T a, T b) {
  if (a != a || b != b) return a + b;
  if (a == b) return a + T(0.69314718055994531);  // infinities too
  return a < b ? b + std::log1p(exp(a - b)) : a + std::log1p(exp(b - a));
}

enum class DTypes { floating, arithmetic, bits };

/// True if an expression's text has `name` as a word of its own.
constexpr bool mentions(std::string_view text, char name) {
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || !in_word(text[i - 1]), ends = i + 1 == text.size() || !in_word(text[i + 1]);
    if (text[i] == name && begins && ends) return true;
  }
  return false;
}

/// What T is in an expression of the table: the type of its numbers, double beside arrays.
template <class V>
using NumberBeside = std::conditional_t<std::is_arithmetic_v<V>, V, double>;

// The struct of a unary operator: what an entry of the table gives, or SLUICE_DEFINE_UNARY (define.h). Expressions see
// the functions on numbers above wherever the struct stands. gradient_of(g, kept): g times the derivative, for numbers
// and for arrays. `kept` is x, or with keeps_output y.
#define SLUICE_UNARY_FUNCTOR(Name, function, dtypes, value, gradient)                             \
  struct Name {                                                                                   \
    using DTypes = ::sluice::functors::DTypes;                                                    \
    static constexpr const char* name = #function;                                                \
    static constexpr const char* grad_name = #function "_grad";                                   \
    static constexpr DTypes takes = DTypes::dtypes;                                               \
    static constexpr bool keeps_input = ::sluice::functors::mentions(#gradient, 'x');             \
    static constexpr bool keeps_output = ::sluice::functors::mentions(#gradient, 'y');            \
    static_assert(!(keeps_input && keeps_output), "the gradient of " #function " names x and y"); \
    template <class T>                                                                            \
    SLUICE_HD T operator()(T x) const {                                                           \
      using namespace ::sluice::functors;                                                         \
      return static_cast<T>(value);                                                               \
    }                                                                                             \
    template <class V>                                                                            \
    SLUICE_HD static V gradient_of(const V& g, const V& kept) {                                   \
      using namespace ::sluice::functors;                                                         \
      using T [[maybe_unused]] = NumberBeside<V>;                                                 \
      [[maybe_unused]] const V& x = kept;                                                         \
      [[maybe_unused]] const V& y = kept;                                                         \
      return static_cast<V>(gradient);                                                            \
    }                                                                                             \
  };
#define SLUICE_UNARY(...) SLUICE_UNARY_FUNCTOR(__VA_ARGS__)
#define SLUICE_BINARY(Name, function, dtypes, value, ...)           \
  struct Name {                                                     \
    static constexpr const char* name = #function;                  \
    static constexpr const char* scalar_name = #function "_scalar"; \
    static constexpr DTypes takes = DTypes::dtypes;                 \
    template <class T>                                              \
    SLUICE_HD T operator()(T a, T b) const {                        \
      return static_cast<T>(value);                                 \
    }                                                               \
  };
#define SLUICE_COMPARISON(Name, function, value)                    \
  struct Name {                                                     \
    static constexpr const char* name = #function;                  \
    static constexpr const char* scalar_name = #function "_scalar"; \
    static constexpr DTypes takes = DTypes::arithmetic;             \
    template <class T>                                              \
    SLUICE_HD bool operator()(T a, T b) const {                     \
      return value;                                                 \
    }                                                               \
  };
#define SLUICE_PREDICATE(Name, function, value)         \
  struct Name {                                         \
    static constexpr const char* name = #function;      \
    static constexpr DTypes takes = DTypes::arithmetic; \
    template <class T>                                  \
    SLUICE_HD bool operator()(T x) const {              \
      return value;                                     \
    }                                                   \
  };
#define SLUICE_WITH_NUMBER(Name, function, dtypes, initial, value, ...) \
  struct Name {                                                         \
    static constexpr const char* name = #function;                      \
    static constexpr DTypes takes = DTypes::dtypes;                     \
    template <class T>                                                  \
    SLUICE_HD T operator()(T x, T p) const {                            \
      return static_cast<T>(value);                                     \
    }                                                                   \
  };
#include "sluice/operators/elementwise_table.inc"

#define SLUICE_UNARY(Name, function, ...) \
  template <Number T>                     \
  SLUICE_HD T function(T x) {             \
    return Name{}(x);                     \
  }
#define SLUICE_BINARY(Name, function, ...) \
  template <Number T>                      \
  SLUICE_HD T function(T a, T b) {         \
    return Name{}(a, b);                   \
  }
#define SLUICE_COMPARISON(Name, function, ...) \
  template <Number T>                          \
  SLUICE_HD bool function(T a, T b) {          \
    return Name{}(a, b);                       \
  }
#define SLUICE_PREDICATE(Name, function, ...) \
  template <Number T>                         \
  SLUICE_HD bool function(T x) {              \
    return Name{}(x);                         \
  }
#include "sluice/operators/elementwise_table.inc"

/// In the place of a value that a reduction over no elements does not have.
struct None {
  template <class T>
  SLUICE_HD explicit operator T() const {
    return T();
  }
};

// The struct of a reduction; its gradient is in ReductionRule (reduction.cc), or in SLUICE_DEFINE_REDUCTION (define.h).
#define SLUICE_REDUCTION_FUNCTOR(Name, function, dtypes, empty_value, fold)                           \
  struct Name {                                                                                       \
    using DTypes = ::sluice::functors::DTypes;                                                        \
    static constexpr const char* name = #function;                                                    \
    static constexpr bool integers = DTypes::dtypes == DTypes::arithmetic;                            \
    static constexpr bool needs_elements = std::string_view(#empty_value) == "none";                  \
    static constexpr bool widens = !needs_elements; /* sums and products of small integers are i64 */ \
    template <class T>                                                                                \
    SLUICE_HD static T empty() {                                                                      \
      using namespace ::sluice::functors;                                                             \
      [[maybe_unused]] constexpr ::sluice::functors::None none;                                       \
      return static_cast<T>(empty_value);                                                             \
    }                                                                                                 \
    template <class T>                                                                                \
    SLUICE_HD T operator()(T a, T b) const {                                                          \
      using namespace ::sluice::functors;                                                             \
      return static_cast<T>(fold);                                                                    \
    }                                                                                                 \
  };
#define SLUICE_REDUCTION(Name, function, dtypes, empty_value, fold, gradient) \
  SLUICE_REDUCTION_FUNCTOR(Name, function, dtypes, empty_value, fold)
#include "sluice/operators/reduction_table.inc"

/// any and all, of the bytes of bool arrays. They have no entry in the table: `all` is an object too.
struct Any {
  static constexpr const char* name = "any";
  template <class T>
  SLUICE_HD static T empty() {
    return T(0);
  }
  template <class T>
  SLUICE_HD T operator()(T a, T b) const {
    return a != T(0) || b != T(0) ? T(1) : T(0);
  }
};
struct Every {
  static constexpr const char* name = "all";
  template <class T>
  SLUICE_HD static T empty() {
    return T(1);
  }
  template <class T>
  SLUICE_HD T operator()(T a, T b) const {
    return a != T(0) && b != T(0) ? T(1) : T(0);
  }
};

/// The kernel of a unary operator's gradient, from g and the value that was kept.
template <class F>
struct Derivative {
  static constexpr DTypes takes = DTypes::floating;
  template <class T>
  SLUICE_HD T operator()(T g, T kept) const {
    return F::gradient_of(g, kept);
  }
};

/// A list of functors; the first type is there for the lists' commas.
template <class, class... F>
struct List {
  /// Calls f.template operator()<F>() for each functor.
  template <class Visit>
  static void each(Visit visit) {
    (visit.template operator()<F>(), ...);
  }
};
#define SLUICE_UNARY(Name, ...) , Name
using Unary = List<void
#include "sluice/operators/elementwise_table.inc"
                   >;
#define SLUICE_BINARY(Name, ...) , Name
using Binary = List<void
#include "sluice/operators/elementwise_table.inc"
                    >;
#define SLUICE_WITH_NUMBER(Name, ...) , Name
using WithNumber = List<void
#include "sluice/operators/elementwise_table.inc"
                        >;
#define SLUICE_PREDICATE(Name, ...) , Name
using Predicate = List<void
#include "sluice/operators/elementwise_table.inc"
                       >;
#define SLUICE_COMPARISON(Name, ...) , Name
using Comparison = List<void
#include "sluice/operators/elementwise_table.inc"
                        >;

#define SLUICE_REDUCTION(Name, ...) , Name
using Reduction = List<void
#include "sluice/operators/reduction_table.inc"
                       >;

}  // namespace sluice::functors
