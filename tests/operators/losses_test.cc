// Losses against their formulas in double, and what they do at the ends of their ranges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<double> kX{-1.5, 0, 0.3, 2, -0.2, 40}, kTarget{0.1, 0.9, 0, 1, 0.5, 0.25};
NDArray xs() { return from(kX, {2, 3}); }
NDArray targets() { return from(kTarget, {2, 3}); }

/// `loss` of elements against `formula`, in each reduction.
template <class F>
void check(F loss, double (*formula)(double, double), double count = 6) {
  std::vector<double> wanted;
  double total = 0;
  for (std::size_t i = 0; i < kX.size(); ++i) wanted.push_back(formula(kX[i], kTarget[i]));
  for (const double v : wanted) total += v;
  const std::vector<double> got = values_of(loss(LossOptions{Reduction::none}));
  for (std::size_t i = 0; i < kX.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12 * (1 + std::abs(wanted[i]))) << i;
  EXPECT_NEAR(loss(LossOptions{Reduction::sum}).template item<double>(), total, 1e-11);
  EXPECT_NEAR(loss(LossOptions{}).template item<double>(), total / count, 1e-11);
  EXPECT_NEAR(loss(LossOptions{.divisor = 48}).template item<double>(), total / 48, 1e-11);
}

TEST(Losses, AreTheirFormulas) {
  check([](LossOptions o) { return mse_loss(xs(), targets(), o); },
        [](double x, double t) { return (x - t) * (x - t); });
  check([](LossOptions o) { return l1_loss(xs(), targets(), o); }, [](double x, double t) { return std::abs(x - t); });
  check(
      [](LossOptions o) {
        return huber_loss(xs(), targets(), {.reduction = o.reduction, .divisor = o.divisor, .delta = 0.5});
      },
      [](double x, double t) {
        const double d = std::abs(x - t);
        return d <= 0.5 ? d * d / 2 : 0.5 * (d - 0.25);
      });
  check(
      [](LossOptions o) { return bce_with_logits(xs(), targets(), {.reduction = o.reduction, .divisor = o.divisor}); },
      [](double x, double t) { return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x))); });
  check([](LossOptions o) { return kl_div(xs(), targets(), o); },
        [](double x, double t) { return t == 0 ? 0 : t * (std::log(t) - x); }, 2);
}

TEST(Losses, GradientsAtTheEndsAreExact) {
  NDArray x = from({0.0, 800.0, -800.0}, {3}).with_grad(), t = from({0.25, 1.0, 0.0}, {3}).with_grad();
  bce_with_logits(x, t, {.reduction = Reduction::sum}).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0.25, 0, 0}));
  EXPECT_EQ(bce_with_logits(x, t, {.reduction = Reduction::none}).to_vector<double>()[1], 0);
  x.zero_grad();
  kl_div(x, from({0.0, 0.5, 0.5}, {3}).with_grad()).backward();
  for (const double v : x.grad().to_vector<double>()) EXPECT_TRUE(std::isfinite(v));
}

TEST(Losses, AMeanInF16DoesNotOverflow) {
  EXPECT_EQ(mse_loss(full({100, 100}, 20, DType::f16), zeros({}, DType::f16)).to(DType::f32).item<float>(), 400);
}

/// The loss of each row, and its mean, by loops in double.
struct ByLoops {
  std::vector<double> losses;
  double mean = 0;
};
ByLoops cross_entropy_by_loops(const std::vector<double>& x, std::int64_t classes,
                               const std::vector<std::int64_t>& labels, std::int64_t ignored,
                               const std::vector<double>& weight, double smoothing) {
  ByLoops result;
  double total = 0, weights = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == ignored) {
      result.losses.push_back(0);
      continue;
    }
    const double* const row = x.data() + static_cast<std::int64_t>(i) * classes;
    double sum = 0, all = 0;
    for (std::int64_t j = 0; j < classes; ++j) sum += std::exp(row[j]);
    const auto of = [&](std::int64_t j) { return weight[static_cast<std::size_t>(j)] * (std::log(sum) - row[j]); };
    for (std::int64_t j = 0; j < classes; ++j) all += of(j);
    result.losses.push_back((1 - smoothing) * of(labels[i]) + smoothing / static_cast<double>(classes) * all);
    total += result.losses.back();
    weights += weight[static_cast<std::size_t>(labels[i])];
  }
  result.mean = total / weights;
  return result;
}

TEST(Losses, CrossEntropyWithAllOptionsIsTheSumThatItNames) {
  RandomStream stream(7);
  const NDArray x = uniform({6, 4}, stream, -3, 3, DType::f64);
  const std::vector<std::int64_t> labels{0, 3, 2, -100, 1, 3};
  const std::vector<double> weight{0.5, 2, 1, 0.25};
  for (const bool weighted : {false, true}) {
    for (const double smoothing : {0.0, 0.2}) {
      CrossEntropyOptions options{
          .ignore_index = -100, .weight = weighted ? from(weight, {4}) : NDArray(), .label_smoothing = smoothing};
      const ByLoops wanted = cross_entropy_by_loops(x.to_vector<double>(), 4, labels, -100,
                                                    weighted ? weight : std::vector<double>(4, 1), smoothing);
      EXPECT_NEAR(cross_entropy(x, from(labels, {6}), options).item<double>(), wanted.mean, 1e-12);
      options.reduction = Reduction::none;
      const std::vector<double> got = values_of(cross_entropy(x, from(labels, {6}), options));
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted.losses[i], 1e-12);
      if (smoothing == 0) {
        const std::vector<double> rows =
            values_of(nll_loss(log_softmax(x), from(labels, {6}),
                               {.reduction = Reduction::none, .ignore_index = -100, .weight = options.weight}));
        EXPECT_EQ(rows, got);
      }
      // Images: classes are axis 1.
      const NDArray image = x.reshape({2, 3, 4}).permute({0, 2, 1});
      EXPECT_EQ(values_of(cross_entropy(image, from(labels, {2, 3}), options)), got);
    }
  }
  // The one pass and the composition agree.
  const NDArray names = from(std::vector<std::int64_t>{0, 3, 2, 2, 1, 3}, {6});
  EXPECT_NEAR(cross_entropy(x, names).item<double>(), cross_entropy(x, names, {.ignore_index = -100}).item<double>(),
              1e-12);
  EXPECT_EQ(cross_entropy(x, names, CrossEntropyOptions()).to_bytes(), cross_entropy(x, names).to_bytes());
}

