// Arrays of owners: calls and views that an owner answers, recorded by the ordinary tape.
#include "sluice/ndarray/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/tests/support/halves.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Numbers between -1 and 1.
NDArray numbers(const Dims& shape, std::uint64_t seed) {
  RandomStream stream(seed);
  return uniform(shape, stream, -1, 1, DType::f64);
}

std::vector<double> values(const NDArray& x) { return Halves::join(x).to_vector<double>(); }

void expect_near(const NDArray& got, const NDArray& wanted, double tolerance = 1e-12) {
  ASSERT_TRUE(got.defined());
  ASSERT_EQ(got.shape(), wanted.shape());
  const std::vector<double> a = values(got), b = values(wanted);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

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

/// Runs f on plain arrays and on halves: the values and all gradients must be equal.
void compare(const std::function<NDArray(const NDArray& x, const std::vector<NDArray>& w)>& f, const NDArray& data,
             const std::vector<NDArray>& weights, int axis = 0) {
  std::vector<NDArray> results[2], leaves[2];
  for (const int owned : {0, 1}) {
    const NDArray x = (owned ? Halves::split(data, axis) : data.copy()).with_grad();
    std::vector<NDArray> w;
    for (const NDArray& one : weights) w.push_back(one.copy().with_grad());
    const NDArray y = f(x, w);
    y.backward();
    results[owned].push_back(y);
    leaves[owned].push_back(x.grad());
    for (const NDArray& one : w) leaves[owned].push_back(one.grad());
  }
  expect_near(results[1][0], results[0][0]);
  for (std::size_t i = 0; i < leaves[0].size(); ++i) {
    SCOPED_TRACE("leaf " + std::to_string(i));
    ASSERT_EQ(leaves[0][i].defined(), leaves[1][i].defined());
    if (leaves[0][i].defined()) expect_near(leaves[1][i], leaves[0][i]);
  }
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

TEST(Owners, ViewsAreCallsAndSoAreTheirGradients) {
  const std::vector<std::pair<const char*, std::function<NDArray(const NDArray&)>>> cases{
      {"permute",
       [](const NDArray& x) {
         return x.permute({2, 0, 1});
       }},
      {"transpose", [](const NDArray& x) { return x.transpose(); }},
      {"swapaxes", [](const NDArray& x) { return x.swapaxes(0, -1); }},
      {"movedim", [](const NDArray& x) { return x.movedim(0, 2); }},
      {"narrow", [](const NDArray& x) { return x.narrow(1, 2, 5); }},
      {"narrow to nothing", [](const NDArray& x) { return x.narrow(1, 2, 2); }},
      {"flip",
       [](const NDArray& x) {
         return x.flip(Axes{1, 2});
       }},
      {"steps", [](const NDArray& x) { return x(all, slice(1, 6, 2)); }},
      {"steps back", [](const NDArray& x) { return x(all, slice(5, 0, -2)); }},
      {"steps to the front",
       [](const NDArray& x) {
         return x(all, Slice{4, {}, -3});
       }},
      {"backwards", [](const NDArray& x) { return x(ellipsis, reversed()); }},
      {"position", [](const NDArray& x) { return x(all, 3); }},
      {"last position", [](const NDArray& x) { return x(ellipsis, -1); }},
      {"positions and a slice", [](const NDArray& x) { return x(newaxis, all, -2, slice(0, 2)); }},
      {"new axes", [](const NDArray& x) { return x(all, newaxis, ellipsis, newaxis); }},
      {"unsqueeze", [](const NDArray& x) { return x.unsqueeze(1); }},
      {"squeeze", [](const NDArray& x) { return x.unsqueeze(1).squeeze(1); }},
      {"squeeze all", [](const NDArray& x) { return x.unsqueeze(3).squeeze(); }},
      {"flatten", [](const NDArray& x) { return x.flatten(1); }},
      {"reshape",
       [](const NDArray& x) {
         return x.reshape({4, 2, 3, -1});
       }},
      {"broadcast_to",
       [](const NDArray& x) {
         return x.broadcast_to({2, 4, 6, 5});
       }},
      {"broadcast_to of one",
       [](const NDArray& x) {
         return x.narrow(2, 1, 2).broadcast_to({4, 6, 3});
       }},
      {"the same",
       [](const NDArray& x) {
         return x.reshape({4, 6, 5}).narrow(1, 0, 6).permute({0, 1, 2});
       }},
  };
  for (const auto& [name, view] : cases) {
    SCOPED_TRACE(name);
    const NDArray data = numbers({4, 6, 5}, 7);
    EXPECT_EQ(values(view(Halves::split(data))), values(view(data)));
    compare([&](const NDArray& x, const std::vector<NDArray>&) { return sum(exp(view(x)) * view(x)); }, data, {});
  }
}

/// Chains of views and calls, drawn; half of the views would cut the halves and are refused: those are left out.
TEST(Owners, RandomChains) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto chain = [seed](const NDArray& given, bool may_skip) {
      std::mt19937_64 draw(seed);
      const auto below = [&](std::uint64_t n) { return draw() % n; };
      NDArray x = given;
      std::vector<int> skipped;
      for (int step = 0; step < 8; ++step) {
        const std::uint64_t kind = below(7), r = draw();
        const int rank = x.rank(), axis = static_cast<int>(r % static_cast<std::uint64_t>(std::max(1, rank)));
        if (rank == 0) break;
        const std::int64_t n = x.shape()[axis];
        try {
          if (kind == 0) {
            x = x.swapaxes(axis, 0);
          } else if (kind == 1 && n > 2) {
            x = x.narrow(axis, 1, n);
          } else if (kind == 2) {
            x = x.flip(axis);
          } else if (kind == 3 && rank < 5) {
            x = x.unsqueeze(axis);
          } else if (kind == 4) {
            x = tanh(x) * x;
          } else if (kind == 5) {
            x = x * sum(x, axis, {.keep = true});
          } else {
            std::vector<Index> index(static_cast<std::size_t>(rank), Index(all));
            index[static_cast<std::size_t>(axis)] = Slice{{}, {}, 2};
            x = x.index_view(index);
          }
        } catch (const ArrayError&) {
          if (!may_skip) throw;
          skipped.push_back(step);
        }
      }
      return std::make_pair(sum(x * 0.25), skipped);
    };
    const NDArray data = numbers({4, 6, 2}, seed);
    const NDArray x = Halves::split(data, static_cast<int>(seed % 3)).with_grad();
    const auto [got, skipped] = chain(x, true);
    if (!skipped.empty()) continue;
    ++compared;
    const NDArray a = data.copy().with_grad();
    const NDArray wanted = chain(a, false).first;
    expect_near(got, wanted, 1e-10);
    if (!got.requires_grad()) continue;
    got.backward();
    wanted.backward();
    expect_near(x.grad(), a.grad(), 1e-9);
  }
  EXPECT_GT(compared, 60);
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

TEST(Owners, AWriteToAViewIsAWriteToTheArray) {
  const NDArray x = Halves::split(zeros({4, 3}, DType::f64));
  NDArray part = x.narrow(1, 1, 2);
  part += 5;
  x(all, 2) = 7;
  EXPECT_EQ(values(x), (std::vector<double>{0, 5, 7, 0, 5, 7, 0, 5, 7, 0, 5, 7}));
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

/// The second call of a checkpoint sees a view as it was: what it finds then is not taken for the view's present.
TEST(Owners, ACheckpointLeavesTheHistoriesOfViewsAlone) {
  std::vector<NDArray> gradients;
  for (const bool owned : {false, true}) {
    const NDArray x = (owned ? Halves::split(numbers({4, 3}, 1)) : numbers({4, 3}, 1)).with_grad();
    NDArray y = x * 1;
    const NDArray part = y.narrow(1, 0, 2);
    const NDArray h = checkpoint([&](const NDArray& given) { return part * given; }, x.narrow(1, 0, 2));
    y += x;
    sum(h).backward({.retain = true});
    sum(part * part).backward();
    gradients.push_back(x.grad());
  }
  expect_near(gradients[1], gradients[0]);
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

TEST(Owners, AViewIsUsedByAsManyPassesAsTheProgramMakes) {
  const NDArray w = Halves::split(numbers({4, 3}, 1)).with_grad(), turned = w.transpose();
  const NDArray a = numbers({3, 4}, 2);
  sum(turned * a).backward();
  sum(turned * a).backward();
  expect_near(w.grad(), a.transpose() * 2);
  const Shapes shapes = shapes_of([&] {
    sum(turned * a).backward();
    return turned;
  });
  EXPECT_EQ(shapes.results[0].shape, (Dims{3, 4}));
  expect_near(w.grad(), a.transpose() * 2);
}

TEST(Owners, GradientsAreArraysOfTheirOwn) {
  const NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad(), y = x.transpose();
  const NDArray g = Halves::split(numbers({3, 4}, 2), 1);
  for (int i = 0; i < 3; ++i) backward(std::vector{y}, std::vector{g}, {.retain = true});
  expect_near(x.grad(), numbers({3, 4}, 2).transpose() * 3);
  expect_near(g, numbers({3, 4}, 2));
  NDArray first = grad(std::vector{y}, std::vector{g}, std::vector{x})[0];
  first += 5;
  expect_near(g, numbers({3, 4}, 2));
}

/// Where there is no such view of the parts, the result is a copy, as of a plain array.
TEST(Owners, ACopyIsNotTakenForAView) {
  compare(
      [](const NDArray& x, const std::vector<NDArray>& w) {
        NDArray y = x * 2;
        const NDArray r = repeat(y, 2, 1), turned = y.reshape({4, 3, 2}).permute({0, 2, 1}).reshape({4, 6});
        y += w[0];
        return sum(r * r) + sum(turned * turned * turned) + sum(y * y);
      },
      numbers({4, 6}, 1), {numbers({6}, 2)});
  const NDArray x = Halves::split(numbers({4, 3}, 1));
  NDArray t = einsum("ij->ji", {x}), r = repeat(x, 1, 0), p = tile(x, {1, 1});
  t += 1;
  r += 1;
  p += 1;
  expect_near(x, numbers({4, 3}, 1));
}

TEST(Owners, PaddingAndSecondGradientsOfSlices) {
  compare(
      [](const NDArray& x, const std::vector<NDArray>&) {
        return sum(exp(pad(x, {{0, 0}, {1, 2}})));
      },
      numbers({4, 3}, 1), {});
  std::vector<NDArray> second;
  for (const bool owned : {false, true}) {
    const NDArray x = (owned ? Halves::split(numbers({4, 6}, 1)) : numbers({4, 6}, 1)).with_grad();
    const NDArray y = sum(tanh(x.narrow(1, 0, 2))) + sum(tanh(x(all, slice(5, 0, -2))));
    const NDArray first = grad(y, {x}, {.create_graph = true})[0];
    EXPECT_EQ(static_cast<bool>(owner_of(first)), owned);
    sum(first * first * first).backward();
    second.push_back(x.grad());
  }
  EXPECT_TRUE(owner_of(second[1]));
  expect_near(second[1], second[0]);
  // An array of as many axes as there can be.
  const Dims shape{4, 1, 1, 3, 1, 1, 1, 2};
  compare(
      [](const NDArray& x, const std::vector<NDArray>&) {
        return sum(exp(x(all, all, all, Slice{{}, {}, 2})));
      },
      numbers(shape, 3), {});
}

TEST(Owners, CheckpointsOfViewsThatWereWritten) {
  std::vector<NDArray> gradients;
  for (const bool owned : {false, true}) {
    const auto given = [&](std::uint64_t seed) {
      return owned ? Halves::split(numbers({4, 3}, seed)) : numbers({4, 3}, seed);
    };
    const NDArray x = given(1).with_grad(), w = given(2).with_grad();
    NDArray y = given(3), z = x * 2;
    const NDArray part = y.narrow(1, 0, 2);
    y.assign(x);  // recorded after the view was made
    const NDArray h = checkpoint([](const NDArray& v) { return exp(v); }, part);
    const NDArray k = checkpoint([&](const NDArray& v) { return tanh(z.narrow(1, 0, 3)) * v; }, w);
    z.fill(1);  // between the two calls
    (sum(h) + sum(k)).backward();
    gradients.push_back(x.grad());
    gradients.push_back(w.grad());
  }
  expect_near(gradients[2], gradients[0]);
  expect_near(gradients[3], gradients[1]);
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

TEST(Owners, ManyViewsOfViews) {
  NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad() * 1;
  const NDArray first = x;
  for (int i = 0; i < 50'000; ++i) x = x.flip(1);
  expect_near(x, numbers({4, 3}, 1));
  EXPECT_TRUE(x.requires_grad());
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

TEST(Owners, WhatNeedsMemoryIsRefusedInTheOwnersWords) {
  const NDArray x = Halves::split(numbers({4, 3}, 1));
  const NDArray one = Halves::split(numbers({2}, 1)).narrow(0, 0, 2);
  const std::vector<std::pair<const char*, std::function<void()>>> cases{
      {"wait", [&] { x.wait(); }},
      {"to_vector", [&] { (void)x.to_vector<double>(); }},
      {"to_bytes", [&] { (void)x.to_bytes(); }},
      {"item", [&] { (void)one.item<double>(); }},
      {"borrow", [&] { (void)x.borrow<double>(); }},
      {"to_string", [&] { (void)x.to_string(); }},
      {"to_string",
       [&] {
         std::ostringstream out;
         out << x;
       }},
      {"strided", [&] { (void)x.strided({2}, {1}, 0); }},
      {"unfold", [&] { (void)x.unfold(0, 2, 1); }},
      {"diagonal", [&] { (void)x.diagonal(); }},
      {"variable", [&] { (void)variable_of(x); }},
      {"memory_of", [&] { (void)memory_of(x); }},
      {"mine", [&] { push_op([](ArrayContext&) {}, {x}, {numbers({1}, 1)}, {.name = "mine"}); }},
      {"mine", [&] { push_op([](ArrayContext&) {}, {}, {x}, {.name = "mine"}); }},
  };
  for (const auto& [name, f] : cases) {
    EXPECT_THAT(refusal(f), AllOf(HasSubstr("[" + std::string(name) + "] "), HasSubstr("owner_test.cc:"),
                                  HasSubstr(": an array in two halves: join(x) first")))
        << name;
  }
  EXPECT_THAT(refusal([&] { (void)x.narrow(0, 0, 1); }), HasSubstr("[slice] "));
  EXPECT_THAT(refusal([&] { (void)x.narrow(0, 0, 9); }), HasSubstr("[narrow] "));  // as of any array
  EXPECT_THAT(refusal([&] { (void)(x + numbers({5}, 1)); }), HasSubstr("[add] "));
}

TEST(Owners, WritesThatCannotBeRecordedAreRefused) {
  NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad();
  EXPECT_THAT(refusal([&] { x += 1; }), HasSubstr("writes in place to an array that wants a gradient"));
  const NDArray y = x * 2;
  NDArray part = y.narrow(1, 0, 1);
  EXPECT_THAT(refusal([&] { part += 1; }), HasSubstr("a recorded write to a view of an array of an owner"));
  NDArray plain = zeros({4, 4}, DType::f64);
  NDArray some = plain.narrow(1, 0, 3);
  EXPECT_THAT(refusal([&] { some += x; }), HasSubstr("to a part of a plain array"));
  EXPECT_EQ(values(plain), std::vector<double>(16, 0.0));
  expect_near(y, numbers({4, 3}, 1) * 2);
  EXPECT_THAT(refusal([&] { (void)y.with_grad(); }), HasSubstr("use detach()"));
  const NDArray of_none = Halves::split(numbers({4, 3}, 1));
  EXPECT_THAT(refusal([&] { (void)of_none.transpose().with_grad(); }), HasSubstr("give the array itself"));
  EXPECT_THAT(refusal([&] { (void)on_gradient(y.transpose(), [](const NDArray& g) { return g; }); }),
              HasSubstr("the hook must be on the array itself"));
  const AnomalyScope anomalies;
  EXPECT_THAT(refusal([&] { push_op([](ArrayContext&) {}, {}, {y}, {.name = "mine"}); }),
              AllOf(HasSubstr("[mine] "), HasSubstr("join(x) first")));
}

/// An owner that does what the test says.
class Does final : public Owner {
 public:
  std::function<void(Call&)> on_call = [](Call&) {};
  std::function<void(ViewCall&)> on_view = [](ViewCall&) {};
  void apply(Call& call) override { on_call(call); }
  void view(ViewCall& call) override { on_view(call); }
  Ref<Owner> snapshot() const override { return Ref<Owner>(new Does(*this)); }
  NDArray constant(const Spec& spec, const Scalar&, const std::source_location&) const override {
    return empty(spec.shape, spec.dtype);
  }
  std::vector<NDArray> parts() const override { return {}; }
  std::string refusal() const override { return "not here"; }

  Does() = default;
  Does(const Does& other) : on_call(other.on_call), on_view(other.on_view) {}
};

/// One whose constants have another shape.
class Wrong final : public Owner {
 public:
  void apply(Call&) override {}
  void view(ViewCall&) override {}
  Ref<Owner> snapshot() const override { return Ref<Owner>(new Wrong); }
  NDArray constant(const Spec&, const Scalar&, const std::source_location&) const override { return zeros({3}); }
  std::vector<NDArray> parts() const override { return {}; }
  std::string refusal() const override { return "not here"; }
};

TEST(OwnerMisuse, IsOneLine) {
  const DeviceScope host(cpu(0));
  const Ref<Does> does(new Does);
  const NDArray x = owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does)).with_grad();
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              AllOf(HasSubstr("[exp] "), HasSubstr("its owner did not answer the call")));
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("its owner did not answer the view"));
  does->on_call = [](Call& call) { call.answer({zeros({3})}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              HasSubstr("its owner answered with (3,) f32 on cpu(0); the call gives (4, 2) f32"));
  does->on_call = [](Call& call) { call.answer({}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }),
              HasSubstr("its owner answered with no result; the call gives (4, 2) f32"));
  does->on_call = [](Call& call) { call.answer({NDArray()}); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }), HasSubstr("an empty handle"));
  NDArray y = owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does));
  does->on_call = [](Call& call) { call.answer({zeros({4, 2})}); };
  EXPECT_THAT(refusal([&] { y += 1; }), HasSubstr("not the targets of the call"));
  does->on_view = [](ViewCall& call) { call.answer(zeros({2, 4})); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("not an owner's"));
  does->on_view = [](ViewCall& call) { call.answer(call.input()); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }),
              HasSubstr("its owner answered with (4, 2) f32 on cpu(0); the view is (2, 4) f32 on cpu(0)"));
  does->on_view = [](ViewCall& call) { (void)call.of(zeros({3})); };
  EXPECT_THAT(refusal([&] { (void)x.transpose(); }), HasSubstr("a permute of (4, 2) for an array of (3,)"));
  EXPECT_THAT(refusal([&] { (void)owned_array({{4, 2}, DType::f32, cpu(0)}, {}); }), HasSubstr("a null owner"));
  EXPECT_THAT(refusal([&] {
                (void)owned_array({{-4, 2}, DType::f32, cpu(0)}, Ref<Owner>(does));
              }),
              HasSubstr("[owned_array] "));
  EXPECT_THAT(refusal([&] { (void)owner_of(NDArray()); }), HasSubstr("an empty handle"));
  // One that makes scopes of its own while interpreters stand around it.
  does->on_view = [&](ViewCall& call) {
    std::vector<std::unique_ptr<InterpreterScope>> scopes;
    for (int i = 0; i < 100; ++i) {
      scopes.push_back(std::make_unique<InterpreterScope>(std::make_shared<Interpreter>()));
    }
    call.answer(owned_array({{2, 4}, DType::f32, cpu(0)}, Ref<Owner>(does)));
  };
  {
    const InterpreterScope scope(std::make_shared<Interpreter>());
    EXPECT_EQ(x.transpose().shape(), (Dims{2, 4}));
  }
  EXPECT_THAT(refusal([&] {
                (void)zeros_like(owned_array({{4, 2}, DType::f32, cpu(0)}, Ref<Owner>(new Wrong)));
              }),
              HasSubstr("(3,) f32 on cpu(0) in place of (4, 2) f32 on cpu(0)"));
  does->on_call = [](Call&) { throw ArrayError("exp", std::source_location::current(), "mine"); };
  EXPECT_THAT(refusal([&] { (void)exp(x); }), HasSubstr("mine"));
  EXPECT_TRUE(x.requires_grad());
}

/// An owner may answer with an operand, or with an array that it keeps: the result is another array all the same.
TEST(Owners, AnswersThatAreOperandsAreArraysOfTheirOwn) {
  const DeviceScope host(cpu(0));
  const Ref<Does> does(new Does);
  const NDArray x = owned_array({{2}, DType::f32, cpu(0)}, Ref<Owner>(does)).with_grad();
  const NDArray kept = ones({2});
  does->on_call = [&](Call& call) { call.answer({call.name() == "exp" ? kept : call.input()}); };
  NDArray y = exp(x);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(kept.requires_grad());
  EXPECT_FALSE(y.same_array(kept));
  {
    const NoGrad scope;
    y += 1;
  }
  EXPECT_EQ(kept.to_vector<float>(), (std::vector<float>{1, 1}));
  const NDArray z = tanh(x);
  EXPECT_FALSE(z.same_array(x));
  const NoGrad scope;
  EXPECT_FALSE(exp(x).same_array(kept));
  EXPECT_FALSE(tanh(x).same_array(x));
  EXPECT_TRUE(x.requires_grad());
}

}  // namespace
}  // namespace sluice::testing
