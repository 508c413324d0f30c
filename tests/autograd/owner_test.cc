// Arrays of owners: calls that an owner answers, recorded by the ordinary tape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "owner_support.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;

TEST(Owners, AnswerCallsAndGiveArraysLikeOthers) {
  const NDArray a = numbers({4, 3}, 1), b = numbers({3}, 2);
  const NDArray x = Halves::split(a);
  EXPECT_EQ(x.shape(), (Dims{4, 3}));
  EXPECT_EQ(x.dtype(), DType::f64);
  EXPECT_EQ(x.device(), a.device());
  EXPECT_FALSE(x.requires_grad());
  EXPECT_EQ(values(x), values(a));
  const int before = Halves::calls.load();
  const NDArray y = tanh(x * 2 + b);
  EXPECT_EQ(Halves::calls.load() - before, 3);
  ASSERT_TRUE(owner_of(y));
  EXPECT_EQ(values(y), values(tanh(a * 2 + b)));
  expect_near(sum(y), sum(tanh(a * 2 + b)));
  EXPECT_FALSE(owner_of(sum(y)));  // what it answered is plain
  EXPECT_FALSE(owner_of(a));
  const NDArray same = x;
  EXPECT_TRUE(same.same_array(x));
}

NDArray two_layers(const NDArray& x, const std::vector<NDArray>& w) {
  return mean(square(matmul(relu(linear(x, w[0], w[1])), w[2])));
}

TEST(Owners, TheOrdinaryTapeTrainsThem) {
  compare(two_layers, numbers({6, 5}, 1), {numbers({7, 5}, 2), numbers({7}, 3), numbers({7, 2}, 4)});
  // Some steps: the weights follow those of a plain run.
  std::vector<NDArray> w[2];
  for (const int owned : {0, 1}) {
    const NDArray data = numbers({6, 5}, 1);
    const NDArray x = owned ? Halves::split(data) : data;
    w[owned] = {numbers({7, 5}, 2).with_grad(), numbers({7}, 3).with_grad(), numbers({7, 2}, 4).with_grad()};
    for (int step = 0; step < 20; ++step) {
      two_layers(x, w[owned]).backward();
      const NoGrad scope;
      for (NDArray& one : w[owned]) {
        one -= one.grad() * 0.1;
        one.zero_grad();
      }
    }
  }
  for (std::size_t i = 0; i < w[0].size(); ++i) expect_near(w[1][i], w[0][i]);
}

TEST(Owners, TheGradientOfALeafIsTheOwners) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  sum(exp(x) * x).backward();
  sum(x * x).backward();  // adds to it
  ASSERT_TRUE(owner_of(x.grad()));
  const NDArray a = numbers({4, 3}, 1);
  expect_near(x.grad(), exp(a) * (a + 1) + a * 2);
  x.set_grad(x.grad() * 2);
  expect_near(x.grad(), (exp(a) * (a + 1) + a * 2) * 2);
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(Owners, ARootMayBeTheOwners) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad(), a = numbers({4, 3}, 1).with_grad();
  const NDArray g = numbers({4, 3}, 5);
  const std::vector<NDArray> of_x = grad(std::vector{x * x * x}, std::vector{Halves::split(g)}, std::vector{x});
  const std::vector<NDArray> of_a = grad(std::vector{a * a * a}, std::vector{g}, std::vector{a});
  expect_near(of_x[0], of_a[0]);
  ASSERT_TRUE(owner_of(ones_like(x)));
  EXPECT_EQ(values(ones_like(x)), std::vector<double>(12, 1.0));
  EXPECT_EQ(values(full_like(x, 0.5)), std::vector<double>(12, 0.5));
}

TEST(Owners, GradientsOfGradients) {
  const auto f = [](const NDArray& x) { return sum(tanh(x) * x.permute({1, 0}).permute({1, 0})); };
  std::vector<NDArray> second;
  for (const bool owned : {false, true}) {
    const NDArray x = (owned ? Halves::split(numbers({4, 3}, 1)) : numbers({4, 3}, 1)).with_grad();
    const NDArray first = grad(f(x), {x}, {.create_graph = true})[0];
    sum(first * first).backward();
    second.push_back(x.grad());
  }
  expect_near(second[1], second[0]);
}

TEST(Owners, WritesInPlaceAreRecordedAndViewsFollowThem) {
  compare(
      [](const NDArray& x, const std::vector<NDArray>& w) {
        NDArray y = x * 2;
        const NDArray part = y.narrow(1, 0, 2);
        const NDArray old = sum(exp(part));  // keeps what it was
        y *= w[0];
        y += exp(y);
        return old + sum(part * part) + sum(part.transpose() * 3) + sum(y);
      },
      numbers({4, 3}, 1), {numbers({3}, 2)});
  // A write of a whole that is not recorded makes it a constant.
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  const NDArray y = x * 2;
  const NDArray part = y.narrow(1, 0, 2);
  EXPECT_TRUE(part.requires_grad());
  y.fill(1);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_FALSE(part.requires_grad());
  EXPECT_EQ(values(part), std::vector<double>(8, 1.0));
}

