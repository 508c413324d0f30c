// Clipping of gradients: against a plain loop, over devices, and with gradients that carry errors.
#include "../support/net_of.h"
#include "nn_support.h"

namespace sluice {
namespace {

using test::bits;
using test::broken;
using test::expect_close;
using test::made_up;
using test::net_of;
using test::TestEngine;

std::vector<double> doubles(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

class Clip : public testing::TestWithParam<DType> {};

TEST_P(Clip, ScalesAllGradientsByTheNormThatTheyHaveTogether) {
  TestEngine engine;
  const double tolerance = GetParam() == DType::f64 ? 1e-12 : GetParam() == DType::f32 ? 1e-5 : 1e-2;
  const Dims shapes[] = {{5, 7}, {3}, {4100}};  // the last has more than a block
  const NDArray gradients[] = {made_up(shapes[0], 1, GetParam()), NDArray(), made_up(shapes[2], 2, GetParam())};
  double squares[2] = {};
  for (const int i : {0, 2}) {
    for (const double x : doubles(gradients[i])) squares[i / 2] += x * x;
  }
  const double norm = std::sqrt(squares[0] + squares[1]);
  for (const double most : {norm / 3, norm * 2}) {
    std::vector<NDArray> leaves;
    for (const Dims& shape : shapes) leaves.push_back(made_up(shape, 8, GetParam()).with_grad());
    for (const int i : {0, 2}) leaves[static_cast<std::size_t>(i)].set_grad(gradients[i].copy());
    const auto net = net_of(leaves);
    const auto norms = nn::gradient_norms(net);
    ASSERT_EQ(norms.size(), 2U);
    EXPECT_EQ(norms[1].first, "2");
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(norms[i].second.item<double>(), std::sqrt(squares[i]), norm * tolerance);
    }
    const NDArray found = nn::clip_gradients(net, most);
    EXPECT_EQ(found.dtype(), DType::f64);
    EXPECT_NEAR(found.item<double>(), norm, norm * tolerance);
    const double scale = std::min(1.0, most / (norm + 1e-6));
    for (const int i : {0, 2}) {
      std::vector<double> wanted = doubles(gradients[i]);
      for (double& x : wanted) x *= scale;
      const NDArray gradient = leaves[static_cast<std::size_t>(i)].grad();
      expect_close(doubles(gradient), wanted, tolerance);
      EXPECT_EQ(gradient.dtype(), GetParam());
    }
    EXPECT_FALSE(leaves[1].grad().defined());
    nn::clip_values(net, 0.1 * scale);
    for (const int i : {0, 2}) {
      std::vector<double> wanted = doubles(gradients[i]);
      for (double& x : wanted) x = scale * std::clamp(x, -0.1, 0.1);
      expect_close(doubles(leaves[static_cast<std::size_t>(i)].grad()), wanted, tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precision, Clip, testing::Values(DType::f64, DType::f32, DType::f16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(Clipping, AFactorThatIsNoneOfTheDtypeIsUsedAllTheSame) {
  TestEngine engine;
  const NDArray w = made_up({4}, 1, DType::f16).with_grad();
  w.set_grad(full({4}, 60000, DType::f16));
  nn::clip_gradients(net_of({w}), 1e-3);  // by 8e-9, which is 0 in f16
  expect_close(doubles(w.grad()), std::vector<double>(4, 5e-4), 1e-3);
}

TEST(Clipping, HasTheSameBitsOnOneDeviceAndOnTwo) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  std::vector<std::string> results[2];
  for (int devices = 1; devices <= 2; ++devices) {
    std::vector<NDArray> parameters;
    for (int i = 0; i < 5; ++i) {
      const auto seed = static_cast<std::uint64_t>(i);
      const NDArray w = made_up({40 + i}, seed, DType::f32).to(test::device(i % devices)).with_grad();
      w.set_grad(made_up({40 + i}, 50 + seed, DType::f32).to(test::device(i % devices)));
      parameters.push_back(w);
    }
    auto& of = results[devices - 1];
    of.push_back(bits(nn::clip_gradients(net_of(parameters), 0.5)));
    for (const NDArray& w : parameters) of.push_back(bits(w.grad()));
  }
  EXPECT_TRUE(results[0] == results[1]);
}

TEST(Clipping, OfABadBatchIsSkippedByTheGate) {
  TestEngine engine;
  const NDArray v = ones({3}).with_grad(), w = ones({4}).with_grad();
  const auto net = net_of({v, w});
  nn::Optimizer opt(net, nn::Sgd{.lr = 0.5});
  v.set_grad(ones({3}));
  w.set_grad(broken(ones({4})));
  const NDArray norm = nn::clip_gradients(net, 1);
  opt.step();
  EXPECT_THROW(norm.wait(), Error);
  EXPECT_THROW(v.wait(), Error);
  opt.recover();
  EXPECT_EQ(v.to_vector<float>(), std::vector<float>(3, 1));
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>(4, 1));
}

TEST(Clipping, WithoutGradientsIsZeroAndRefusesWhatIsNoBound) {
  TestEngine engine;
  const auto net = net_of({ones({2}).with_grad()});
  EXPECT_EQ(nn::clip_gradients(net, 1).item<double>(), 0);
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    EXPECT_THROW(nn::clip_gradients(net, bad), ArrayError);
    EXPECT_THROW(nn::clip_values(net, bad), ArrayError);
  }
}

}  // namespace
}  // namespace sluice
