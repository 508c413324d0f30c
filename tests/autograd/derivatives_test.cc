// Derivatives where a formula taken as it stands would give NaN, infinity or 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;
using Function = std::function<NDArray(const NDArray&)>;

/// The n-th derivative of sum(f(x)). The last run is not recorded, so that both forms of the rules are seen.
Floats derivative(const Function& f, const NDArray& x, int n) {
  NDArray y = sum(f(x));
  const Arrays xs{x};
  for (int i = 1; i <= n; ++i) {
    const NDArray g = grad(y, xs, {.create_graph = i < n})[0];
    if (!g.defined()) return Floats(static_cast<std::size_t>(x.count()), 0.0F);  // the one before was constant
    if (i == n) return g.to_vector<float>();
    if (!g.requires_grad()) return Floats(static_cast<std::size_t>(x.count()), 0.0F);
    y = sum(g);
  }
  return {};
}

TEST(Relu, StopsWhateverComesBackWhereItIsFlat) {
  TestEngine test(2);
  const NDArray x = from({-1.0F, 0.0F, 4.0F}, {3}).with_grad();
  const std::pair<Function, Floats> rows[] = {
      {[](const NDArray& v) { return sqrt(relu(v)); }, {0, 0, 0.25F}},
      {[](const NDArray& v) { return log(relu(v)); }, {0, 0, 0.25F}},
      {[](const NDArray& v) { return 1 / relu(v); }, {0, 0, -0.0625F}},
      {[](const NDArray& v) { return reciprocal(relu(v)); }, {0, 0, -0.0625F}},
  };
  const float seconds[] = {-0.03125F, -0.0625F, 0.03125F, 0.03125F};
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    EXPECT_EQ(derivative(rows[i].first, x, 1), rows[i].second) << i;
    EXPECT_EQ(derivative(rows[i].first, x, 2), (Floats{0, 0, seconds[i]})) << i;
  }
}

TEST(Relu, FusedFormsStopItAsWell) {
  TestEngine test(2);
  const NDArray x = from({-1.0F, 0.0F, 4.0F}, {3, 1}).with_grad(), one = ones({1, 1});
  const Function fused = [&](const NDArray& v) { return sqrt(linear(v, one, {}, {.relu = true})); };
  EXPECT_EQ(derivative(fused, x, 1), (Floats{0, 0, 0.25F}));
  EXPECT_EQ(derivative(fused, x, 2), (Floats{0, 0, -0.03125F}));
  const NDArray image = from({-1.0F, 0.0F, 4.0F, -3.0F}, {1, 1, 2, 2}).with_grad(), weight = ones({1, 1, 1, 1});
  const Function convolved = [&](const NDArray& v) { return sqrt(conv2d(v, weight, {}, {.relu = true})); };
  EXPECT_EQ(derivative(convolved, image, 1), (Floats{0, 0, 0.25F, 0}));
  EXPECT_EQ(derivative(convolved, image, 2), (Floats{0, 0, -0.03125F, 0}));
}

TEST(Pow, OfSmallWholeExponentsAtZero) {
  TestEngine test(2);
  const NDArray x = from({0.0F, -2.0F, 3.0F}, {3}).with_grad();
  for (int exponent = 0; exponent <= 3; ++exponent) {
    const double s = exponent;
    const NDArray b = full({3}, s);
    for (int n = 1; n <= 3; ++n) {
      double factor = 1;  // of x ^ (s - n)
      for (int i = 0; i < n; ++i) factor *= s - i;
      Floats wanted;
      for (double v : {0.0, -2.0, 3.0}) {
        wanted.push_back(factor == 0 ? 0.0F : static_cast<float>(factor * std::pow(v, s - n)));
      }
      EXPECT_THAT(derivative([s](const NDArray& v) { return pow(v, s); }, x, n),
                  ::testing::Pointwise(::testing::FloatEq(), wanted))
          << "x ^ " << s << ", derivative " << n;
      EXPECT_THAT(derivative([&b](const NDArray& v) { return pow(v, b); }, x, n),
                  ::testing::Pointwise(::testing::FloatEq(), wanted))
          << "x ^ array of " << s << ", derivative " << n;
    }
  }
  // The mixed derivative of a ^ b, which is a ^ (b - 1) (1 + b log a), at b = 0.
  const NDArray a = from({2.0F}, {1}).with_grad(), b = zeros({1}).with_grad();
  const NDArray first = grad(sum(pow(a, b)), Arrays{a}, {.create_graph = true})[0];
  EXPECT_FLOAT_EQ(grad(sum(first), Arrays{b})[0].item<float>(), 0.5F);
  const NDArray up = from({0.0F, 2.0F}, {2}).with_grad();
  EXPECT_EQ(derivative([](const NDArray& v) { return pow(zeros({2}), v); }, up, 1), (Floats{0, 0}));
}

TEST(Division, ByNumbersWhoseSquareIsOutOfRange) {
  TestEngine test(2);
  const NDArray a = from({1e30F, 1e-30F}, {2}).with_grad(), b = from({1e20F, 1e-25F}, {2}).with_grad();
  sum(a / b).backward();
  EXPECT_THAT(a.grad().to_vector<float>(),
              ::testing::ElementsAre(::testing::FloatEq(1e-20F), ::testing::FloatEq(1e25F)));
  EXPECT_THAT(b.grad().to_vector<float>(),
              ::testing::ElementsAre(::testing::FloatEq(-1e-10F), ::testing::FloatEq(-1e20F)));
  const NDArray c = from({1e20F}, {1}).with_grad();
  sum(1e30 / c).backward();
  EXPECT_FLOAT_EQ(c.grad().item<float>(), -1e-10F);
}

}  // namespace
}  // namespace sluice::testing
