// vjp, jvp and hessian_vector_product against closed forms and finite differences, and derivatives of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Doubles = std::vector<double>;
using Arrays = std::vector<NDArray>;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Doubles doubles(const NDArray& x) { return x.to_vector<double>(); }
NDArray array(Doubles elements) {
  const auto n = static_cast<std::int64_t>(elements.size());
  return from(elements, {n});
}

// f(x, y) = (x0 * y0, sin(x1) + y0^2); its matrix is [[y0, 0, x0], [0, cos(x1), 2 y0]].
std::vector<NDArray> pair(const NDArray& x, const NDArray& y) {
  const NDArray y0 = y(0);
  return {stack(Arrays{x(0) * y0, sin(x(1)) + y0 * y0}), sum(x) * 2.0};
}

TEST(Vjp, ClosedForm) {
  TestEngine test(2);
  const NDArray x = array({3, 0.5}), y = array({5});
  const auto [values, products] = vjp(pair, {x, y}, {array({1, 10}), array({100}).reshape({})});
  EXPECT_EQ(doubles(values[0]), (Doubles{15, std::sin(0.5) + 25}));
  EXPECT_EQ(doubles(values[1]), (Doubles{7}));
  EXPECT_THAT(doubles(products[0]), Pointwise(DoubleNear(1e-12), {5 + 200.0, 10 * std::cos(0.5) + 200}));
  EXPECT_THAT(doubles(products[1]), Pointwise(DoubleNear(1e-12), {3 + 100.0}));
  EXPECT_FALSE(products[0].requires_grad());
  EXPECT_FALSE(values[0].requires_grad());
}

TEST(Jvp, ClosedForm) {
  TestEngine test(2);
  const NDArray x = array({3, 0.5}), y = array({5});
  const auto [values, products] = jvp(pair, {x, y}, {array({1, 10}), array({100})});
  EXPECT_EQ(doubles(values[0]), (Doubles{15, std::sin(0.5) + 25}));
  EXPECT_THAT(doubles(products[0]), Pointwise(DoubleNear(1e-12), {5 + 300.0, 10 * std::cos(0.5) + 1000}));
  EXPECT_THAT(doubles(products[1]), Pointwise(DoubleNear(1e-12), {22.0}));
  EXPECT_FALSE(products[0].requires_grad());
}

TEST(Jvp, AgainstFiniteDifferences) {
  TestEngine test(2);
  RandomStream stream(11);
  const NDArray w = normal({4, 3}, stream).to(DType::f64), x = normal({2, 4}, stream).to(DType::f64),
                v = normal({2, 4}, stream).to(DType::f64);
  const auto f = [&](const NDArray& a) { return softmax(tanh(matmul(a, w)), 1) * exp(a.narrow(1, 0, 3)); };
  const double h = 1e-5;
  const Doubles difference = doubles((f(x + v * h) - f(x - v * h)) / (2 * h));
  EXPECT_THAT(doubles(jvp(f, {x}, {v}).products[0]), Pointwise(DoubleNear(1e-8), difference));
}

TEST(HessianVectorProduct, ClosedFormAndFiniteDifferences) {
  TestEngine test(2);
  // f = x0^3 x1: H = [[6 x0 x1, 3 x0^2], [3 x0^2, 0]]
  const auto f = [](const NDArray& x) { return x(0) * x(0) * x(0) * x(1); };
  const NDArray x = array({2, 5}), v = array({1, 10});
  EXPECT_EQ(doubles(hessian_vector_product(f, {x}, {v}).products[0]), (Doubles{60 + 120, 12}));
  RandomStream stream(12);
  const NDArray a = normal({3, 3}, stream).to(DType::f64), u = normal({3, 3}, stream).to(DType::f64);
  const auto g = [](const NDArray& y) { return sum(exp(matmul(y, sin(y)))); };
  const double h = 1e-5;
  const NDArray one;
  const auto gradient = [&](const NDArray& at) { return vjp(g, {at}, {one}).products[0]; };
  const Doubles difference = doubles((gradient(a + u * h) - gradient(a - u * h)) / (2 * h));
  const Doubles exact = doubles(hessian_vector_product(g, {a}, {u}).products[0]);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(exact[i], difference[i], 1e-5 * (1 + std::abs(exact[i]))) << i;
  }
}

