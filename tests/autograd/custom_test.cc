// Custom functions with a gradient, and hooks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Doubles = std::vector<double>;
using Arrays = std::vector<NDArray>;
using ::testing::HasSubstr;

Doubles doubles(const NDArray& x) { return x.to_vector<double>(); }
NDArray array(Doubles elements) {
  const auto n = static_cast<std::int64_t>(elements.size());
  return from(elements, {n});
}

/// exp, which keeps its result, and x * y, which keeps both.
CustomFunction exponential() {
  return {.name = "my_exp",
          .forward =
              [](Saved& saved, const Arrays& xs) {
                const NDArray y = exp(xs[0]);
                saved.keep({y});
                return Arrays{y};
              },
          .backward = [](const Saved& saved, const Arrays& g) { return Arrays{g[0] * saved[0]}; }};
}

CustomFunction product() {
  return {.name = "my_mul",
          .forward =
              [](Saved& saved, const Arrays& xs) {
                saved.keep(xs);
                return Arrays{xs[0] * xs[1]};
              },
          .backward =
              [](const Saved& saved, const Arrays& g) {
                return Arrays{g[0] * saved[1], g[0] * saved[0]};
              }};
}

TEST(Custom, GradientsOfGradientsAreThoseOfOperators) {
  TestEngine test(2);
  const NDArray x = array({0.5, -1}).with_grad(), y = array({3, 4}).with_grad();
  const auto mine = [&] {
    const NDArray e = apply_custom(exponential(), {x * 2.0})[0];
    return sum(apply_custom(product(), {e, y})[0] * x);
  };
  const auto operators = [&] { return sum(exp(x * 2.0) * y * x); };
  const Arrays xs{x, y};
  const auto derivatives = [&](const NDArray& l) {
    const Arrays first = grad(l, xs, {.create_graph = true});
    const Arrays second = grad(sum(first[0] * first[1]), xs, {.create_graph = true});
    const Arrays third = grad(sum(second[0]), xs);
    return std::vector<Doubles>{doubles(first[0]), doubles(first[1]), doubles(second[0]), doubles(second[1]),
                                doubles(third[0])};
  };
  const auto a = derivatives(mine()), b = derivatives(operators());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_THAT(a[i], ::testing::Pointwise(::testing::DoubleNear(1e-9), b[i]));
}

TEST(Custom, WhatBackwardSaysCounts) {
  TestEngine test(2);
  const CustomFunction straight{.name = "straight_round",
                                .forward = [](Saved&, const Arrays& xs) { return Arrays{round(xs[0])}; },
                                .backward = [](const Saved&, const Arrays& g) { return g; }};
  const NDArray x = array({0.4, 1.6}).with_grad();
  const NDArray y = apply_custom(straight, {x})[0];
  EXPECT_EQ(doubles(y), (Doubles{0, 2}));
  sum(y * y).backward();
  EXPECT_EQ(doubles(x.grad()), (Doubles{0, 4}));
  const NoGrad scope;
  EXPECT_FALSE(apply_custom(straight, {x})[0].requires_grad());
}

TEST(Custom, KeepsValuesThatAreWrittenLater) {
  TestEngine test(2);
  const NDArray x = array({1, 2}).with_grad(), c = array({3, 5});
  NDArray z = x * 1.0;
  const NDArray y = apply_custom(product(), {z, c})[0];
  z.fill(100);
  c.fill(100);
  sum(y).backward();
  EXPECT_EQ(doubles(x.grad()), (Doubles{3, 5}));
}