TEST(Owners, TheTapeKeepsValuesThatAreWrittenLater) {
  const NDArray data = numbers({4, 3}, 1);
  NDArray x = Halves::split(data).with_grad();
  const NDArray y = sum(x * x * x);
  {
    const NoGrad scope;
    x += 10;
  }
  y.backward();
  expect_near(x.grad(), data * data * 3);
  const NDArray before = x.detach();
  {
    const NoGrad scope;
    x.fill(0);
  }
  expect_near(before, data + 10);
  EXPECT_FALSE(before.requires_grad());
}

TEST(Owners, Checkpoints) {
  const auto layer = [](const NDArray& x, const NDArray& w) {
    NDArray y = tanh(matmul(x, w));
    y += 1;
    return exp(y.flip(1)) * x.narrow(1, 0, 4);
  };
  compare(
      [&](const NDArray& x, const std::vector<NDArray>& w) {
        const NDArray h = checkpoint([&](const NDArray& given) { return layer(given, w[0]); }, x);
        return sum(checkpoint([&](const NDArray& given) { return layer(given, w[1]); }, h * 2));
      },
      numbers({6, 4}, 1), {numbers({4, 4}, 2), numbers({4, 4}, 3)});
}

TEST(Owners, ShapesOfRunsNothing) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  const Shapes plain = shapes_of([&] {
    const NDArray a = empty({4, 3}, DType::f64).with_grad();
    return sum(square(grad(sum(tanh(a)), {a}, {.create_graph = true})[0]));
  });
  const NDArray state = x * 1;
  const Shapes owned = shapes_of([&] {
    NDArray y = state;
    y += x;  // undone afterwards
    return sum(square(grad(sum(tanh(x)), {x}, {.create_graph = true})[0]));
  });
  ASSERT_EQ(owned.results.size(), 1U);
  EXPECT_EQ(owned.results, plain.results);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(values(state), values(x));
  sum(state).backward();
  EXPECT_EQ(values(x.grad()), std::vector<double>(12, 1.0));
}

TEST(Owners, ADryRunLetsGoOfWhatALiveRunWould) {
  const NDArray x = Halves::split(numbers({64, 32}, 1));
  const Shapes shapes = shapes_of([&] {
    NDArray y = x;
    for (int i = 0; i < 30; ++i) y = tanh(y);
    return sum(y);
  });
  EXPECT_LT(shapes.peak_bytes, 6 * x.bytes());
}

TEST(Owners, CustomFunctionsKeepTheirResultsPart) {
  const CustomFunction custom{
      "exponential",
      [](Saved& saved, const std::vector<NDArray>& x) {
        const NDArray y = exp(x[0]);
        saved.keep({y});
        return std::vector<NDArray>{y};
      },
      [](const Saved& saved, const std::vector<NDArray>& g) { return std::vector<NDArray>{g[0] * saved[0]}; }};
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  const NDArray first = grad(sum(apply_custom(custom, {x})[0]), {x}, {.create_graph = true})[0];
  sum(first).backward();
  expect_near(x.grad(), exp(numbers({4, 3}, 1)));
}

TEST(Owners, ConstantsAreNoCallsOfTheProgram) {
  struct Counts final : Interpreter {
    int calls = 0;
    void apply(Call& call, Next next) override {
      ++calls;
      next(call);
    }
  };
  const auto counts = std::make_shared<Counts>();
  const NDArray x = Halves::split(numbers({4, 3}, 1));
  const InterpreterScope scope(counts);
  EXPECT_TRUE(owner_of(zeros_like(x)));
  EXPECT_EQ(counts->calls, 0);
}

TEST(Owners, HooksSeeTheOwnersGradients) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  const NDArray y = x * 3;
  const GradientHook hook = on_gradient(y, [](const NDArray& g) {
    EXPECT_TRUE(owner_of(g));
    return g * 2;
  });
  sum(exp(y)).backward();
  expect_near(x.grad(), exp(numbers({4, 3}, 1) * 3) * 6);
}

TEST(Owners, InterpretersSeeTheProgramsCallsAlone) {
  struct Names final : Interpreter {
    std::vector<std::string> list;
    void apply(Call& call, Next next) override {
      list.emplace_back(call.name());
      next(call);
      EXPECT_EQ(call.results().size(), 1U);
    }
    void view(const ViewCall& call) override { list.emplace_back(call.name()); }
  };
  const auto names = std::make_shared<Names>();
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  {
    const InterpreterScope scope(names);
    (void)(sum(x.transpose() * 2));
  }
  EXPECT_THAT(names->list, ElementsAre("permute", "mul_scalar", "sum"));
}

TEST(Owners, ACheckpointThatGivesAViewIsComputedAgain) {
  int calls = 0;
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  const NDArray y = checkpoint(
      [&](const NDArray& given) {
        ++calls;
        return exp(given).transpose();
      },
      x);
  compute_again(y);
  EXPECT_EQ(calls, 2);
  sum(y).backward();
  EXPECT_EQ(calls, 2);
  expect_near(x.grad(), exp(numbers({4, 3}, 1)));
}

TEST(Owners, NoGradientFlowsThroughIntegers) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  EXPECT_FALSE(x.to(DType::i64).requires_grad());
  EXPECT_FALSE((x > 0).requires_grad());
  EXPECT_TRUE(x.to(DType::f32).requires_grad());
}

}  // namespace
}  // namespace sluice::testing
