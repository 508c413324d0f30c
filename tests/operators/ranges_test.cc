// Results that are numbers though something on the way to them is out of range; derivatives that are limits; and
// numbers that are rounded once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Of the sum of f(x), by x.
Numbers gradient(const Numbers& x, const std::function<NDArray(const NDArray&)>& f, DType dtype = DType::f64,
                 Dims shape = {}) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(x.size())};
  const NDArray a = from(x, shape).to(dtype).with_grad();
  const NDArray y = f(a);
  return values_of(grad({y}, {ones_like(y)}, {a})[0]);
}

void expect_close(const Numbers& got, const Numbers& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  double most = 0;
  for (const double v : wanted) most = std::isfinite(v) ? std::max(most, std::abs(v)) : most;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(wanted[i])) {
      EXPECT_NEAR(got[i], wanted[i], tolerance * most) << i;
    } else {
      EXPECT_EQ(got[i], wanted[i]) << i;
    }
  }
}

// ---- ranges

TEST(Ranges, LinspaceOfTheWholeRange) {
  EXPECT_THAT(values_of(linspace(-1e308, 1e308, 3, DType::f64)), ElementsAre(-1e308, 0, 1e308));
  expect_close(values_of(linspace(1.7e308, -1.7e308, 5, DType::f64)), {1.7e308, .85e308, 0, -.85e308, -1.7e308}, 1e-15);
  expect_close(values_of(linspace(-3e38, 3e38, 4, DType::f32)), {-3e38, -1e38, 1e38, 3e38}, 1e-7);
}

TEST(Ranges, UniformOfTheWholeRange) {
  for (const auto& [dtype, most] :
       {std::pair(DType::f32, 3e38), {DType::f64, 1.7e308}, {DType::f16, 65504.0}, {DType::bf16, 3e38}}) {
    RandomStream stream(1);
    const Numbers x = values_of(uniform({1000}, stream, -most, most, dtype));
    double sum = 0;
    for (const double v : x) {
      ASSERT_TRUE(std::abs(v) <= most) << v;
      sum += v / most;
    }
    EXPECT_LT(std::abs(sum), 60) << name_of(dtype);  // three deviations
  }
  RandomStream stream(1);
  EXPECT_THAT(message([&] { uniform({2}, stream, 0, 1e6, DType::f16); }), HasSubstr("is no range"));
  EXPECT_THAT(message([&] { uniform({2}, stream, 0, kInf); }), HasSubstr("is no range"));
  EXPECT_THAT(message([&] { uniform({2}, stream, NAN, 1); }), HasSubstr("is no range"));
}

TEST(Ranges, UniformIsBelowItsEnd) {
  const auto check = [](double low, double high, DType dtype) {
    RandomStream stream(3);
    double least = kInf, most = -kInf;
    for (const double v : values_of(uniform({200000}, stream, low, high, dtype))) {
      least = std::min(least, v), most = std::max(most, v);
    }
    EXPECT_GE(least, low) << name_of(dtype);
    EXPECT_LT(most, high) << name_of(dtype);
  };
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    check(0, 1, dtype);
    check(-1, 0, dtype);
    check(dtype == DType::bf16 ? 128 : 1000, dtype == DType::bf16 ? 129 : 1001, dtype);
  }
  RandomStream stream(3);
  EXPECT_THAT(values_of(uniform({2}, stream, 0.5, 0.5)), ElementsAre(0.5, 0.5));
}

TEST(Ranges, QuantilesOfInfinitiesAndLargeNumbers) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double large = dtype == DType::f32 ? 3e38 : 1.7e308;
    const auto median_of = [&](const Numbers& x) {
      return median(from(x, {static_cast<std::int64_t>(x.size())}).to(dtype)).item<double>();
    };
    EXPECT_EQ(median_of({-kInf, -kInf, 1, 2}), -kInf);
    EXPECT_EQ(median_of({1, 2, kInf, kInf, kInf, kInf}), kInf);
    EXPECT_EQ(median_of({kInf, kInf}), kInf);
    EXPECT_EQ(median_of({-kInf, -kInf}), -kInf);
    EXPECT_EQ(median_of({-kInf, 1, 2, kInf}), 1.5);
    EXPECT_EQ(median_of({-large, large}), 0);
    EXPECT_NEAR(quantile(from({-large, large}, {2}).to(dtype), 0.75).item<double>() / large, 0.5, 1e-6);
    EXPECT_TRUE(std::isnan(median_of({-kInf, kInf})));
  }
  EXPECT_THAT(gradient({-kInf, 1, 2, kInf}, [](const NDArray& x) { return median(x); }), ElementsAre(0, .5, .5, 0));
}