TEST(Custom, SeveralResultsViewsAndOnesThatNothingUses) {
  TestEngine test(2);
  const CustomFunction split{.name = "split",
                             .forward =
                                 [](Saved&, const Arrays& xs) {
                                   return Arrays{xs[0](slice(0, 2)), xs[0](slice(2, 4)), xs[0]};
                                 },
                             .backward =
                                 [](const Saved&, const Arrays& g) {
                                   return Arrays{concat(Arrays{g[0], g[1]}, 0) + g[2]};
                                 }};
  const NDArray x = array({1, 2, 3, 4}).with_grad();
  const Arrays parts = apply_custom(split, {x});
  EXPECT_EQ(doubles(parts[2]), (Doubles{1, 2, 3, 4}));
  sum(parts[1] * 3.0).backward();
  EXPECT_EQ(doubles(x.grad()), (Doubles{0, 0, 3, 3}));
  NDArray whole = apply_custom(split, {x})[2];
  whole *= 2.0;
  EXPECT_EQ(doubles(x), (Doubles{1, 2, 3, 4}));
}

TEST(Custom, MistakesAreOneClearLine) {
  TestEngine test(2);
  const NDArray x = array({1, 2}).with_grad();
  CustomFunction bad = exponential();
  const auto says = [&](const char* what) {
    try {
      sum(apply_custom(bad, {x})[0]).backward();
      FAIL() << what;
    } catch (const ArrayError& e) {
      EXPECT_THAT(e.what(), HasSubstr(what));
    }
  };
  bad.backward = [](const Saved&, const Arrays&) { return Arrays{}; };
  says("[my_exp] custom_test.cc");
  bad.backward = [](const Saved&, const Arrays&) { return Arrays{array({1, 2, 3})}; };
  says("its backward gave (3,) f64 for input 0, (2,) f64");
  bad.backward = [](const Saved& saved, const Arrays&) { return Arrays{saved[1]}; };
  says("array 1 of 1");
  bad.backward = nullptr;
  says("without backward");
}

TEST(Hooks, SeeAndReplaceInTheOrderInWhichTheyWereAdded) {
  TestEngine test(2);
  const NDArray x = array({1, 2}).with_grad();
  const NDArray y = x * 3.0;
  std::vector<std::string> calls;
  on_gradient(y, [&](const NDArray& g) {
    calls.push_back("first");
    EXPECT_EQ(doubles(g), (Doubles{2, 5}));  // the sum over its uses
    return g * 10.0;
  });
  on_gradient(y, [&](const NDArray& g) {
    calls.push_back("second");
    EXPECT_EQ(doubles(g), (Doubles{20, 50}));
    return NDArray();
  });
  GradientHook of_leaf = on_gradient(x, [&](const NDArray& g) {
    calls.push_back("leaf");
    return g + 1.0;
  });
  const NDArray l = sum(y) + sum(y * array({1, 4}));
  l.backward({.retain = true});
  EXPECT_EQ(doubles(x.grad()), (Doubles{61, 151}));
  EXPECT_EQ(calls, (std::vector<std::string>{"first", "second", "leaf"}));
  of_leaf.remove();
  of_leaf.remove();
  EXPECT_EQ(doubles(grad(l, {x})[0]), (Doubles{60, 150}));
}

TEST(Hooks, TakePartInGradientsOfGradients) {
  TestEngine test(2);
  const NDArray x = array({2}).with_grad();
  const NDArray y = x * x;
  on_gradient(y, [&](const NDArray& g) { return g * x; });  // so the gradient is 2 x^2 for sum(y)
  const NDArray g = grad(sum(y), {x}, {.create_graph = true})[0];
  EXPECT_EQ(doubles(g), (Doubles{8}));
  EXPECT_EQ(doubles(grad(sum(g), {x})[0]), (Doubles{8}));
}

TEST(Hooks, AreOfTheValueAndMayRemoveThemselves) {
  TestEngine test(2);
  const NDArray x = array({1, 2}).with_grad();
  NDArray y = x * 2.0;
  int calls = 0;
  GradientHook hook;
  hook = on_gradient(y, [&](const NDArray& g) {
    ++calls;
    EXPECT_EQ(doubles(g), (Doubles{7, 7}));
    hook.remove();
    return g;
  });
  y *= 7.0;  // the gradient of the old value is 7
  const NDArray l = sum(y);
  l.backward({.retain = true});
  l.backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(doubles(x.grad()), (Doubles{28, 28}));
  EXPECT_THROW(on_gradient(x(0), [](const NDArray& g) { return g; }), ArrayError);
  EXPECT_THROW(on_gradient(array({1}), [](const NDArray& g) { return g; }), ArrayError);
  on_gradient(x, [](const NDArray&) { return array({1}); });
  EXPECT_THROW(sum(x * 2.0).backward(), ArrayError);
}

