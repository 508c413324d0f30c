// Programs for the rules 19, 20 and 23 of docs/semantics.md: random numbers, checkpoints, kernels that do not depend on
// timing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "semantics_programs.h"

namespace sluice::testing {
namespace {

constexpr std::uint64_t kSeed = 19;

Floats joined(Floats a, const Floats& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The draws of a new stream: as many arrays of four uniform numbers.
std::vector<Floats> draws(int count) {
  RandomStream stream(kSeed);
  std::vector<Floats> out;
  for (int i = 0; i < count; ++i) out.push_back(floats(uniform({4}, stream)));
  return out;
}

// ---- 19: random numbers

TEST(Semantics19Random, ASkippedDrawCounts) {
  on_each_engine([](Engine&) {
    const std::vector<Floats> wanted = draws(3);
    RandomStream stream(kSeed);
    const NDArray first = uniform({4}, stream);
    const NDArray masked = dropout(failed({4}), 0.5, stream);  // takes the second, and is skipped
    const NDArray third = uniform({4}, stream);
    EXPECT_THROW(masked.wait(), Error);
    EXPECT_EQ(floats(first), wanted[0]);
    EXPECT_EQ(floats(third), wanted[2]);
  });
}

TEST(Semantics19Random, ADrawIsThatOfItsPushWheneverItRuns) {
  on_each_engine([](Engine&) {
    const std::vector<Floats> wanted = draws(2);
    RandomStream stream(kSeed), same(kSeed);
    Late late({4}, 3);
    const NDArray masked = dropout(late.array, 0.5, stream);
    EXPECT_EQ(floats(uniform({4}, stream)), wanted[1]);  // runs first, and is the second
    late.held.release();
    EXPECT_EQ(floats(masked), floats(dropout(full({4}, 3), 0.5, same)));
  });
}

TEST(Semantics19Random, AnElementIsKeyedByItsIndexInTheWhole) {
  on_each_engine([](Engine&) {
    RandomStream whole(kSeed), low(kSeed), high(kSeed);
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto numbers = [](const NDArray& x) { return floats(x.to(DType::f32)); };
      EXPECT_EQ(numbers(uniform({7}, whole, 0, 1, dtype)),
                joined(numbers(uniform({3}, low, 0, 1, dtype)), numbers(uniform({4}, high, 0, 1, dtype, 3))));
      EXPECT_EQ(numbers(normal({7}, whole, 0, 1, dtype)),
                joined(numbers(normal({3}, low, 0, 1, dtype)), numbers(normal({4}, high, 0, 1, dtype, 3))));
    }
  });
}

TEST(Semantics19Random, EveryEngineDrawsTheSameAndAStateGoesOn) {
  std::set<Floats> seen;
  on_each_engine([&seen](Engine&) {
    RandomStream stream(kSeed);
    uniform({5}, stream);  // dropped; it counts
    const RandomStream::State state = stream.state();
    const Floats numbers = joined(floats(normal({1000}, stream)), floats(uniform({1000}, stream)));
    RandomStream again(state);
    EXPECT_EQ(joined(floats(normal({1000}, again)), floats(uniform({1000}, again))), numbers);
    seen.insert(numbers);
  });
  EXPECT_EQ(seen.size(), 1U);
}

// ---- 20: checkpoints

TEST(Semantics20Checkpoint, BackwardSeesTheVersionsOfTheFirstRun) {
  on_each_engine([](Engine&) {
    const NDArray a = from({1.0F, 2.0F}, {2}).with_grad(), w = from({3.0F}, {1}).with_grad();
    const NDArray scale = from({5.0F, 7.0F}, {2});
    NDArray x = a * 2;
    const NDArray y = checkpoint([&](const NDArray& h) { return h * h * scale * w; }, x);
    scale.fill(1000);
    x.fill(1000);
    {
      const NoGrad scope;
      w.fill(1000);
    }
    sum(y).backward();
    EXPECT_EQ(floats(a.grad()), (Floats{2 * 4 * 5 * 3, 2 * 8 * 7 * 3}));  // 2 * 2 h scale w, where h = 2 a
    EXPECT_EQ(floats(w.grad()), Floats{4 * 5 + 16 * 7});                  // the sum of h^2 scale
  });
}

TEST(Semantics20Checkpoint, BackwardSeesTheMaskOfTheFirstRun) {
  on_each_engine([](Engine&) {
    RandomStream stream(kSeed);
    const NDArray x = full({64}, 2).with_grad();
    const NDArray y = checkpoint([&](const NDArray& h) { return dropout(h * 1, 0.5, stream); }, x);
    const NDArray next = uniform({4}, stream);  // another draw between the runs
    sum(y).backward();
    const Floats values = floats(y), gradient = floats(x.grad());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(gradient[i] * 2, values[i]) << i;
    EXPECT_GT(std::count(values.begin(), values.end(), 0.0F), 0);
    EXPECT_GT(std::count(values.begin(), values.end(), 4.0F), 0);
    EXPECT_EQ(floats(next), draws(2)[1]);
    EXPECT_EQ(floats(uniform({4}, stream)), draws(3)[2]) << "the second run moves no stream";
  });
}

TEST(Semantics20Checkpoint, WritesToOlderArraysHappenOnceAndAreSeenAgain) {
  on_each_engine([](Engine&) {
    const NDArray x = from({2.0F}, {1}).with_grad();
    NDArray calls = zeros({1});
    const auto f = [&calls](const NDArray& h) {
      {
        const NoGrad scope;
        NDArray count = calls;
        count += 1;
      }
      return h * h * calls;
    };
    const NDArray first = checkpoint(f, x), second = checkpoint(f, x);  // x^2, and 2 x^2
    EXPECT_EQ(floats(calls), Floats{2});
    calls.fill(50);
    (sum(first) + sum(second)).backward();
    EXPECT_EQ(floats(x.grad()), Floats{2 * 2 + 2 * 2 * 2});
    EXPECT_EQ(floats(calls), Floats{50});
  });
}

TEST(Semantics20Checkpoint, StatisticsOfABatchMoveOnce) {
  on_each_engine([](Engine&) {
    const NDArray x = from({1.0F, 10.0F, 3.0F, 30.0F}, {2, 2}).with_grad();
    const RunningStatistics running{zeros({2}), ones({2})};
    const auto f = [&](const NDArray& h) { return batch_norm(h, running, {}, {}, {.momentum = 0.5}); };
    const NDArray y = checkpoint(f, x);
    sum(y * y).backward();
    EXPECT_EQ(floats(running.mean), (Floats{1, 10}));           // half of 2, and of 20
    EXPECT_EQ(floats(running.variance), (Floats{1.5, 100.5}));  // half of 1 + 2, and of 1 + 200
    for (float g : floats(x.grad())) EXPECT_NEAR(g, 0, 1e-4);   // the sum of squares is fixed by the normalisation
  });
}

// ---- 23: kernel choice

TEST(Semantics23Kernels, TimingAndThreadsDoNotPickTheBits) {
  std::set<Floats> seen;
  on_each_engine([&seen](Engine&) {
    RandomStream stream(kSeed);
    const NDArray x = normal({100'003}, stream), m = normal({65, 130}, stream);
    const NDArray image = normal({2, 3, 12, 12}, stream), filter = normal({4, 3, 3, 3}, stream);
    for (int i = 0; i < 3; ++i) {
      Floats out = floats(sum(x));
      for (const NDArray& y : {matmul(m, m.transpose()), softmax(m), conv2d(image, filter)}) {
        out = joined(std::move(out), floats(y));
      }
      seen.insert(std::move(out));
    }
  });
  EXPECT_EQ(seen.size(), 1U);
}

TEST(Semantics23Kernels, WhereTheMemoryLiesDoesNotPickTheBits) {
  on_each_engine([](Engine&) {
    RandomStream stream(kSeed);
    constexpr std::int64_t kCount = 4'099;
    const NDArray block = normal({kCount + 16}, stream);
    const NDArray x = block(slice(0, kCount)).copy();
    for (std::int64_t shift = 1; shift < 16; shift += 5) {
      block(slice(shift, shift + kCount)) = x;
      const NDArray shifted = block(slice(shift, shift + kCount));
      EXPECT_EQ(floats(sum(shifted)), floats(sum(x))) << shift;
      EXPECT_EQ(floats(exp(shifted)), floats(exp(x))) << shift;
      EXPECT_EQ(floats(softmax(shifted)), floats(softmax(x))) << shift;
      EXPECT_EQ(floats(matmul(shifted.reshape({1, kCount}), shifted.reshape({kCount, 1}))),
                floats(matmul(x.reshape({1, kCount}), x.reshape({kCount, 1}))))
          << shift;
    }
  });
}

}  // namespace
}  // namespace sluice::testing
