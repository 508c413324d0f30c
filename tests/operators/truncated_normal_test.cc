// truncated_normal: its bounds, its moments and distribution against closed forms, its bits, wrong calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kCount = 40000;

/// Of the normal distribution with mean 0 and deviation 1: the part above z, its density, and z times that.
double above(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }
double density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi); }
double weighted(double z) { return std::isinf(z) ? 0 : z * density(z); }

/// The part between two bounds, without the cancellation of numbers near 1.
double between(double a, double b) { return a > 0 ? above(a) - above(b) : above(-b) - above(-a); }

const std::vector<TruncatedNormalOptions> kCases{
    {},
    {.mean = 1, .deviation = 3, .low = 0, .high = 2},
    {.low = -kInfinity, .high = kInfinity},
    {.mean = -2, .deviation = 0.5, .low = -kInfinity, .high = -2.5},
    {.mean = 0, .deviation = 1, .low = 3, .high = kInfinity},
    {.mean = 0, .deviation = 1, .low = 5, .high = 8},
    {.mean = 10, .deviation = 2, .low = -20, .high = -8},
    {.mean = 0, .deviation = 1, .low = -36.5, .high = -35.9},
};

std::string text_of(const TruncatedNormalOptions& o) {
  return "mean " + std::to_string(o.mean) + ", deviation " + std::to_string(o.deviation) + ", [" +
         std::to_string(o.low) + ", " + std::to_string(o.high) + "]";
}

TEST(TruncatedNormal, HasTheMomentsOfTheClosedForm) {
  for (const auto& o : kCases) {
    SCOPED_TRACE(text_of(o));
    RandomStream stream(7);
    const std::vector<double> x = values_of(truncated_normal({kCount}, stream, o, DType::f64));
    const double a = (o.low - o.mean) / o.deviation, b = (o.high - o.mean) / o.deviation, part = between(a, b);
    const double shift = (density(a) - density(b)) / part;
    const double mean = o.mean + o.deviation * shift;
    const double variance = o.deviation * o.deviation * (1 + (weighted(a) - weighted(b)) / part - shift * shift);
    double sum = 0, squares = 0;
    for (const double value : x) {
      EXPECT_TRUE(value >= o.low && value <= o.high && std::isfinite(value)) << value;
      sum += value;
    }
    for (const double value : x) squares += (value - sum / kCount) * (value - sum / kCount);
    // Five standard errors of the mean; of the variance by the fourth moment, which is at most that of a normal one.
    EXPECT_NEAR(sum / kCount, mean, 5 * std::sqrt(variance / kCount));
    EXPECT_NEAR(squares / kCount, variance, 5 * variance * std::sqrt(8.0 / kCount));
  }
}

/// What lies below each number in order is its share, within what Kolmogorov's test allows with probability 1e-6.
TEST(TruncatedNormal, HasTheDistributionFunction) {
  for (const auto& o : kCases) {
    SCOPED_TRACE(text_of(o));
    RandomStream stream(8);
    std::vector<double> x = values_of(truncated_normal({kCount}, stream, o, DType::f64));
    std::sort(x.begin(), x.end());
    const auto z = [&](double value) { return (value - o.mean) / o.deviation; };
    double off = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double share = between(z(o.low), z(x[i])) / between(z(o.low), z(o.high));
      off = std::max(off, std::abs(share - (static_cast<double>(i) + 0.5) / kCount));
    }
    EXPECT_LT(off, 2.7 / std::sqrt(kCount));
  }
}

TEST(TruncatedNormal, KeepsItsBoundsInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& o : kCases) {
      SCOPED_TRACE(text_of(o) + " " + std::string(name_of(dtype)));
      RandomStream stream(9);
      const NDArray x = truncated_normal({5, 1000}, stream, o, dtype);
      EXPECT_EQ(x.dtype(), dtype);
      const double low = full({}, o.low, DType::f64).to(dtype).to(DType::f64).item<double>();
      const double high = full({}, o.high, DType::f64).to(dtype).to(DType::f64).item<double>();
      for (const double value : values_of(x)) EXPECT_TRUE(value >= low && value <= high) << value;
    }
  }
}

TEST(TruncatedNormal, TakesOneDrawAndDependsOnTheIndex) {
  RandomStream one(3), two(3), three(3);
  const std::vector<double> x = values_of(truncated_normal({100}, one, {}, DType::f64));
  std::vector<double> parts = values_of(truncated_normal({40}, two, {}, DType::f64));
  const std::vector<double> rest = values_of(truncated_normal({60}, three, {}, DType::f64, 40));
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(x, parts);
  EXPECT_EQ(values_of(uniform({10}, one)), values_of(uniform({10}, two)));
  EXPECT_NE(values_of(truncated_normal({100}, one, {}, DType::f64)), x);
  EXPECT_EQ(truncated_normal({0, 3}, one).shape(), (Dims{0, 3}));
  EXPECT_EQ(truncated_normal({}, one).shape(), Dims{});
}

TEST(TruncatedNormal, BitsDoNotDependOnThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& o : kCases) {
      RandomStream stream(4);
      bytes.push_back(truncated_normal({3, 20011}, stream, o).to_bytes());
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  EXPECT_TRUE(one == results(2));
  EXPECT_TRUE(one == results(4));
}

TEST(TruncatedNormal, RefusesWhatIsNoDistribution) {
  RandomStream stream(1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto text = [&](const TruncatedNormalOptions& o, DType dtype = DType::f32) {
    return message([&] { truncated_normal({2}, stream, o, dtype); });
  };
  EXPECT_THAT(text({.low = 1, .high = 1}), HasSubstr("mean 0.0, deviation 1.0, [1.0, 1.0]: low is not below high"));
  EXPECT_THAT(text({.low = nan}), HasSubstr("low is not below high"));
  EXPECT_THAT(text({.deviation = 0}), HasSubstr("the deviation is not a number above 0"));
  EXPECT_THAT(text({.deviation = kInfinity}), HasSubstr("the deviation is not a number above 0"));
  EXPECT_THAT(text({.mean = nan}), HasSubstr("the mean is not finite"));
  EXPECT_THAT(text({.low = 40, .high = 41}), HasSubstr("more than 36 deviations from the mean"));
  EXPECT_THAT(text({.low = -41, .high = -40}), HasSubstr("more than 36 deviations from the mean"));
  EXPECT_THAT(text({}, DType::i32), HasSubstr("[truncated_normal] truncated_normal_test.cc:"));
  EXPECT_THAT(text({}, DType::i32), HasSubstr("needs a floating dtype, not i32"));
}

}  // namespace
}  // namespace sluice::testing
