// One row per operator for the tests: inputs and a call.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "sluice/sluice.h"

namespace sluice::testing {

using Arrays = std::vector<NDArray>;

struct OperatorCase {
  std::string name;
  std::vector<Dims> shapes;  ///< of the floating inputs
  std::function<NDArray(const Arrays&)> call;
  double low = -2, high = 2;  ///< range of the inputs
  bool second_order = true;   ///< the gradient has a gradient
  bool gradient = true;
  double tolerance = 1e-5;  ///< f32, cpu against reference, relative to the largest element
};

inline void PrintTo(const OperatorCase& c, std::ostream* out) { *out << c.name; }

inline NDArray labels_for(std::int64_t n, std::int64_t classes) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(i * 7 % classes);
  return from(list, {n});
}

inline std::vector<OperatorCase> operator_cases() {
  const Dims s{5, 7};
  std::vector<OperatorCase> list;
  const auto unary = [&](std::string name, NDArray (*f)(const Operand&), double low = -2, double high = 2) {
    list.push_back({name, {s}, [f](const Arrays& x) { return f(x[0]); }, low, high});
    list.push_back({name + " of a transposed slice",
                    {s},
                    [f](const Arrays& x) { return f(x[0](slice(1, 5, 2), reversed()).transpose()); },
                    low,
                    high});
  };
  unary("neg", neg);
  unary("abs", abs);
  unary("square", square);
  unary("exp", exp);
  unary("log", log, 0.2, 3);
  unary("sqrt", sqrt, 0.2, 3);
  unary("reciprocal", reciprocal, 0.3, 3);
  unary("sin", sin);
  unary("cos", cos);
  unary("tanh", tanh);
  unary("erf", erf);
  unary("sigmoid", sigmoid);
  unary("relu", relu);
  unary("gelu", gelu);
  using Two = NDArray (*)(const Operand&, const Operand&);
  const auto binary = [&](std::string name, Two f, double low = -2, double high = 2) {
    const auto call = [f](const Arrays& x) { return f(x[0], x[1]); };
    list.push_back({name, {s, s}, call, low, high});
    list.push_back({name + " of a row", {s, {7}}, call, low, high});
    list.push_back({name + " of a column", {{5, 1}, s}, call, low, high});
    list.push_back({name + " of scalars", {{}, {1}}, call, low, high});
    list.push_back({name + " outer", {{5, 1, 1}, {3, 4}}, call, low, high});
  };
  binary("add", add);
  binary("sub", sub);
  binary("mul", mul);
  binary("div", div, 0.4, 3);
  binary("maximum", maximum);
  binary("minimum", minimum);
  binary("pow", pow, 0.3, 2);
  using Right = NDArray (*)(const Operand&, const ScalarOperand&);
  const auto scalar = [&](std::string name, Right f, double low = -2, double high = 2) {
    list.push_back({name, {s}, [f](const Arrays& x) { return f(x[0], 0.75); }, low, high});
  };
  scalar("add_scalar", add);
  scalar("sub_scalar", sub);
  scalar("mul_scalar", mul);
  scalar("div_scalar", div);
  scalar("maximum_scalar", maximum);
  scalar("minimum_scalar", minimum);
  scalar("pow_scalar", pow, 0.3, 2);
  list.push_back({"sub_scalar, left", {s}, [](const Arrays& x) { return 2 - x[0]; }});
  list.push_back({"div_scalar, left", {s}, [](const Arrays& x) { return 2 / x[0]; }, 0.4, 3});
  list.push_back({"where", {s, {7}}, [](const Arrays& x) { return where(greater(x[0].detach(), 0), x[0], x[1]); }});
  list.push_back({"copy", {s}, [](const Arrays& x) { return x[0].copy(); }});
  list.push_back({"scatter", {s}, [](const Arrays& x) { return square(x[0](slice(0, 4, 3), slice(2, 6))); }});
  list.push_back({"scatter of a broadcast view", {{5, 1}}, [](const Arrays& x) {
                    return square(x[0].broadcast_to({5, 3}));
                  }});
  list.push_back({"view, permuted", {{2, 3, 4}}, [](const Arrays& x) { return square(x[0].permute({2, 0, 1})); }});
  list.push_back({"view, reshaped after slicing", {s}, [](const Arrays& x) {
                    return square(x[0](all, slice(1, 5)).reshape({4, 5}));
                  }});
  list.push_back({"concat", {s, {2, 7}}, [](const Arrays& x) { return square(concat(x, 0)); }});
  list.push_back({"concat, axis 1", {s, {5, 2}}, [](const Arrays& x) { return square(concat(x, -1)); }});
  list.push_back({"stack", {s, s}, [](const Arrays& x) { return square(stack(x, 1)); }});
  list.push_back({"take_rows", {s}, [](const Arrays& x) {
                    return square(take_rows(x[0], from(std::vector<std::int64_t>{4, 0, 4}, {3})));
                  }});
  for (bool keep : {false, true}) {
    list.push_back({"sum", {s}, [keep](const Arrays& x) { return square(sum(x[0], {}, keep)); }});
    list.push_back({"sum over 0", {s}, [keep](const Arrays& x) { return square(sum(x[0], {0}, keep)); }});
    list.push_back({"sum over 1", {s}, [keep](const Arrays& x) { return square(sum(x[0], {-1}, keep)); }});
    list.push_back({"sum over 0 2", {{3, 4, 5}}, [keep](const Arrays& x) { return square(sum(x[0], {0, 2}, keep)); }});
    list.push_back({"sum over 1 of 3", {{3, 4, 5}}, [keep](const Arrays& x) { return square(sum(x[0], {1}, keep)); }});
    list.push_back({"mean", {{3, 4, 5}}, [keep](const Arrays& x) { return square(mean(x[0], {0, 1}, keep)); }});
    list.push_back({"max", {{3, 4, 5}}, [keep](const Arrays& x) { return square(max(x[0], {1}, keep)); }});
    list.push_back({"max over 0 2", {{3, 4, 5}}, [keep](const Arrays& x) { return square(max(x[0], {0, -1}, keep)); }});
  }
  list.push_back({"softmax", {s}, [](const Arrays& x) { return square(softmax(x[0])); }});
  list.push_back({"softmax, axis 0", {s}, [](const Arrays& x) { return square(softmax(x[0], 0)); }});
  list.push_back({"log_softmax", {s}, [](const Arrays& x) { return square(log_softmax(x[0])); }});
  list.push_back({"cross_entropy", {s}, [](const Arrays& x) { return square(cross_entropy(x[0], labels_for(5, 7))); }});
  list.push_back(
      {"cross_entropy, divisor", {s}, [](const Arrays& x) { return cross_entropy(x[0], labels_for(5, 7), 20); }});
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0;
    list.push_back({"matmul", {ta ? Dims{4, 3} : Dims{3, 4}, tb ? Dims{5, 4} : Dims{4, 5}}, [ta, tb](const Arrays& x) {
                      return matmul(x[0], x[1], ta, tb);
                    }});
    list.push_back({"matmul of views",
                    {ta ? Dims{3, 4} : Dims{4, 3}, tb ? Dims{4, 5} : Dims{5, 4}},
                    [ta, tb](const Arrays& x) { return matmul(x[0].transpose(), x[1].transpose(), ta, tb); }});
  }
  list.push_back({"matmul of slices", {{6, 8}, {8, 6}}, [](const Arrays& x) {
                    return matmul(x[0](slice(0, 6, 2), slice(0, 8, 2)), x[1](slice(0, 8, 2), slice(1, 6)));
                  }});
  list.push_back({"matmul of a broadcast row", {{1, 8}, {8, 6}}, [](const Arrays& x) {
                    return matmul(x[0].broadcast_to({3, 8}), x[1]);
                  }});
  list.push_back({"linear", {{4, 6}, {3, 6}, {3}}, [](const Arrays& x) { return linear(x[0], x[1], x[2]); }});
  list.push_back({"linear without bias", {{4, 6}, {3, 6}}, [](const Arrays& x) { return linear(x[0], x[1]); }});
  list.push_back(
      {"linear_relu", {{4, 6}, {3, 6}, {3}}, [](const Arrays& x) { return square(linear(x[0], x[1], x[2], true)); }});
  list.push_back(
      {"linear_relu without bias", {{4, 6}, {3, 6}}, [](const Arrays& x) { return linear(x[0], x[1], {}, true); }});
  const auto conv = [&](std::string name, Dims x, Dims w, bool bias, Conv2dOptions options) {
    std::vector<Dims> shapes{x, w};
    if (bias) shapes.push_back({w[0]});
    list.push_back({name, shapes,
                    [options, bias](const Arrays& a) { return conv2d(a[0], a[1], bias ? a[2] : NDArray(), options); }});
  };
  conv("conv2d", {2, 3, 6, 5}, {4, 3, 3, 3}, true, {});
  conv("conv2d, padded", {2, 1, 6, 5}, {4, 1, 3, 3}, false, {.padding = 1});
  conv("conv2d, stride 2", {1, 2, 7, 7}, {3, 2, 3, 2}, true, {.stride = 2, .padding = 1});
  conv("conv2d_relu", {2, 3, 6, 5}, {4, 3, 3, 3}, true, {.relu = true});
  list.push_back({"conv2d of a view", {{6, 2, 5, 5}, {3, 2, 2, 2}}, [](const Arrays& a) {
                    return conv2d(a[0](slice(0, 6, 2)), a[1]);
                  }});
  list.push_back({.name = "max_pool2d",
                  .shapes = {{2, 3, 6, 4}},
                  .call = [](const Arrays& x) { return square(max_pool2d(x[0], 2)); },
                  .second_order = false});
  list.push_back({.name = "max_pool2d, overlapping",
                  .shapes = {{2, 1, 7, 5}},
                  .call = [](const Arrays& x) { return square(max_pool2d(x[0], 3, 2, 1)); },
                  .second_order = false});
  list.push_back({"add_n", {s, s, s}, [](const Arrays& x) { return square(add_n(x)); }});
  list.push_back({"to f64 and back", {s}, [](const Arrays& x) {
                    return x[0].dtype() == DType::f32 ? square(x[0].to(DType::f64)).to(DType::f32) : square(x[0]);
                  }});
  return list;
}

/// Inputs in the case's range, all different enough that no two elements change order under small steps.
inline Arrays make_inputs(const OperatorCase& c, DType dtype, std::uint64_t seed = 5) {
  RandomStream stream(seed);
  Arrays inputs;
  for (const Dims& shape : c.shapes) inputs.push_back(uniform(shape, stream, c.low, c.high, DType::f64).to(dtype));
  return inputs;
}

inline std::vector<double> values_of(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

}  // namespace sluice::testing