TEST(Hooks, OfAViewOfTheWholeSeeTheGradientAsTheViewDoes) {
  TestEngine test(2);
  const NDArray x = array({1, 2, 3, 4, 5, 6}).with_grad();
  const NDArray y = (x * 2.0).reshape({2, 3}), turned = y.permute({1, 0}), backwards = y.flip({1});
  const NDArray weight = array({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  std::vector<Doubles> seen;
  const auto see = [&](const NDArray& view, const Dims& shape) {
    return on_gradient(view, [&seen, shape](const NDArray& g) {
      EXPECT_EQ(g.shape(), shape);
      seen.push_back(doubles(g));
      return NDArray();
    });
  };
  see(turned, {3, 2});
  see(backwards, {2, 3});
  see(y, {2, 3});
  on_gradient(turned, [](const NDArray& g) { return g * array({1, 10}); });  // the second row of y counts ten times
  sum(y * weight).backward();
  EXPECT_EQ(seen, (std::vector<Doubles>{{1, 4, 2, 5, 3, 6}, {3, 2, 1, 6, 5, 4}, {1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(doubles(x.grad()), (Doubles{2, 4, 6, 80, 100, 120}));
}

TEST(Hooks, OfAViewTakePartInGradientsOfGradients) {
  TestEngine test(2);
  const NDArray x = array({1, 2, 3, 4}).with_grad();
  const NDArray y = (x * x).reshape({2, 2}), turned = y.permute({1, 0});
  on_gradient(turned, [&](const NDArray& g) { return g * x.reshape({2, 2}).permute({1, 0}); });
  const NDArray g = grad(sum(turned), {x}, {.create_graph = true})[0];
  EXPECT_EQ(doubles(g), (Doubles{2, 8, 18, 32}));
  EXPECT_EQ(doubles(grad(sum(g), {x})[0]), (Doubles{4, 8, 12, 16}));
}

TEST(Hooks, OfAViewAreRefusedForAPartAndForRepeatedElements) {
  TestEngine test(2);
  const NDArray x = array({1, 2, 3, 4}).with_grad();
  const auto keep = [](const NDArray& g) { return g; };
  for (const NDArray& view : {x(0), x(slice(0, 2)), x(slice(0, 4, 2)), x.broadcast_to({2, 4}), x.unfold(0, 2, 1),
                              x.reshape({2, 2}).diagonal()}) {
    EXPECT_THROW(on_gradient(view, keep), ArrayError) << view.shape();
  }
  on_gradient(x.reshape({2, 2}).permute({1, 0}), [](const NDArray&) { return array({1}); });
  EXPECT_THROW(sum(x * 2.0).backward(), ArrayError);
}

TEST(Hooks, AreOfOneResultOfSeveral) {
  TestEngine test(2);
  const CustomFunction both{.name = "both",
                            .forward =
                                [](Saved&, const Arrays& xs) {
                                  return Arrays{xs[0] * 2.0, xs[0] * 3.0};
                                },
                            .backward = [](const Saved&, const Arrays& g) { return Arrays{g[0] * 2.0 + g[1] * 3.0}; }};
  const NDArray x = array({1, 2}).with_grad();
  const Arrays ys = apply_custom(both, {x});
  on_gradient(ys[1], [&](const NDArray& g) {
    EXPECT_EQ(doubles(g), (Doubles{7, 7}));
    return g * 10.0;
  });
  sum(ys[0] * 5.0 + ys[1] * 7.0).backward();
  EXPECT_EQ(doubles(x.grad()), (Doubles{220, 220}));
}

}  // namespace
}  // namespace sluice::testing
