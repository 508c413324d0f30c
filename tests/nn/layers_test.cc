// Layers: shapes, names, first values, errors, and gradients against finite differences.
#include <gmock/gmock.h>

#include "nn_support.h"

namespace sluice {
namespace {

using test::made_up;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> names(Module& module) {
  std::vector<std::string> list;
  for (const NamedParameter& p : module.parameters()) list.push_back(p.name);
  return list;
}

/// Compares the gradients of sum(f(x) * r), with respect to x and the parameters, with central differences.
void check_gradients(Module& module, const Dims& shape) {
  NDArray x = made_up(shape, 3).with_grad();
  const NDArray first = module.forward(x);
  const NDArray r = made_up(first.shape(), 4);
  sum(first * r).backward();

  std::vector<NDArray> leaves{x};
  for (const NamedParameter& p : module.parameters()) leaves.push_back(*p.value);
  NoGrad no_grad;
  for (const NDArray& leaf : leaves) {
    const std::vector<double> got = leaf.grad().to_vector<double>();
    const std::vector<double> values = leaf.to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double value) {
        std::vector<double> moved = values;
        moved[i] = value;
        leaf.assign(from(moved, leaf.shape()));
        return sum(module.forward(x) * r).item<double>();
      };
      const double wanted = (loss_at(values[i] + kStep) - loss_at(values[i] - kStep)) / (2 * kStep);
      EXPECT_NEAR(got[i], wanted, 1e-7) << "element " << i << " of " << to_string(leaf.shape());
    }
    leaf.assign(from(values, leaf.shape()));
  }
}

TEST(Layers, LinearHasItsShapesAndGradients) {
  TestEngine engine;
  RandomStream stream(1);
  for (const bool bias : {true, false}) {
    for (const bool relu : {true, false}) {
      Linear layer(5, 3, stream, {.relu = relu, .bias = bias, .dtype = DType::f64});
      EXPECT_EQ(layer.weight.shape(), (Dims{3, 5}));
      EXPECT_EQ(layer.forward(made_up({4, 5}, 2)).shape(), (Dims{4, 3}));
      EXPECT_EQ(layer.parameters().size(), bias ? 2u : 1u);
      check_gradients(layer, {4, 5});
    }
  }
}

TEST(Layers, Conv2dHasItsShapesAndGradients) {
  TestEngine engine;
  RandomStream stream(1);
  for (const ConvOptions& options : {ConvOptions{}, ConvOptions{.stride = 2, .padding = 1, .relu = true},
                                     ConvOptions{.padding = 1, .bias = false}}) {
    ConvOptions in_f64 = options;
    in_f64.dtype = DType::f64;
    Conv2d layer(2, 3, 3, stream, in_f64);
    EXPECT_EQ(layer.weight.shape(), (Dims{3, 2, 3, 3}));
    const std::int64_t size = (5 + 2 * options.padding - 3) / options.stride + 1;
    EXPECT_EQ(layer.forward(made_up({2, 2, 5, 5}, 2)).shape(), (Dims{2, 3, size, size}));
    EXPECT_EQ(layer.parameters().size(), options.bias ? 2u : 1u);
    check_gradients(layer, {2, 2, 5, 5});
  }
}

TEST(Layers, PoolReluAndFlattenHaveTheirGradients) {
  TestEngine engine;
  MaxPool2d pool(2), overlapping(3, 2);
  EXPECT_EQ(pool.forward(made_up({1, 2, 6, 4}, 2)).shape(), (Dims{1, 2, 3, 2}));
  EXPECT_EQ(overlapping.forward(made_up({1, 2, 7, 7}, 2)).shape(), (Dims{1, 2, 3, 3}));
  check_gradients(pool, {1, 2, 6, 4});
  check_gradients(overlapping, {1, 2, 7, 7});
  Relu relu;
  check_gradients(relu, {3, 4});
  Flatten flatten;
  EXPECT_EQ(flatten.forward(made_up({2, 3, 4}, 2)).shape(), (Dims{2, 12}));
  check_gradients(flatten, {2, 3, 4});
}

TEST(Layers, ASequenceOfLayersHasItsGradients) {
  TestEngine engine;
  RandomStream stream(5);
  Sequential net{Conv2d(1, 2, 3, stream, {.padding = 1, .relu = true, .dtype = DType::f64}), MaxPool2d(2), Flatten(),
                 Linear(18, 4, stream, {.relu = true, .dtype = DType::f64}),
                 Linear(4, 2, stream, {.dtype = DType::f64})};
  EXPECT_EQ(net.size(), 5u);
  check_gradients(net, {2, 1, 6, 6});
}

