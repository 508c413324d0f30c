#include "ops_table.h"

#include "ops_table_elementwise.h"

namespace sluice::testing {

std::vector<OperatorCase> operator_cases() {
  const Dims s{5, 7};
  std::vector<OperatorCase> list;
  // unary(name, operator, formula, range of x): the formula is the test's own, in double.
  using One = NDArray (*)(const Operand&);
  const auto unary = [&](std::string name, One f, double (*formula)(double), double low = -2, double high = 2) {
    list.push_back({name, {s}, [f](const Arrays& x) { return f(x[0]); }, low, high});
    list.back().formula = [formula](double a, double) { return formula(a); };
    list.push_back({name + " of a transposed slice",
                    {s},
                    [f](const Arrays& x) { return f(x[0](slice(1, 5, 2), reversed()).transpose()); },
                    low,
                    high});
  };
  unary("neg", neg, [](double x) { return -x; });
  unary("abs", abs, [](double x) { return std::abs(x); });
  unary("square", square, [](double x) { return x * x; });
  unary("exp", exp, [](double x) { return std::exp(x); });
  unary(
      "log", log, [](double x) { return std::log(x); }, 0.2, 3);
  unary(
      "sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.2, 3);
  unary(
      "reciprocal", reciprocal, [](double x) { return 1 / x; }, 0.3, 3);
  unary("sin", sin, [](double x) { return std::sin(x); });
  unary("cos", cos, [](double x) { return std::cos(x); });
  unary("tanh", tanh, [](double x) { return std::tanh(x); });
  unary("erf", erf, [](double x) { return std::erf(x); });
  unary("sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
  unary("relu", relu, [](double x) { return std::max(x, 0.0); });
  unary("gelu", gelu, [](double x) { return x * std::erfc(-x / std::sqrt(2)) / 2; });
  // binary(name, operator, formula, range): arrays that broadcast, and a number on either side.
  using Two = double (*)(double, double);
  const auto binary = [&](std::string name, auto f, Two formula, double low = -2, double high = 2) {
    const auto call = [f](const Arrays& x) { return f(x[0], x[1]); };
    list.push_back({name, {s, s}, call, low, high});
    list.back().formula = formula;
    list.push_back({name + " of a row", {s, {7}}, call, low, high});
    list.push_back({name + " of a column", {{5, 1}, s}, call, low, high});
    list.push_back({name + " of scalars", {{}, {1}}, call, low, high});
    list.push_back({name + " outer", {{5, 1, 1}, {3, 4}}, call, low, high});
    list.push_back({name + "_scalar", {s}, [f](const Arrays& x) { return f(x[0], 0.75); }, low, high});
    list.back().formula = [formula](double a, double) { return formula(a, 0.75); };
    list.push_back({name + "_scalar, left", {s}, [f](const Arrays& x) { return f(0.75, x[0]); }, low, high});
    list.back().formula = [formula](double a, double) { return formula(0.75, a); };
  };
#define OVERLOADS_OF(function) [](auto... x) { return function(x...); }
  binary("add", OVERLOADS_OF(add), [](double a, double b) { return a + b; });
  binary("sub", OVERLOADS_OF(sub), [](double a, double b) { return a - b; });
  binary("mul", OVERLOADS_OF(mul), [](double a, double b) { return a * b; });
  binary(
      "div", OVERLOADS_OF(div), [](double a, double b) { return a / b; }, 0.4, 3);
  binary("maximum", OVERLOADS_OF(maximum), [](double a, double b) { return std::max(a, b); });
  binary("minimum", OVERLOADS_OF(minimum), [](double a, double b) { return std::min(a, b); });
  binary(
      "pow", OVERLOADS_OF(pow), [](double a, double b) { return std::pow(a, b); }, 0.3, 2);
#undef OVERLOADS_OF
  add_elementwise_cases(list, unary, binary);
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
  // reduction(name, operator, fold, range): the fold of two results is the test's own.
  using Reduce = NDArray (*)(const Operand&, const Axes&, const ReduceOptions&);
  const auto reduction = [&](std::string name, Reduce f, Two fold, double low = -2, double high = 2) {
    const Dims cube{3, 4, 5};
    for (const bool keep : {false, true}) {
      for (const Dims& axes : {Dims{}, Dims{0}, Dims{-1}, Dims{1}, Dims{0, 2}, Dims{0, 1}}) {
        const auto call = [f, axes, keep](const Arrays& x) {
          return square(f(x[0], axes.empty() ? Axes(all) : Axes(axes), {.keep = keep}));
        };
        list.push_back({name + (axes.empty() ? "" : " over " + to_string(axes)), {cube}, call, low, high});
      }
    }
    list.push_back({name, {s}, [f](const Arrays& x) { return f(x[0], all, {}); }, low, high});
    list.back().fold = fold;
  };
  reduction("sum", sum, [](double a, double b) { return a + b; });
  reduction("max", max, [](double a, double b) { return std::max(a, b); });
  reduction("min", min, [](double a, double b) { return std::min(a, b); });
  reduction("prod", prod, [](double a, double b) { return a * b; });
  reduction("logsumexp", logsumexp, [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); });
  add_reduction_cases(list);
  list.push_back({"mean", {{3, 4, 5}}, [](const Arrays& x) { return square(mean(x[0], {0, 1})); }});
  list.push_back({"softmax", {s}, [](const Arrays& x) { return square(softmax(x[0])); }});
  list.push_back({"stack of views of another rank", {{24}, {3, 8}}, [](const Arrays& x) {
                    return square(stack({x[0].reshape({6, 4}), x[1].reshape({6, 4})}, -1));
                  }});
  list.push_back({"softmax of a scalar", {{}}, [](const Arrays& x) { return softmax(x[0]) + log_softmax(x[0], 0); }});
  list.push_back({"softmax, axis 0", {s}, [](const Arrays& x) { return square(softmax(x[0], 0)); }});
  list.push_back({"log_softmax", {s}, [](const Arrays& x) { return square(log_softmax(x[0])); }});
  list.push_back({"cross_entropy", {s}, [](const Arrays& x) { return square(cross_entropy(x[0], labels_for(5, 7))); }});
  list.push_back(
      {"cross_entropy, divisor", {s}, [](const Arrays& x) { return cross_entropy(x[0], labels_for(5, 7), 20); }});
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0;
    list.push_back({"matmul", {ta ? Dims{4, 3} : Dims{3, 4}, tb ? Dims{5, 4} : Dims{4, 5}}, [ta, tb](const Arrays& x) {
                      return matmul(x[0], x[1], {.transpose_a = ta, .transpose_b = tb});
                    }});
    list.push_back(
        {"matmul of views", {ta ? Dims{3, 4} : Dims{4, 3}, tb ? Dims{4, 5} : Dims{5, 4}}, [ta, tb](const Arrays& x) {
           return matmul(x[0].transpose(), x[1].transpose(), {.transpose_a = ta, .transpose_b = tb});
         }});
  }
  list.push_back({"matmul of slices", {{6, 8}, {8, 6}}, [](const Arrays& x) {
                    return matmul(x[0](slice(0, 6, 2), slice(0, 8, 2)), x[1](slice(0, 8, 2), slice(1, 6)));
                  }});
  list.push_back({"matmul of a broadcast row", {{1, 8}, {8, 6}}, [](const Arrays& x) {
                    return matmul(x[0].broadcast_to({3, 8}), x[1]);
                  }});
  list.push_back({"linear", {{4, 6}, {3, 6}, {3}}, [](const Arrays& x) { return linear(x[0], x[1], x[2]); }});
  list.push_back({"linear without bias", {{4, 6}, {3, 6}}, [](const Arrays& x) { return linear(x[0], x[1]); }});
  list.push_back({"linear_relu", {{4, 6}, {3, 6}, {3}}, [](const Arrays& x) {
                    return square(linear(x[0], x[1], x[2], {.relu = true}));
                  }});
  list.push_back({"linear_relu without bias", {{4, 6}, {3, 6}}, [](const Arrays& x) {
                    return linear(x[0], x[1], {}, {.relu = true});
                  }});
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
  const auto max_pool = [&](std::string name, Dims x, Size2d kernel, MaxPool2dOptions options) {
    list.push_back({"max_pool2d" + name, {x}, [kernel, options](const Arrays& a) {
                      return square(max_pool2d(a[0], kernel, options));
                    }});
  };
  max_pool("", {2, 3, 6, 4}, 2, {});
  max_pool(", overlapping", {2, 1, 7, 5}, 3, {.stride = 2, .padding = 1});
  max_pool(", ceil_mode", {2, 3, 5, 9}, 2, {.ceil_mode = true});
  max_pool(", ceil_mode, overlapping", {2, 1, 6, 4}, 3, {.stride = 2, .padding = 1, .ceil_mode = true});
  max_pool(", not square", {2, 2, 7, 5}, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}});
  max_pool(", dilated, ceil_mode", {1, 2, 8, 7}, 2, {.stride = 3, .padding = 1, .ceil_mode = true, .dilation = {2, 3}});
  list.push_back({"add_n", {s, s, s}, [](const Arrays& x) { return square(add_n(x)); }});
  add_shape_cases(list);
  list.push_back({"to f64 and back", {s}, [](const Arrays& x) {
                    return x[0].dtype() == DType::f32 ? square(x[0].to(DType::f64)).to(DType::f32) : square(x[0]);
                  }});
  add_network_cases(list);
  add_decomposition_cases(list);
  return list;
}

}  // namespace sluice::testing
