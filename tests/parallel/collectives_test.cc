// The sum over devices.
#include "sluice/parallel/collectives.h"

#include <gtest/gtest.h>

#include <vector>

#include "../support/devices.h"
#include "sluice/autograd/autograd.h"
#include "sluice/operators/operators.h"

namespace sluice {
namespace {

struct TestEngine : test::DefaultEngine {
  explicit TestEngine(int devices) : DefaultEngine({.threads = 2, .logical_cpus = devices}) {}
};

TEST(AllReduce, SumsInTheOrderOfRanksOnEveryRankAndSoDoesItsGradient) {
  TestEngine many(3);
  const parallel::Communicator group({test::device(0), test::device(1), test::device(2)});
  RandomStream random(21);
  std::vector<NDArray> parts, seeds;
  for (int r = 0; r < 3; ++r) {
    parts.push_back(normal({4, 5}, random).to(test::device(r)).with_grad());
    seeds.push_back(normal({4, 5}, random).to(test::device(r)));
  }
  const std::vector<NDArray> sums = parallel::all_reduce(group, parts);
  ASSERT_EQ(sums.size(), 3U);
  const auto a = parts[0].to_vector<float>(), b = parts[1].to_vector<float>(), c = parts[2].to_vector<float>();
  std::vector<float> expected;
  for (std::size_t i = 0; i < a.size(); ++i) expected.push_back((a[i] + b[i]) + c[i]);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(sums[static_cast<std::size_t>(r)].to_vector<float>(), expected) << "rank " << r;
    EXPECT_EQ(sums[static_cast<std::size_t>(r)].device(), test::device(r));
  }
  backward(sums, seeds);
  const auto ga = seeds[0].to_vector<float>(), gb = seeds[1].to_vector<float>(), gc = seeds[2].to_vector<float>();
  for (int r = 0; r < 3; ++r) {
    const auto g = parts[static_cast<std::size_t>(r)].grad().to_vector<float>();
    for (std::size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(g[i], ga[i] + gb[i] + gc[i], 1e-5) << "rank " << r;
  }
}

TEST(AllReduce, SixteenBitSumsAreRoundedOnce) {
  TestEngine many(3);
  const parallel::Communicator group({test::device(0), test::device(1), test::device(2)});
  for (const DType dtype : {DType::f16, DType::bf16}) {
    RandomStream random(22);
    std::vector<NDArray> parts;
    for (int r = 0; r < 3; ++r) parts.push_back(normal({40}, random, 0, 1, dtype).to(test::device(r)));
    const auto value = [&](int r) { return parts[static_cast<std::size_t>(r)].to(DType::f32).to_vector<float>(); };
    const std::vector<float> a = value(0), b = value(1), c = value(2);
    std::vector<float> expected;
    for (std::size_t i = 0; i < a.size(); ++i) expected.push_back(a[i] + b[i] + c[i]);
    const std::vector<float> rounded = from(expected, {40}).to(dtype).to(DType::f32).to_vector<float>();
    for (const NDArray& sum : parallel::all_reduce(group, parts)) {
      EXPECT_EQ(sum.dtype(), dtype);
      EXPECT_EQ(sum.to(DType::f32).to_vector<float>(), rounded) << name_of(dtype);
    }
  }
}

TEST(AllReduce, RefusesWhatDoesNotFit) {
  TestEngine many(2);
  const parallel::Communicator group({test::device(0), test::device(1)});
  const NDArray a = ones({2, 3});
  const NDArray b = ones({2, 3}).to(test::device(1));
  const NDArray other = ones({3, 2}).to(test::device(1));
  EXPECT_THROW(parallel::all_reduce(group, std::vector<NDArray>{a}), ArrayError);
  EXPECT_THROW(parallel::all_reduce(group, std::vector<NDArray>{a, other}), ArrayError);
  EXPECT_THROW(parallel::all_reduce(group, std::vector<NDArray>{b, a}), ArrayError);
  EXPECT_THROW(parallel::all_reduce(group, std::vector<NDArray>{a, ones({2, 3}, DType::f64).to(test::device(1))}),
               ArrayError);
  EXPECT_THROW(parallel::Communicator({}), UsageError);
  EXPECT_EQ(parallel::all_reduce(group, std::vector<NDArray>{a, b})[1].to_vector<float>(), std::vector<float>(6, 2.0F));
}

}  // namespace
}  // namespace sluice
