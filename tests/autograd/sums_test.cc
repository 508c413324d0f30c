// Sums of gradients over many uses, and gradients that a program gives or sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

std::size_t in_use(Engine& engine) {
  engine.wait_all();
  return memory_pool(cpu(0)).stats().in_use;
}

TEST(Sums, AWeightUsedAThousandTimesKeepsFewGradients) {
  TestEngine test(1, 1, EngineMode::serial);  // so that the peak does not depend on who runs ahead
  const DeviceScope scope(cpu(0));
  constexpr std::int64_t kCount = 1 << 18;
  const NDArray w = ones({kCount}).with_grad();
  NDArray total = zeros({});
  for (int i = 0; i < 1000; ++i) total = total + sum(w * (i % 2 == 0 ? 1.0 : 0.5));
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = in_use(test.engine);
  pool.reset_peak();
  total.backward();
  EXPECT_EQ(floats(w.grad()), Floats(kCount, 750.0F));
  EXPECT_LE(pool.stats().peak, before + (std::size_t{32} << 20));
}

TEST(Sums, TermsBeyondSixteenFollowTheRule) {
  TestEngine test(2);
  RandomStream random(5);
  const std::vector<float> factors = normal({100}, random).to_vector<float>();
  const NDArray w = ones({1}).with_grad();
  NDArray total;
  for (float f : factors) {
    const NDArray term = w * f;
    total = total.defined() ? total + term : term;
  }
  sum(total).backward();
  std::vector<float> terms;  // from the last use on
  const auto sum_of_terms = [&terms] {
    float value = terms.back();
    for (std::size_t i = terms.size() - 1; i-- > 0;) value += terms[i];
    return value;
  };
  for (std::size_t i = factors.size(); i-- > 0;) {
    terms.push_back(factors[i]);
    if (terms.size() == 16) terms = {sum_of_terms()};
  }
  EXPECT_EQ(floats(w.grad()), Floats{sum_of_terms()});
}

TEST(Sums, AnyNumberOfUses) {
  TestEngine test(2);
  constexpr int kUses = 70'000;
  const NDArray w = ones({}).with_grad();
  const Arrays one{ones({})};
  Arrays roots, seeds;
  for (int i = 0; i < kUses; ++i) {
    roots.push_back(w * 1.0);
    seeds.push_back(one[0]);
  }
  backward(roots, seeds);
  EXPECT_EQ(w.grad().item<float>(), kUses);
}

TEST(SetGrad, OfTheArraysOwnFunctionIsNoRing) {
  TestEngine test(1);
  const DeviceScope scope(cpu(0));
  const std::size_t before = in_use(test.engine);
  for (int i = 0; i < 3; ++i) {
    const NDArray x = ones({1 << 16}).with_grad();
    x.set_grad(x * 2);
    EXPECT_FALSE(x.grad().requires_grad());
    EXPECT_EQ(floats(x.grad()), Floats(1 << 16, 2.0F));
  }
  EXPECT_EQ(in_use(test.engine), before);
}

TEST(SetGrad, TakesTheValueAndNotTheArray) {
  TestEngine test(2);
  const NDArray x = ones({3}).with_grad(), g = from({1.0F, 2.0F, 3.0F}, {3});
  x.set_grad(g);
  sum(x).backward();
  EXPECT_EQ(floats(x.grad()), (Floats{2, 3, 4}));
  EXPECT_EQ(floats(g), (Floats{1, 2, 3}));
  g.fill(7);
  EXPECT_EQ(floats(x.grad()), (Floats{2, 3, 4}));
  x.grad().fill(0);
  EXPECT_EQ(floats(g), Floats(3, 7.0F));
  // Views: broadcast, transposed, and parts of larger arrays.
  x.set_grad(ones({1}).broadcast_to({3}));
  sum(x).backward();
  EXPECT_EQ(floats(x.grad()), Floats(3, 2.0F));
  const NDArray square = zeros({2, 2}).with_grad(), larger = arange(0, 8, 1, DType::f32).reshape({4, 2});
  square.set_grad(larger(slice(1, 3)).transpose());
  sum(square).backward();
  EXPECT_EQ(floats(square.grad()), (Floats{3, 5, 4, 6}));
  EXPECT_EQ(floats(larger), (Floats{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(SetGrad, RefusesAnotherDevice) {
  TestEngine test(2, 2);
  const NDArray x = ones({3}).with_grad();
  EXPECT_THROW(x.set_grad(ones({3}).to(test::device(1))), ArrayError);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Gradients, WantNoneThemselvesUnlessTheyAreRecorded) {
  TestEngine test(2);
  const NDArray x = ones({2}).with_grad(), w = from({3.0F, 4.0F}, {2}).with_grad();
  const Arrays roots{x + 1}, gradients{w}, xs{x};
  backward(roots, gradients);
  EXPECT_FALSE(x.grad().requires_grad());
  EXPECT_EQ(floats(x.grad()), (Floats{3, 4}));
  x.grad().fill(1);  // no leaf
  EXPECT_EQ(floats(w), (Floats{3, 4}));
  const Arrays plain = grad(Arrays{x + 1}, gradients, xs);
  EXPECT_FALSE(plain[0].requires_grad());
  const Arrays recorded = grad(Arrays{x + 1}, gradients, xs, {.create_graph = true});
  EXPECT_TRUE(recorded[0].requires_grad());
  sum(square(recorded[0])).backward();
  EXPECT_EQ(floats(w.grad()), (Floats{6, 8}));
}

}  // namespace
}  // namespace sluice::testing
