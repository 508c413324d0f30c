// Cases of elementwise operators beyond the first ones of ops_table.cc.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "operator_case.h"

namespace sluice::testing {

/// The x with erf(x) = y, by halving an interval.
inline double erfinv_by_halving(double y) {
  double low = -6, high = 6;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erf(middle) < y ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// unary(name, operator, formula, range of x) and binary(name, operator, formula, range) are those of ops_table.cc.
template <class Unary, class Binary>
void add_elementwise_cases(std::vector<OperatorCase>& list, const Unary& unary, const Binary& binary) {
  const Dims s{5, 7};
  unary("sign", sign, [](double x) { return x > 0 ? 1.0 : -1.0; });
  unary("floor", floor, [](double x) { return std::floor(x); });
  unary("ceil", ceil, [](double x) { return std::ceil(x); });
  unary("trunc", trunc, [](double x) { return std::trunc(x); });
  unary("round", round, [](double x) { return std::floor(x + 0.5); });  // no input is a half
  unary("exp2", exp2, [](double x) { return std::pow(2.0, x); });
  unary("expm1", expm1, [](double x) { return std::exp(x) - 1; });
  unary(
      "log1p", log1p, [](double x) { return std::log(1 + x); }, -0.7, 3);
  unary(
      "log2", log2, [](double x) { return std::log(x) / std::log(2.0); }, 0.2, 3);
  unary(
      "log10", log10, [](double x) { return std::log(x) / std::log(10.0); }, 0.2, 3);
  unary(
      "rsqrt", rsqrt, [](double x) { return std::pow(x, -0.5); }, 0.3, 3);
  unary(
      "tan", tan, [](double x) { return std::sin(x) / std::cos(x); }, -1.2, 1.2);
  unary(
      "asin", asin, [](double x) { return std::atan2(x, std::sqrt(1 - x * x)); }, -0.8, 0.8);
  unary(
      "acos", acos, [](double x) { return std::atan2(std::sqrt(1 - x * x), x); }, -0.8, 0.8);
  unary("atan", atan, [](double x) { return std::atan2(x, 1.0); });
  unary("sinh", sinh, [](double x) { return (std::exp(x) - std::exp(-x)) / 2; });
  unary("cosh", cosh, [](double x) { return (std::exp(x) + std::exp(-x)) / 2; });
  unary("asinh", asinh, [](double x) { return std::copysign(std::log(std::abs(x) + std::sqrt(x * x + 1)), x); });
  unary(
      "acosh", acosh, [](double x) { return std::log(x + std::sqrt(x * x - 1)); }, 1.2, 3);
  unary(
      "atanh", atanh, [](double x) { return std::log((1 + x) / (1 - x)) / 2; }, -0.8, 0.8);
  unary("erfc", erfc, [](double x) { return 1 - std::erf(x); });
  unary("erfinv", erfinv, erfinv_by_halving, -0.9, 0.9);
  unary(
      "relu6", relu6, [](double x) { return std::min(std::max(x, 0.0), 6.0); }, -4, 10);
  unary("silu", silu, [](double x) { return x / (1 + std::exp(-x)); });
  unary("softplus", softplus, [](double x) { return std::log(1 + std::exp(x)); });
  unary(
      "hardswish", hardswish, [](double x) { return x * std::min(std::max(x + 3, 0.0), 6.0) / 6; }, -5, 5);
  unary("gelu_tanh", gelu_tanh,
        [](double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))); });
  // with_number(name, operator, formula): a parameter p, given and left out.
  using Two = double (*)(double, double);
  const auto with_number = [&](std::string name, auto f, Two formula, double left_out) {
    list.push_back({name, {s}, [f](const Arrays& x) { return f(x[0], 0.75); }});
    list.back().formula = [formula](double a, double) { return formula(a, 0.75); };
    list.push_back({name + ", the number left out", {s}, [f](const Arrays& x) { return f(x[0]); }});
    list.back().formula = [formula, left_out](double a, double) { return formula(a, left_out); };
  };
#define OVERLOADS_OF(function) [](auto... x) { return function(x...); }
  with_number(
      "leaky_relu", OVERLOADS_OF(leaky_relu), [](double x, double p) { return x < 0 ? p * x : x; }, 0.01);
  with_number(
      "elu", OVERLOADS_OF(elu), [](double x, double p) { return x < 0 ? p * (std::exp(x) - 1) : x; }, 1);
  binary(
      "floor_div", OVERLOADS_OF(floor_div), [](double a, double b) { return std::floor(a / b); }, 0.3, 3);
  binary(
      "remainder", OVERLOADS_OF(remainder), [](double a, double b) { return a - b * std::floor(a / b); }, 0.3, 3);
  binary(
      "fmod", OVERLOADS_OF(fmod), [](double a, double b) { return a - b * std::trunc(a / b); }, 0.3, 3);
  binary("hypot", OVERLOADS_OF(hypot), [](double a, double b) { return std::sqrt(a * a + b * b); });
  binary("atan2", OVERLOADS_OF(atan2), [](double a, double b) { return std::atan2(a, b); });
  binary("logaddexp", OVERLOADS_OF(logaddexp), [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); });
