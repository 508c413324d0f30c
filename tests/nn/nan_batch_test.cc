// The loop of docs/tutorial.md, 6: which batch made the first NaN, and that the loader gives it again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "nn_support.h"

namespace sluice {
namespace {

TEST(NanBatch, IsFoundByTheLoaderPosition) {
  test::TestEngine engine;
  constexpr std::int64_t kSamples = 40, kBad = 23;
  std::vector<double> numbers = test::numbers(kSamples * 3, 1);
  numbers[kBad * 3 + 1] = -2;  // of which there is no root
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i != kBad * 3 + 1) numbers[i] = std::abs(numbers[i]);
  }
  nn::Loader data({from(numbers, {kSamples, 3}).to(DType::f32).to(cpu(0)), zeros({kSamples}, DType::i64).to(cpu(0))},
                  {.batch = 4, .shuffle = true, .seed = 5});
  nn::Linear net{3, 2};
  nn::initialise(net, 1);
  nn::to(net, test::device());
  nn::Optimizer opt(net, nn::Sgd{.lr = 0.01});
  std::optional<std::int64_t> found_at;
  {
    AnomalyScope watch;
    while (opt.steps() < 10 && !found_at) {
      const auto at = data.position();
      const auto [x, y, first] = data.next();
      const NDArray loss = cross_entropy(net(sqrt(x.to(test::device()))), y.to(test::device()));
      loss.backward();
      opt.step();
      if (const auto found = watch.first()) {
        EXPECT_THAT(found->to_string(), ::testing::HasSubstr("sqrt"));
        EXPECT_THAT(found->to_string(), ::testing::HasSubstr("nan_batch_test.cc"));
        found_at = at.at("batch");
        data.set_position(at);
      } else {
        EXPECT_TRUE(std::isfinite(loss.item<float>()));
      }
    }
    watch.clear();
  }
  ASSERT_TRUE(found_at);
  EXPECT_EQ(data.position().at("batch"), *found_at);
  const auto [x, y, first] = data.next();
  EXPECT_EQ(min(x).item<float>(), -2) << "another batch than that which has it";
}

}  // namespace
}  // namespace sluice