// The gradient by singular values that are scaled is that of the matrix that is not.
TEST(Ranges, GradientOfSvd) {
  const Numbers plain{2, -1, .5, 1, 3, .25, -.5, 1, 4};
  const auto f = [](const NDArray& x) {
    const Svd s = svd(x);
    return sum(s.u * from({.3, -.2, .5, .1, .7, -.4, .2, .6, .9}, {3, 3}).to(x.dtype())) +
           sum(s.vt * from({.1, .2, -.3, .8, -.5, .4, .6, .3, .2}, {3, 3}).to(x.dtype()));
  };
  const Numbers wanted = gradient(plain, f, DType::f64, {3, 3});
  for (const auto& [dtype, scale, tolerance] : {std::tuple(DType::f32, 1e25, 1e-5),
                                                {DType::f32, 1e-25, 1e-5},
                                                {DType::f64, 1e170, 1e-13},
                                                {DType::f64, 1e-170, 1e-13}}) {
    Numbers x = plain;
    for (double& v : x) v *= scale;
    Numbers got = gradient(x, f, dtype, {3, 3});
    for (double& v : got) v *= scale;
    expect_close(got, wanted, tolerance);
  }
}

// In f16 the products of results and gradients are rounded to much less than f32's.
TEST(Ranges, GradientOfSoftmaxInHalves) {
  const NDArray logits = drawn({4, 64}, 1), weights = drawn({4, 64}, 2) + 100.0;
  for (const bool logarithm : {false, true}) {
    const auto of = [&](DType dtype) {
      const NDArray x = logits.to(DType::f16).to(dtype).with_grad(), w = weights.to(DType::f16).to(dtype);
      const NDArray y = logarithm ? log_softmax(x) : softmax(x);
      return values_of(grad({y}, {w}, {x})[0]);
    };
    const Numbers wanted = of(DType::f64), got = of(DType::f16);
    // What the rounding of y to f16 makes of it is a part of 2^-11 of the largest term, which is that of the weights.
    double largest_y = 0;
    for (const double v : values_of(softmax(logits))) largest_y = std::max(largest_y, v);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], wanted[i], logarithm ? 5e-3 * 100 * largest_y * 64 : 2e-2 * largest_y) << i;
    }
  }
}