#undef OVERLOADS_OF
  list.push_back(
      {"remainder of numbers of either sign", {s, s}, [](const Arrays& x) { return remainder(x[0], x[1]); }});
  list.push_back({"fmod of numbers of either sign", {s, s}, [](const Arrays& x) { return fmod(x[0], x[1]); }});
  list.push_back(
      {"floor_div of numbers of either sign", {s, s}, [](const Arrays& x) { return floor_div(x[0], x[1]); }});

  // Made of operators.
  const auto composed = [&](std::string name, auto call, Two formula) {
    list.push_back({name, {s, s}, call});
    list.back().formula = formula;
  };
  // Finite differences see the second term alone.
  for (const bool tanh : {false, true}) {
    list.push_back({std::string("gelu at -infinity") + (tanh ? " by tanh" : ""), {s}, [tanh](const Arrays& x) {
                      return gelu(x[0] - std::numeric_limits<double>::infinity(), {.tanh = tanh}) + square(x[0]);
                    }});
  }
  composed(
      "gelu by tanh", [](const Arrays& x) { return gelu(x[0], {.tanh = true}) + gelu(x[1], {}); },
      [](double a, double b) {
        return a / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (a + 0.044715 * a * a * a))) +
               b * std::erfc(-b / std::sqrt(2)) / 2;
      });
  composed(
      "softplus, beta", [](const Arrays& x) { return softplus(x[0], {.beta = 3}) + softplus(x[1], {}); },
      [](double a, double b) { return std::log(1 + std::exp(3 * a)) / 3 + std::log(1 + std::exp(b)); });
  composed(
      "clip", [](const Arrays& x) { return clip(x[0], {.low = -1, .high = 0.5}) + clip(x[1], {.high = 1}); },
      [](double a, double b) { return std::min(std::max(a, -1.0), 0.5) + std::min(b, 1.0); });
  composed(
      "lerp",
      [](const Arrays& x) {
        const NDArray y = lerp(x[0], x[1], 0.75);  // first, with every compiler: so gradients are added in one order
        return lerp(x[0], x[1], 0.25) + y;
      },
      [](double a, double b) { return a + b; });
  composed(
      "lerp by an array", [](const Arrays& x) { return lerp(x[0], x[1], x[1]); },
      [](double a, double b) { return a + (b - a) * b; });
  composed(
      "addcmul", [](const Arrays& x) { return addcmul(x[0], x[0], x[1]) + addcmul(x[0], x[1], x[1], {.value = 2}); },
      [](double a, double b) { return 2 * a + a * b + 2 * b * b; });
  list.push_back(
      {"addcdiv", {s, {7}, {5, 1}}, [](const Arrays& x) { return addcdiv(x[0], x[1], x[2], {.value = 0.5}); }, 0.4, 3});
  list.push_back({"glu", {{5, 6}}, [](const Arrays& x) { return glu(x[0]); }});
  list.push_back({"glu, axis 0", {{4, 3}}, [](const Arrays& x) { return glu(x[0], 0); }});

  // Without gradients: bool results, and bits.
  const auto plain = [&](std::string name, auto call, double low = -2, double high = 2) {
    list.push_back({.name = name,
                    .shapes = {s, {7}},
                    .call = [call](const Arrays& x) { return call(x[0].detach(), x[1].detach()); },
                    .low = low,
                    .high = high,
                    .second_order = false,
                    .gradient = false});
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto special = [](const NDArray& x) {
    return where(x > 1, infinity, where(x < -1, log(x), where(x < 0, -infinity, x)));
  };
  plain("isnan", [=](const NDArray& x, const NDArray&) { return isnan(special(x)); });
  plain("isinf", [=](const NDArray& x, const NDArray&) { return isinf(special(x)); });
  plain("isfinite", [=](const NDArray& x, const NDArray&) { return isfinite(special(x).transpose()); });
  plain("logical_not", [](const NDArray& x, const NDArray&) { return logical_not(trunc(x)); });
#define PLAIN_BINARY(name, change)                                                                                    \
  plain(                                                                                                              \
      #name, [](const NDArray& x, const NDArray& y) { return name(change(x), change(y)); }, -90, 90);                 \
  plain(                                                                                                              \
      #name "_scalar", [](const NDArray& x, const NDArray&) { return name(change(x)(slice(0, 5, 2)), 1); }, -90, 90); \
  plain(                                                                                                              \
      #name "_scalar, left", [](const NDArray& x, const NDArray&) { return name(1, change(x)); }, -90, 90);           \
  plain(#name " of bool", [](const NDArray& x, const NDArray& y) { return name(x > 0, y > 0); })
#define TO_I32(x) x.to(DType::i32)
#define TO_WHOLE(x) trunc(x / 45)
  PLAIN_BINARY(bitwise_and, TO_I32);
  PLAIN_BINARY(bitwise_or, TO_I32);
  PLAIN_BINARY(bitwise_xor, TO_I32);
  PLAIN_BINARY(logical_and, TO_WHOLE);
  PLAIN_BINARY(logical_or, TO_WHOLE);
  PLAIN_BINARY(logical_xor, TO_WHOLE);
#undef PLAIN_BINARY
#undef TO_I32
#undef TO_WHOLE
  plain(
      "bitwise_not", [](const NDArray& x, const NDArray& y) { return ~x.to(DType::i64) ^ y.to(DType::i32); }, -90, 90);
}

}  // namespace sluice::testing
