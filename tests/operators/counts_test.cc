// Sums by index and several quantiles at once against plain loops: order of sums, shapes, NaN, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

TEST(WeightedBincount, SumsInIndexOrder) {
  constexpr std::int64_t kCount = 30000, kBins = 11;
  RandomStream stream(2);
  const NDArray index = randint({kCount}, stream, 0, kBins), w = uniform({kCount}, stream, -1, 1, DType::f64);
  const std::vector<std::int64_t> places = index.to_vector<std::int64_t>();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const NDArray weights = w.to(dtype);
    const std::vector<double> values = values_of(weights);
    std::vector<double> wanted(kBins);
    for (std::size_t i = 0; i < values.size(); ++i) wanted[static_cast<std::size_t>(places[i])] += values[i];
    const NDArray sums = from(wanted, {kBins}).to(dtype);
    EXPECT_EQ(bincount(index, weights, kBins).dtype(), dtype);
    EXPECT_EQ(values_of(bincount(index, weights, kBins)), values_of(sums)) << name_of(dtype);
    EXPECT_EQ(values_of(bincount(index.to(DType::u8).reshape({100, 300}), weights.reshape({100, 300}))),
              values_of(sums));
  }
}

TEST(WeightedBincount, OfWeightsOneCounts) {
  const NDArray x = from<std::int64_t>({3, 0, 3, 1}, {4});
  EXPECT_EQ(values_of(bincount(x, ones({4}))), (std::vector<double>{1, 1, 0, 2}));
  EXPECT_EQ(values_of(bincount(x, ones({4}), 6)), (std::vector<double>{1, 1, 0, 2, 0, 0}));
  EXPECT_EQ(bincount(zeros({0}, DType::i32), zeros({0})).shape(), Dims{0});
  EXPECT_EQ(values_of(bincount(zeros({0}, DType::i32), zeros({0}), 2)), (std::vector<double>{0, 0}));
}

TEST(WeightedBincount, RefusesWhatDoesNotFit) {
  const NDArray x = from<std::int64_t>({3, 0, -1}, {3});
  EXPECT_THROW(bincount(x, ones({3}), 4).wait(), Error);  // -1 is not the last bin
  EXPECT_THROW(bincount(x, ones({3})).wait(), Error);
  EXPECT_THROW(bincount(x(slice(0, 2)), ones({2}), 3).wait(), Error);
  EXPECT_THAT(message([&] { bincount(x, ones({2})); }), HasSubstr("[bincount] counts_test.cc:"));
  EXPECT_THAT(message([&] { bincount(x, ones({2})); }), HasSubstr("weights (2,) for (3,)"));
  EXPECT_THAT(message([&] { bincount(x, x); }), HasSubstr("weights are of a floating dtype, not i64"));
  EXPECT_THAT(message([&] { bincount(ones({3}), x); }), HasSubstr("an index is i64, i32 or u8, not f32"));
  EXPECT_THAT(message([&] { bincount(x, ones({3}), -1); }), HasSubstr("a size of -1"));
}

TEST(Quantiles, AreThoseOfEachCall) {
  RandomStream stream(5);
  const NDArray x = normal({4, 5, 6}, stream, 0, 1, DType::f64);
  const std::vector<double> list{0, 0.1, 0.5, 0.99, 1, 0.25};
  for (const Axes& axes : {Axes(all), Axes(1), Axes({0, 2}), Axes(-1)}) {
    for (const bool keep : {false, true}) {
      const NDArray together = quantile(x, list, axes, {.keep = keep});
      ASSERT_EQ(together.size(0), 6);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const NDArray alone = quantile(x, list[i], axes, {.keep = keep});
        const NDArray part = together(static_cast<std::int64_t>(i));
        EXPECT_EQ(part.shape(), alone.shape());
        EXPECT_EQ(values_of(part), values_of(alone));
      }
    }
  }
}

TEST(Quantiles, OfOneAndOfNone) {
  const NDArray x = from<float>({9, 1, 4, 2}, {4});
  EXPECT_EQ(quantile(x, {0.5}).shape(), Dims{1});
  EXPECT_EQ(quantile(x, {0.5}, 0, {.keep = true}).shape(), (Dims{1, 1}));
  EXPECT_EQ(values_of(quantile(x, {0.0, 0.5, 1.0})), (std::vector<double>{1, 3, 9}));
  EXPECT_EQ(quantile(x.to(DType::f16), {0.0, 0.5}).dtype(), DType::f16);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : values_of(quantile(from<double>({1, nan, 3}, {3}), {0.0, 0.7}))) {
    EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_THAT(message([&] { quantile(x, std::vector<double>{}); }), HasSubstr("[quantile] counts_test.cc:"));
  EXPECT_THAT(message([&] { quantile(x, std::vector<double>{}); }), HasSubstr("q is empty"));
  EXPECT_THAT(message([&] { quantile(x, {0.5, -0.1}); }), HasSubstr("q is -0.1, which is not in [0, 1]"));
  EXPECT_THAT(message([&] { quantile(zeros({0}), {0.5}); }), HasSubstr("nothing to choose from"));
}

}  // namespace
}  // namespace sluice::testing
