// Sharded layers against whole ones, and the all-reduce that they stand on.
#include "sluice/parallel/sharded.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../support/devices.h"
#include "sluice/autograd/autograd.h"
#include "sluice/nn/nn.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/collectives.h"

namespace sluice {
namespace {

struct TestEngine : test::DefaultEngine {
  explicit TestEngine(int devices) : DefaultEngine({.threads = 2, .logical_cpus = devices}) {}
};

/// The largest difference, relative to the largest element.
double difference(const NDArray& a, const NDArray& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  EXPECT_EQ(a.shape(), b.shape());
  double worst = 0, scale = 1e-30;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    scale = std::max(scale, std::fabs(static_cast<double>(y[i])));
  }
  return worst / scale;
}

NDArray rows(const std::vector<NDArray>& parts, int axis, bool gradients) {
  NoGrad no_grad;
  std::vector<NDArray> here;
  for (const NDArray& p : parts) here.push_back((gradients ? p.grad() : p).to(test::device(0)));
  return concat(here, axis);
}

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

TEST(Sharded, MatchesWholeLayersForwardAndBackward) {
  for (int ranks : {1, 2, 4}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    TestEngine many(ranks);
    std::vector<Device> devices;
    for (int r = 0; r < ranks; ++r) devices.push_back(test::device(r));
    RandomStream for_whole(31), for_shards(31), random(32);
    Sequential whole{Linear(37, 24, for_whole, {.relu = true}), Linear(24, 7, for_whole)};
    parallel::ShardedMlp sharded(37, 24, 7, parallel::Communicator(devices), for_shards);

    const NDArray x = normal({9, 37}, random).with_grad();
    const NDArray x2 = x.detach().with_grad();
    std::vector<std::int64_t> labels{0, 1, 2, 3, 4, 5, 6, 0, 1};
    const NDArray y = from(labels, {9});
    const NDArray out = whole.forward(x), out2 = sharded.forward(x2);
    EXPECT_LE(difference(out2, out), 1e-5);
    cross_entropy(out, y).backward();
    cross_entropy(out2, y).backward();
    EXPECT_LE(difference(x2.grad(), x.grad()), 1e-5);
    auto p = whole.parameters();
    EXPECT_LE(difference(rows(sharded.first.weights, 0, true), p[0].value->grad()), 1e-5);
    EXPECT_LE(difference(rows(sharded.first.biases, 0, true), p[1].value->grad()), 1e-5);
    EXPECT_LE(difference(rows(sharded.second.weights, 1, true), p[2].value->grad()), 1e-5);
    EXPECT_LE(difference(sharded.second.bias.grad(), p[3].value->grad()), 1e-5);
  }
}

TEST(Sharded, TrainsLikeWholeLayersOverAHundredSteps) {
  const auto losses = [](int ranks) {
    TestEngine many(ranks);
    std::vector<Device> devices;
    for (int r = 0; r < ranks; ++r) devices.push_back(test::device(r));
    RandomStream random(41), data(42);
    parallel::ShardedMlp net(20, 16, 4, parallel::Communicator(devices), random);
    Sgd sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    std::vector<double> all;
    for (int step = 0; step < 100; ++step) {
      const NDArray x = normal({8, 20}, data);
      NDArray loss = cross_entropy(net.forward(x), from<std::int64_t>({0, 1, 2, 3, 0, 1, 2, 3}, {8}));
      loss.backward();
      sgd.step();
      all.push_back(loss.item<double>());
    }
    return all;
  };
  const std::vector<double> one = losses(1), two = losses(2);
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_NEAR(two[i], one[i], 1e-3 * std::max(1.0, one[i])) << "step " << i;
}

TEST(Sharded, RefusesUnitsThatDoNotDivide) {
  TestEngine many(2);
  RandomStream random(1);
  const parallel::Communicator group({test::device(0), test::device(1)});
  EXPECT_THROW(parallel::ShardedMlp(8, 7, 3, group, random), UsageError);
  parallel::ShardedMlp fits(8, 6, 3, group, random);
  EXPECT_THROW(fits.to(test::device(1)), UsageError);
}

}  // namespace
}  // namespace sluice