TEST(Layers, ParametersAreNamedByLayer) {
  TestEngine engine;
  RandomStream stream(1);
  Sequential net{Flatten(), Linear(6, 4, stream), Relu(), Linear(4, 2, stream, {.bias = false})};
  EXPECT_THAT(names(net), ElementsAre("1.weight", "1.bias", "3.weight"));
  Sequential upper = net.slice(2, 4);
  EXPECT_THAT(names(upper), ElementsAre("3.weight"));
  EXPECT_EQ(upper.parameters()[0].value, net.parameters()[2].value) << "the layer is shared";
  EXPECT_THAT(names(*std::make_unique<Sequential>(net.slice(0, 2))), ElementsAre("1.weight", "1.bias"));
  EXPECT_EQ(net.slice(4, 4).size(), 0u);
  EXPECT_THROW(net.slice(3, 5), UsageError);
  EXPECT_THROW(net.slice(3, 2), UsageError);
  upper.push_back(Linear(2, 2, stream));
  EXPECT_THAT(names(upper), ElementsAre("3.weight", "4.weight", "4.bias"));

  Sequential outer(std::vector<ModulePtr>{std::make_shared<Sequential>(net), std::make_shared<Relu>()});
  EXPECT_THAT(names(outer), ElementsAre("0.1.weight", "0.1.bias", "0.3.weight"));
  EXPECT_THROW(outer.push_back(ModulePtr()), UsageError);
}

TEST(Layers, FirstValuesComeFromTheStreamAlone) {
  TestEngine engine;
  RandomStream one(9), two(9);
  Linear a(100, 50, one), b(100, 50, two), c(100, 50, two);
  EXPECT_EQ(a.weight.to_bytes(), b.weight.to_bytes());
  EXPECT_EQ(a.bias.to_bytes(), b.bias.to_bytes());
  EXPECT_NE(a.weight.to_bytes(), c.weight.to_bytes());
  double mean = 0, largest = 0;
  for (const float w : a.weight.to_vector<float>()) {
    mean += w / 5000.0;
    largest = std::max(largest, std::abs(static_cast<double>(w)));
  }
  EXPECT_LE(largest, 0.1);
  EXPECT_GT(largest, 0.099);
  EXPECT_NEAR(mean, 0, 0.005);
  Conv2d conv(4, 8, 5, one);
  for (const float w : conv.weight.to_vector<float>()) ASSERT_LE(std::abs(w), 0.1f);
  EXPECT_TRUE(a.weight.requires_grad());
  EXPECT_TRUE(conv.bias.requires_grad());
}

TEST(Layers, BadArgumentsAreOneLineAtTheCall) {
  TestEngine engine;
  RandomStream stream(1);
  const auto expect_line = [](const char* words, auto&& call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << words;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr("layers_test.cc:"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  };
  expect_line("[Linear]", [&] { Linear(0, 3, stream); });
  expect_line("[Linear]", [&] { Linear(3, 3, stream, {.dtype = DType::i32}); });
  expect_line("[Conv2d]", [&] { Conv2d(1, 1, 3, stream, {.stride = 0}); });
  expect_line("[Conv2d]", [&] { Conv2d(1, -1, 3, stream); });
  expect_line("[MaxPool2d]", [&] { MaxPool2d(0); });
  Linear layer(4, 3, stream);
  expect_line("[linear]", [&] { layer.forward(made_up({2, 5}, 1, DType::f32)); });
  Flatten flatten;
  expect_line("[Flatten]", [&] { flatten.forward(zeros({})); });
}

TEST(Layers, ToMovesParametersAndTheirGradients) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  RandomStream stream(1);
  Sequential net{Linear(3, 2, stream), Linear(2, 2, stream)};
  net.slice(1, 2).layer(0).parameters()[0].value->set_grad(ones({2, 2}));
  const auto before = net.parameters()[0].value->to_bytes();
  net.to(test::device(1));
  for (const NamedParameter& p : net.parameters()) {
    EXPECT_EQ(p.value->device(), test::device(1)) << p.name;
    EXPECT_TRUE(p.value->requires_grad()) << p.name;
  }
  EXPECT_EQ(net.parameters()[0].value->to_bytes(), before);
  EXPECT_EQ(net.parameters()[2].value->grad().device(), test::device(1));
  sum(net(zeros({1, 3}).to(test::device(1)))).backward();
  EXPECT_EQ(net.parameters()[2].value->grad().shape(), (Dims{2, 2}));
}

TEST(Loss, AccuracyCountsCorrectRows) {
  TestEngine engine;
  const NDArray logits = from({1.f, 2.f, 0.f, 5.f, 5.f, 1.f, 0.f, 0.f, 9.f}, {3, 3});
  EXPECT_EQ(accuracy(logits, from({std::uint8_t{1}, std::uint8_t{0}, std::uint8_t{1}}, {3})).item<std::int64_t>(), 2);
  EXPECT_EQ(accuracy(logits, from({1, 1, 2}, {3})).item<std::int64_t>(), 2);
  EXPECT_EQ(accuracy(logits, from({std::int64_t{0}, std::int64_t{2}, std::int64_t{1}}, {3})).item<int>(), 0);
  EXPECT_THROW(accuracy(logits, from({1, 2}, {2})), ArrayError);
}

}  // namespace
}  // namespace sluice