TEST(Losses, IgnoredLabelsGiveNothing) {
  const NDArray x = log_softmax(ones({2, 3}, DType::f64));
  EXPECT_NEAR(nll_loss(x, from<std::int64_t>({0, 3}, {2}), {.ignore_index = 3}).item<double>(), std::log(3.0), 1e-12);
  EXPECT_TRUE(std::isnan(nll_loss(x, from<std::int64_t>({3, 3}, {2}), {.ignore_index = 3}).item<double>()));
  NDArray leaf = ones({2, 3}).with_grad();
  cross_entropy(leaf, from<std::int64_t>({1, 7}, {2}), {.ignore_index = 7}).backward();
  const std::vector<float> g = leaf.grad().to_vector<float>();
  EXPECT_EQ((std::vector<float>(g.begin() + 3, g.end())), (std::vector<float>{0, 0, 0}));
  EXPECT_LT(g[1], 0);
}

// Each struct of options is a plain aggregate, whose fields can be named at the call, those of every loss too.
TEST(Losses, OptionsAreNamedAtTheCall) {
  const NDArray x = ones({2, 3}, DType::f64), y = zeros({2, 3}, DType::f64), labels = from<std::int64_t>({0, 1}, {2});
  const auto sum_of = [](const NDArray& loss) { return loss.item<double>(); };
  EXPECT_EQ(sum_of(mse_loss(x, y, {.reduction = Reduction::sum, .divisor = 2})), 6);
  EXPECT_EQ(sum_of(huber_loss(x, y, {.reduction = Reduction::sum, .delta = 0.5})), 6 * 0.375);
  EXPECT_EQ(sum_of(huber_loss(x, y, {.divisor = 3, .delta = 0.5})), 2 * 0.375);
  EXPECT_NEAR(
      sum_of(bce_with_logits(x, y + 1, {.reduction = Reduction::sum, .positive_weight = full({}, 2.0, DType::f64)})),
      12 * std::log1p(std::exp(-1.0)), 1e-12);
  EXPECT_EQ(sum_of(nll_loss(-x, labels, {.reduction = Reduction::sum, .ignore_index = 1})), 1);
  EXPECT_EQ(sum_of(nll_loss(-x, labels, {.divisor = 4, .weight = from({2.0, 4.0, 1.0}, {3})})), 1.5);
  EXPECT_NEAR(
      sum_of(cross_entropy(x, labels, {.reduction = Reduction::sum, .ignore_index = 1, .label_smoothing = 0.1})),
      std::log(3.0), 1e-12);
  EXPECT_NEAR(sum_of(cross_entropy(x, labels, {.label_smoothing = 0.1})), std::log(3.0), 1e-12);
}

TEST(Losses, ErrorsAreOneLine) {
  const NDArray x = zeros({2, 3});
  for (const Dims& shape : {Dims{2, 2, 3}, Dims{3, 1}}) {  // else the mean would be of other losses than x has
    EXPECT_THAT(message([&] { bce_with_logits(x, x, {.positive_weight = ones(shape)}); }),
                ::testing::MatchesRegex(
                    "\\[bce_with_logits\\] losses_test.cc:[0-9]+: \\(2, 3\\) x .*: positive_weight does not fit x"));
  }
  EXPECT_THAT(message([&] {
                mse_loss(x, zeros({4, 3}));
              }),
              ::testing::MatchesRegex(
                  "\\[mse_loss\\] losses_test.cc:[0-9]+: \\(2, 3\\) x \\(4, 3\\): the target does not fit x"));
  EXPECT_THAT(message([&] { mse_loss(zeros({3}), x); }), HasSubstr("does not fit"));
  EXPECT_THAT(message([&] { l1_loss(x.to(DType::i32), x); }), HasSubstr("floating"));
  EXPECT_THAT(message([&] { huber_loss(x, x, {.delta = 0}); }), HasSubstr("delta must be above 0"));
  EXPECT_THAT(message([&] { nll_loss(x, zeros({2})); }), HasSubstr("labels are i64, i32 or u8, not f32"));
  EXPECT_THAT(message([&] { nll_loss(x, from<std::int64_t>({0, 1, 2}, {3})); }), HasSubstr("needs (n, classes, ...)"));
  EXPECT_THAT(message([&] {
                nll_loss(x, from<std::int64_t>({0, 1}, {2}), {.weight = ones({2})});
              }),
              HasSubstr("a number for each class"));
  EXPECT_THAT(message([&] {
                cross_entropy(x, from<std::int64_t>({0, 1}, {2}), {.label_smoothing = 2});
              }),
              HasSubstr("label_smoothing"));
  EXPECT_THAT(message([&] { mse_loss(x, NDArray()); }), HasSubstr("empty handle"));
}

}  // namespace
}  // namespace sluice::testing