TEST(Products, AreDifferentiable) {
  TestEngine test(2);
  const NDArray x = array({2, 3}).with_grad(), w = array({5, 7}).with_grad(), v = array({1, 10}).with_grad();
  const auto f = [&](const NDArray& a) { return a * a * a * w; };
  // jvp = 3 x^2 w v
  const NDArray j = jvp(f, {x}, {v}).products[0];
  const Arrays of_j = grad(sum(j), {x, w, v});
  EXPECT_EQ(doubles(of_j[0]), (Doubles{6 * 2 * 5, 6 * 3 * 7 * 10}));
  EXPECT_EQ(doubles(of_j[1]), (Doubles{12, 270}));
  EXPECT_EQ(doubles(of_j[2]), (Doubles{60, 189}));
  const Arrays of_v = grad(sum(vjp(f, {x}, {v}).products[0]), {x, w, v});
  EXPECT_EQ(doubles(of_v[0]), doubles(of_j[0]));
  EXPECT_EQ(doubles(of_v[1]), doubles(of_j[1]));
  // x^3 w as a sum: H v = 6 x w v
  const auto s = [&](const NDArray& a) { return sum(f(a)); };
  const Arrays of_h = grad(sum(hessian_vector_product(s, {x}, {v}).products[0]), {x, w, v});
  EXPECT_EQ(doubles(of_h[0]), (Doubles{30, 420}));
  EXPECT_EQ(doubles(of_h[1]), (Doubles{12, 180}));
  EXPECT_EQ(doubles(of_h[2]), (Doubles{60, 126}));
  // The function's weights alone, which want gradients.
  const NDArray plain = array({2, 3});
  EXPECT_EQ(doubles(grad(sum(jvp(f, {plain}, {ones_like(plain)}).products[0]), {w})[0]), (Doubles{12, 27}));
  EXPECT_FALSE(x.grad().defined());
  const NoGrad scope;
  EXPECT_FALSE(jvp(f, {x}, {v}).products[0].requires_grad());
  EXPECT_FALSE(vjp(f, {x}, {v}).values[0].requires_grad());
}

TEST(Products, OfOneArgumentThatTheFunctionReadsOtherwiseToo) {
  TestEngine test(2);
  const NDArray x = array({2, 3}).with_grad();
  const auto f = [&](const NDArray& a) { return a * x; };  // x is a constant to it
  EXPECT_EQ(doubles(vjp(f, {x}, {array({1, 1})}).products[0]), (Doubles{2, 3}));
  EXPECT_EQ(doubles(jvp(f, {x}, {array({1, 1})}).products[0]), (Doubles{2, 3}));
  const NDArray both = array({1, 2, 3, 4});
  EXPECT_EQ(doubles(jvp([](const NDArray& a) { return a * a; }, {both(slice(0, 4, 2))}, {array({1, 1})}).products[0]),
            (Doubles{2, 6}));
}

TEST(Products, AreZerosWhereNothingDepends) {
  TestEngine test(2);
  const NDArray x = array({2, 3}), y = array({4});
  const auto f = [](const NDArray& a, const NDArray&) { return a * 2.0; };
  EXPECT_EQ(doubles(vjp(f, {x, y}, {x}).products[1]), (Doubles{0}));
  EXPECT_EQ(doubles(jvp([&](const NDArray&) { return y; }, {x}, {x}).products[0]), (Doubles{0}));
  EXPECT_EQ(doubles(hessian_vector_product([](const NDArray& a) { return sum(a); }, {x}, {x}).products[0]),
            (Doubles{0, 0}));
}

TEST(Products, MisuseIsOneClearLine) {
  TestEngine test(2);
  const NDArray x = array({2, 3});
  const auto says = [](auto&& f, const char* what) {
    try {
      f();
      FAIL() << what;
    } catch (const ArrayError& e) {
      EXPECT_THAT(e.what(), HasSubstr(what));
    }
  };
  const auto twice = [](const NDArray& a) { return a * 2.0; };
  says([&] { vjp(twice, {x}, {array({1})}); }, "[vjp] products_test.cc");
  says([&] { vjp(twice, {x}, {}); }, "0 cotangents given, 1 wanted");
  says([&] { vjp(twice, {x, x}, {x}); }, "a function of 1 arrays, and 2 arrays for it");
  says([&] { jvp(twice, {x}, {array({1})}); }, "a tangent of (1,) f64 for an array of (2,) f64");
  says([&] { jvp(twice, {arange(0, 2)}, {arange(0, 2)}); }, "floating");
  says([&] { hessian_vector_product(twice, {x}, {x}); }, "not one array of one element");
}

}  // namespace
}  // namespace sluice::testing