// What is far from 1 is normalised as what is not, and so are its gradients, which are as much smaller.
TEST(Ranges, NormalisationsOfLargeAndSmallNumbers) {
  const Numbers plain{1, 2, 3, 4, -1, .5, 2.5, -3, 0, 1, 7, 2, 1, 1, 2, -5};
  using F = NDArray (*)(const NDArray&);
  const std::pair<const char*, F> functions[] = {
      {"layer_norm", [](const NDArray& x) { return layer_norm(x, {}, {}, {.eps = 0}); }},
      {"rms_norm", [](const NDArray& x) { return rms_norm(x, {}, {.eps = 0}); }},
      {"group_norm",
       [](const NDArray& x) {
         return group_norm(x.reshape({2, 4, 2}), 2, {}, {}, 0);
       }},
      {"batch_norm", [](const NDArray& x) { return batch_norm(x, {}, {}, {}, {.eps = 0}); }},
      {"stddev", [](const NDArray& x) { return stddev(x, 1); }},
      {"norm", [](const NDArray& x) { return norm(x, 1); }},
      {"norm of order 3", [](const NDArray& x) { return norm(x, 1, {.ord = 3}); }},
  };
  for (const auto& [name, f] : functions) {
    const bool scales = std::string(name).find("_norm") == std::string::npos;  // others do not depend on the scale
    const auto run = [&, call = f](double scale, DType dtype) {
      Numbers x = plain;
      for (double& v : x) v *= scale;
      const NDArray a = from(x, {4, 4}).to(dtype).with_grad();
      const NDArray y = call(a), weights = drawn(y.shape(), 3).to(dtype);
      Numbers both = values_of(y);
      for (double& v : both) v /= scales ? scale : 1;
      for (const double v : values_of(grad({y}, {weights}, {a})[0])) both.push_back(scales ? v : v * scale);
      if (!scales) {
        const NDArray g = weights.with_grad(), dx = grad({f(a)}, {g}, {a}, {.create_graph = true})[0];
        for (const double v : values_of(grad({dx}, {drawn({4, 4}, 5).to(dtype)}, {g})[0])) both.push_back(v * scale);
      }
      return both;
    };
    const Numbers wanted = run(1, DType::f64);
    for (const double scale : {1e25, 1e30, 1e-25, 1e-30}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(std::log10(scale)));
      expect_close(run(scale, DType::f32), wanted, 1e-5);
      expect_close(run(scale, DType::f64), wanted, 1e-12);
    }
    if (!scales) continue;
    SCOPED_TRACE(name);
    expect_close(run(1e170, DType::f64), wanted, 1e-12);
    expect_close(run(1e-170, DType::f64), wanted, 1e-12);
  }
}

/// What is divided by the weights' sum does not depend on their scale.
TEST(Ranges, MeansByLargeAndSmallWeights) {
  const auto labels = from<std::int64_t>({0, 2, 1, 2}, {4});
  const Numbers logits{1, 3, 2, -1, 2, 0.5, 0.25, 4, 1, 2, 2, -2}, weight{0.5, 2, 1};
  for (const double scale : {1e-30, 1e-25, 1.0, 1e25, 1e30}) {
    for (const double by : {1.0, 1e25, 1e-25}) {
      const auto x = (from(logits, {4, 3}) * by).to(DType::f32).with_grad();
      const NDArray weights = (from(weight, {3}) * scale).to(DType::f32);
      const NDArray loss = nll_loss(x, labels, {.weight = weights});
      EXPECT_NEAR(loss.item<float>() / by, -(0.5 * 1 + 1 * 0.5 + 2 * 4 + 1 * -2) / 4.5, 1e-6) << scale << ", " << by;
      expect_close(values_of(grad({loss}, {ones_like(loss)}, {x})[0]),
                   {-0.5 / 4.5, 0, 0, 0, 0, -1 / 4.5, 0, -2 / 4.5, 0, 0, 0, -1 / 4.5}, 1e-6);
      const NDArray f64 = from(logits, {4, 3}) * by;
      for (const double smoothing : {0.0, 0.1}) {
        const double wanted =
            cross_entropy(f64, labels, {.weight = from(weight, {3}), .label_smoothing = smoothing}).item<double>();
        const NDArray got = cross_entropy(x, labels, {.weight = weights, .label_smoothing = smoothing});
        EXPECT_NEAR(got.item<float>(), wanted, 1e-6 * std::abs(wanted)) << scale << ", " << by << ", " << smoothing;
      }
    }
  }
  // No row, and rows of no weight.
  const NDArray none = zeros({3}), all = from({1.F, 2.F, 3.F}, {1, 3});
  EXPECT_TRUE(std::isnan(nll_loss(all, from<std::int64_t>({1}, {1}), {.weight = none}).item<float>()));
  EXPECT_TRUE(std::isnan(nll_loss(zeros({0, 3}), zeros({0}, DType::i64), {.weight = none}).item<float>()));
}

// ---- limits of derivatives

