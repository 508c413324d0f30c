// A weight that is tied across stages: its uses, summed one by one, have the bits of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;
using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

constexpr int kMicrobatches = 3;

struct Numbers {
  RandomStream stream{11};
  NDArray next(const Dims& shape) { return normal(shape, stream).detach(); }
};

/// Layers from one to another, each of which uses the weight: every third one a changed weight, every third one a part.
NDArray layers(NDArray x, const NDArray& w, int first, int last) {
  for (int i = first; i < last; ++i) {
    x = i % 3 == 0 ? tanh(linear(x, w)) : i % 3 == 1 ? tanh(matmul(x, w * 0.5F)) : x + x * w(1);
  }
  return x;
}

Bytes one_device(int n) {
  Numbers numbers;
  const NDArray w = numbers.next({6, 6}).with_grad();
  for (int k = 0; k < kMicrobatches; ++k) {
    const NDArray y = layers(numbers.next({4, 6}), w, 0, n);
    backward({y}, {numbers.next({4, 6})});
  }
  return w.grad().to_bytes();
}

/// Two stages, each with a copy of the weight, cut before layer `cut`. All first halves run before all second ones.
Bytes two_stages(int n, int cut) {
  Numbers numbers;
  const NDArray w = numbers.next({6, 6}).with_grad();
  const NDArray copies[2] = {w.detach().to(test::device(0)).copy().with_grad(),
                             w.detach().to(test::device(1)).with_grad()};
  Arrays terms[2][kMicrobatches];
  std::vector<WeightGradients> later[2];
  for (auto& here : terms) {
    const NDArray& copy = copies[&here - terms];
    on_uses(copy, [k = 0, &here](const Arrays& list) mutable { here[k++] = list; });
  }
  for (int k = 0; k < kMicrobatches; ++k) {
    const NDArray x = numbers.next({4, 6}).with_grad(), low = layers(x, copies[0], 0, cut);
    const DeviceScope device(test::device(1));
    const NDArray between = low.detach().to(test::device(1)).with_grad(), y = layers(between, copies[1], cut, n);
    const DeviceScope host(test::device(0));
    const NDArray gradient = numbers.next({4, 6}).to(test::device(1));
    later[1].push_back(backward_inputs({y}, {gradient}, {between}));
    later[0].push_back(backward_inputs({low}, {between.grad().to(test::device(0))}, {x}));
  }
  for (auto& stage : later) {
    for (WeightGradients& weights : stage) weights.run();
  }
  for (int k = 0; k < kMicrobatches; ++k) {
    Arrays all = terms[0][k];
    for (const NDArray& term : terms[1][k]) all.push_back(term.to(test::device(0)));
    EXPECT_EQ(all.size(), static_cast<std::size_t>(n));
    add_gradient(w, sum_of_uses(all));
  }
  EXPECT_FALSE(copies[0].grad().defined());
  return w.grad().to_bytes();
}

TEST(TiedWeights, HaveTheBitsOfOneDeviceWhereverStagesAreCut) {
  for (const int threads : {0, 2}) {  // 0: serial
    TestEngine test(std::max(1, threads), 2, threads == 0 ? EngineMode::serial : EngineMode::threaded);
    for (const int n : {2, 5, 17, 33}) {  // beyond 16 uses the sum has another tree
      const Bytes whole = one_device(n);
      for (int cut = 1; cut < n; cut += std::max(1, n / 4)) {
        EXPECT_TRUE(two_stages(n, cut) == whole) << n << " uses, cut before " << cut << ", " << threads << " threads";
      }
    }
  }
}

TEST(TiedWeights, GetTheirTermsInTheOrderOfTheProgram) {
  TestEngine test(2);
  const NDArray w = from({1.0F, 2.0F}, {2}).with_grad(), v = ones({2}).with_grad(), seed = from({1.0F, 1.0F}, {2});
  std::vector<Floats> seen;
  const auto note = [&](const Arrays& terms) {
    for (const NDArray& t : terms) seen.push_back(t.to_vector<float>());
  };
  on_uses(w, note);
  int hooked = 0;
  on_gradient(w, [&](const NDArray&) { return ++hooked, NDArray(); });
  const NDArray first = w * 3, second = w(0) * v, y = first + second + w;
  EXPECT_EQ(grad(sum(y), {w}, {.retain = true})[0].to_vector<float>(), (Floats{6, 4}));  // sums as before
  EXPECT_EQ(hooked, 1);
  backward({y}, {seed}, {.retain = true});
  EXPECT_EQ(seen, (std::vector<Floats>{{3, 3}, {2, 0}, {1, 1}}));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(hooked, 1);
  EXPECT_EQ(v.grad().to_vector<float>(), (Floats{1, 1}));
  on_uses(w, nullptr);
  backward({y}, {seed});
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{6, 4}));
  EXPECT_EQ(hooked, 2);
}

TEST(TiedWeights, AreLeavesAndTheirGradientsFit) {
  TestEngine test(2);
  const NDArray w = ones({2}).with_grad();
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const ArrayError& e) {
      return e.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message([&] { on_uses(w * 2, [](const Arrays&) {}); }), HasSubstr("not made with with_grad()"));
  EXPECT_THAT(message([&] { on_uses(w(0), [](const Arrays&) {}); }), HasSubstr("a view"));
  EXPECT_THAT(message([&] { add_gradient(ones({2}), ones({2})); }), HasSubstr("not made with with_grad()"));
  EXPECT_THAT(message([&] { add_gradient(w, ones({3})); }), HasSubstr("(3,) f32"));
  EXPECT_THAT(message([&] { (void)sum_of_uses(Arrays()); }), HasSubstr("no terms"));
  const NDArray g = ones({2});
  add_gradient(w, g);
  g.fill(5);
  add_gradient(w, g);
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{6, 6}));
  add_gradient(w, arange(8).to(DType::f32)(slice(1, 8, 4)));  // a view of a longer array
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{7, 11}));
}

}  // namespace
}  // namespace sluice::testing
