// Clipping of gradients: against a plain loop, over devices, and with gradients that carry errors.
#include "nn_support.h"

namespace sluice {
namespace {

using test::bits;
using test::broken;
using test::expect_close;
using test::made_up;
using test::numbers;
using test::TestEngine;

class Clip : public testing::TestWithParam<DType> {};

TEST_P(Clip, ScalesAllGradientsByTheNormThatTheyHaveTogether) {
  TestEngine engine;
  const double tolerance = GetParam() == DType::f64 ? 1e-12 : GetParam() == DType::f32 ? 1e-5 : 1e-2;
  const std::vector<double> a = made_up({5, 7}, 1, GetParam()).to(DType::f64).to_vector<double>();
  const std::vector<double> b = made_up({11}, 2, GetParam()).to(DType::f64).to_vector<double>();
  double squares = 0;
  for (const double x : a) squares += x * x;
  for (const double x : b) squares += x * x;
  const double norm = std::sqrt(squares);
  for (const double most : {norm / 3, norm * 2}) {
    NDArray v = made_up({5, 7}, 8, GetParam()).with_grad(), w = made_up({11}, 9, GetParam()).with_grad(),
            without = made_up({3}, 10, GetParam()).with_grad();
    v.set_grad(made_up({5, 7}, 1, GetParam()));
    w.set_grad(made_up({11}, 2, GetParam()));
    const NDArray found = clip_gradients({v, without, w}, most);
    EXPECT_NEAR(found.to(DType::f64).item<double>(), norm, norm * tolerance);
    const double scale = std::min(1.0, most / (norm + 1e-6));
    const auto scaled = [&](std::vector<double> of) {
      for (double& x : of) x *= scale;
      return of;
    };
    expect_close(v.grad().to(DType::f64).to_vector<double>(), scaled(a), tolerance);
    expect_close(w.grad().to(DType::f64).to_vector<double>(), scaled(b), tolerance);
    EXPECT_EQ(v.grad().dtype(), GetParam());
    EXPECT_FALSE(without.grad().defined());
  }
}

INSTANTIATE_TEST_SUITE_P(Precision, Clip, testing::Values(DType::f64, DType::f32, DType::f16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(Clipping, AFactorThatIsNoneOfTheDtypeIsUsedAllTheSame) {
  TestEngine engine;
  NDArray w = made_up({4}, 1, DType::f16).with_grad();
  w.set_grad(full({4}, 60000, DType::f16));
  clip_gradients({w}, 1e-3);  // by 8e-9, which is 0 in f16
  expect_close(w.grad().to(DType::f64).to_vector<double>(), std::vector<double>(4, 5e-4), 1e-3);
}

TEST(Clipping, HasTheSameBitsOnOneDeviceAndOnTwo) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  std::vector<std::string> results[2];
  for (int devices = 1; devices <= 2; ++devices) {
    std::vector<NDArray> parameters;
    std::vector<NamedArray> named;
    for (int i = 0; i < 5; ++i) {
      const auto seed = static_cast<std::uint64_t>(i);
      const NDArray w = made_up({40 + i}, seed, DType::f32).to(test::device(i % devices)).with_grad();
      w.set_grad(made_up({40 + i}, 50 + seed, DType::f32).to(test::device(i % devices)));
      parameters.push_back(w);
      named.push_back({std::to_string(i), w});
    }
    auto& of = results[devices - 1];
    of.push_back(bits(clip_gradients(named, 0.5)));
    for (const NDArray& w : parameters) of.push_back(bits(w.grad()));
  }
  EXPECT_TRUE(results[0] == results[1]);
}

TEST(Clipping, OfABadBatchIsSkippedByTheGate) {
  TestEngine engine;
  NDArray v = ones({3}).with_grad(), w = ones({4}).with_grad();
  Sgd sgd({v, w}, {.lr = 0.5});
  v.set_grad(ones({3}));
  w.set_grad(broken(ones({4})));
  const NDArray norm = clip_gradients({v, w}, 1);
  sgd.step();
  EXPECT_THROW(norm.wait(), Error);
  EXPECT_THROW(v.wait(), Error);
  sgd.recover();
  EXPECT_EQ(v.to_vector<float>(), std::vector<float>(3, 1));
  EXPECT_EQ(w.to_vector<float>(), std::vector<float>(4, 1));
}

TEST(Clipping, WithoutGradientsIsZeroAndRefusesWhatIsNoBound) {
  TestEngine engine;
  NDArray w = ones({2}).with_grad();
  EXPECT_EQ(clip_gradients({w}, 1).item<float>(), 0);
  for (const double bad : {0.0, -1.0, std::nan("")}) EXPECT_THROW(clip_gradients({w}, bad), ArrayError);
}

}  // namespace
}  // namespace sluice