TEST(Limits, OfLogarithmsOfSums) {
  const auto all_of_it = [](const NDArray& x) { return logsumexp(x); };
  EXPECT_THAT(gradient({kInf, 2}, all_of_it), ElementsAre(1, 0));
  EXPECT_THAT(gradient({-kInf, 2}, all_of_it), ElementsAre(0, 1));
  EXPECT_THAT(gradient({-kInf, -kInf}, all_of_it), ElementsAre(0, 0));
  const auto running = [](const NDArray& x) { return logcumsumexp(x); };
  const double share = 1 / (1 + std::exp(1.0));
  expect_close(gradient({-kInf, -kInf, 1, 2}, running), {0, 0, 1 + share, 1 - share}, 1e-12);
  expect_close(gradient({-kInf, -kInf, -800, 2}, running), {0, 0, 1, 1}, 1e-12);
  expect_close(gradient({1, kInf, 2}, running), {1, 2, 0}, 1e-12);
  expect_close(gradient({1, 2, -kInf}, running), {1 + 2 * share, 2 * (1 - share), 0}, 1e-12);
  EXPECT_THAT(gradient({-kInf, 1}, [](const NDArray& x) { return logaddexp(x(slice(0, 1)), x(slice(1, 2))); }),
              ElementsAre(0, 1));
}

TEST(Limits, SecondDerivativesOfNormAtZero) {
  for (const double ord : {1.0, 2.0, 3.0, kInf}) {
    for (const Numbers& numbers : {Numbers{0, 0, 0}, Numbers{0, 3, 0}}) {
      const NDArray x = from(numbers, {3}).with_grad();
      const NDArray first = grad(norm(x, all, {.ord = ord}), {x}, {.create_graph = true})[0];
      for (const double v : values_of(first)) EXPECT_TRUE(std::isfinite(v)) << ord;
      if (!first.requires_grad()) continue;
      const NDArray second = grad(sum(square(first)), {x})[0];
      if (!second.defined()) continue;
      for (const double v : values_of(second)) EXPECT_TRUE(std::isfinite(v)) << ord << " of " << v;
    }
  }
}

TEST(Limits, GradientOfDetIsTheCofactors) {
  const auto f = [](const NDArray& x) { return det(x); };
  expect_close(gradient({1, 2, 2, 4}, f, DType::f64, {2, 2}), {4, -2, -2, 1}, 1e-12);
  expect_close(gradient({0, 0, 0, 0}, f, DType::f64, {2, 2}), {0, 0, 0, 0}, 1e-12);
  expect_close(gradient({0}, f, DType::f64, {1, 1}), {1}, 1e-12);
  expect_close(gradient({2, 0, 0, 0, 3, 0, 0, 0, 0}, f, DType::f64, {3, 3}), {0, 0, 0, 0, 0, 0, 0, 0, 6}, 1e-12);
  expect_close(gradient({1, 2, 2, 4, 1, 2, 3, 4}, f, DType::f32, {2, 2, 2}), {4, -2, -2, 1, 4, -3, -2, 1}, 1e-6);
  EXPECT_EQ(gradient({}, f, DType::f64, {0, 2, 2}).size(), 0U);
  // The determinant of two rows is a x d - b x c, whose second derivatives are constants.
  const NDArray x = from({1.0, 2.0, 2.0, 4.0}, {2, 2}).with_grad();
  const NDArray first = grad(det(x), {x}, {.create_graph = true})[0];
  expect_close(values_of(grad(sum(first * from({1.0, 2.0, 3.0, 5.0}, {2, 2})), {x})[0]), {5, -3, -2, 1}, 1e-9);
}

TEST(Limits, TransposedConvolutionWithMoreOutputPaddingThanStride) {
  const NDArray x = drawn({1, 2, 3, 4}, 1).with_grad(), w = drawn({2, 3, 2, 2}, 2).with_grad();
  const ConvTranspose2dOptions options{.stride = 1, .output_padding = {1, 2}, .dilation = 3};
  const NDArray y = conv_transpose2d(x, w, {}, options), weights = drawn(y.shape(), 3);
  ASSERT_EQ(y.shape(), (Dims{1, 3, 7, 9}));
  const std::vector<NDArray> got = grad({y}, {weights}, {x, w});
  // It is linear in each: <weights, y(x)> = <gradient, x>, in any direction.
  for (int i = 0; i < 2; ++i) {
    const NDArray other = drawn((i == 0 ? x : w).shape(), 7);
    const NDArray along =
        i == 0 ? conv_transpose2d(other, w.detach(), {}, options) : conv_transpose2d(x.detach(), other, {}, options);
    EXPECT_NEAR(sum(along * weights).item<double>(), sum(got[static_cast<std::size_t>(i)] * other).item<double>(),
                1e-11);
  }
}

