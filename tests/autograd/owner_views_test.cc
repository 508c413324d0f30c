// Views of arrays of owners, their gradients, and writes to what they show.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "owner_support.h"

namespace sluice::testing {
namespace {

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

TEST(Owners, AWriteToAViewIsAWriteToTheArray) {
  const NDArray x = Halves::split(zeros({4, 3}, DType::f64));
  NDArray part = x.narrow(1, 1, 2);
  part += 5;
  x(all, 2) = 7;
  EXPECT_EQ(values(x), (std::vector<double>{0, 5, 7, 0, 5, 7, 0, 5, 7, 0, 5, 7}));
}

/// A function that turns its operand's axes gives a contiguous result: its views are views, as a plain array's are.
TEST(Owners, AContiguousResultIsContiguousInItsParts) {
  const NDArray plain = numbers({4, 3, 2}, 1), x = Halves::split(plain);
  const NDArray y = softmax(x, 1);
  NDArray flat = y.flatten(1);
  flat += 1;
  expect_near(y, softmax(plain, 1) + 1);
  NDArray turned = x.transpose().contiguous();
  NDArray(turned.reshape({6, 4})) += 1;
  expect_near(turned, plain.transpose() + 1);
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

TEST(Owners, ManyViewsOfViews) {
  NDArray x = Halves::split(numbers({4, 3}, 1)).with_grad() * 1;
  const NDArray first = x;
  for (int i = 0; i < 50'000; ++i) x = x.flip(1);
  expect_near(x, numbers({4, 3}, 1));
  EXPECT_TRUE(x.requires_grad());
}

}  // namespace
}  // namespace sluice::testing