// ---- roundings

/// The number of n bits of a half's kind that is nearest to x, by long double.
double nearest(long double x, int bits, int least_exponent) {
  if (x == 0 || !std::isfinite(static_cast<double>(x))) return static_cast<double>(x);
  const int exponent = std::max(std::ilogb(x), least_exponent);
  const long double unit = std::ldexp(1.0L, exponent - bits + 1);
  return static_cast<double>(std::nearbyint(x / unit) * unit);
}

TEST(Roundings, CastsRoundOnce) {
  std::mt19937_64 random(11);
  std::vector<double> reals;
  std::vector<std::int64_t> wholes;
  std::vector<std::int32_t> small;
  // Halfway between two numbers, and a little beside it.
  for (const int bits : {8, 11}) {
    for (int i = 0; i < 2000; ++i) {
      const double number = std::ldexp(static_cast<double>((random() >> (64 - bits)) | 1U << (bits - 1)) + 0.5,
                                       static_cast<int>(random() % 12) - 10);
      for (const double beside : {0.0, 1e-9, -1e-9, 1e-14, -1e-14}) reals.push_back(number * (1 + beside));
      const auto halfway = static_cast<std::int64_t>((random() >> (64 - bits) | 1U << (bits - 1)) * 2 + 1);
      for (const int shift : {20, 40, 62 - bits}) {
        for (const std::int64_t beside : {-1, 0, 1}) wholes.push_back((halfway << shift) + beside);
      }
      for (const std::int32_t beside : {-1, 0, 1}) {
        small.push_back(static_cast<std::int32_t>(halfway << (30 - bits)) + beside);
      }
    }
  }
  wholes.insert(wholes.end(), {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), 0});
  reals.insert(reals.end(), {1e-300, -1e-300, 5.9e-8, 2.98023223876953125e-8, 2.9802322387695e-8, 65519.999999, 65520.0,
                             1e300, 0x1p-149, 0x1.8p-150});
  const auto check = [](const auto& numbers) {
    const auto n = static_cast<std::int64_t>(numbers.size());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const bool f16 = dtype == DType::f16;
      const Numbers got = values_of(from(numbers, {n}).to(dtype));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        double wanted = nearest(static_cast<long double>(numbers[i]), f16 ? 11 : 8, f16 ? -14 : -126);
        if (std::abs(wanted) > (f16 ? 65504.0 : 0x1.fep127)) wanted = std::copysign(kInf, wanted);
        ASSERT_EQ(got[i], wanted) << name_of(dtype) << " of " << numbers[i];
      }
    }
  };
  check(reals);
  check(wholes);
  check(small);
}

TEST(Roundings, RangesOfLargeIntegersAreCounted) {
  const std::int64_t large = std::int64_t{1} << 60;
  EXPECT_THAT(arange(large, large + 3).to_vector<std::int64_t>(), ElementsAre(large, large + 1, large + 2));
  EXPECT_THAT(arange(large + 3, large, -2).to_vector<std::int64_t>(), ElementsAre(large + 3, large + 1));
  EXPECT_THAT(arange(std::numeric_limits<std::int64_t>::max() - 1, std::numeric_limits<std::int64_t>::max())
                  .to_vector<std::int64_t>(),
              ElementsAre(std::numeric_limits<std::int64_t>::max() - 1));
  EXPECT_EQ(arange(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), large).count(),
            16);
  EXPECT_EQ(arange(5, 5).count(), 0);
  EXPECT_EQ(arange(5, 3).count(), 0);
  EXPECT_EQ(arange(0, 7, 3).count(), 3);
  EXPECT_THAT(message([] { arange(0, 3, 0); }), HasSubstr("not a number of elements"));
}

}  // namespace
}  // namespace sluice::testing
