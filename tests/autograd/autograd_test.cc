// The tape: accumulation, views, in-place writes, scopes, determinism, depth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

TEST(Backward, AddsIntoTheGradientsAndFreesTheTape) {
  NDArray w = from({1.0F, 2.0F}, {2}).with_grad();
  const NDArray l = sum(w * w);
  l.backward({.retain = true});
  EXPECT_EQ(floats(w.grad()), (Floats{2, 4}));
  l.backward();
  EXPECT_EQ(floats(w.grad()), (Floats{4, 8}));
  try {
    l.backward();
    FAIL();
  } catch (const ArrayError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("freed"));
  }
  w.zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

/// A part of the tape that was freed would be missing in the gradient, or look as if nothing depended on it.
TEST(Backward, GradRefusesWhatLeadsThroughAFreedPart) {
  const NDArray x = ones({2}).with_grad();
  const NDArray h = x * 3, y = tanh(h);
  (void)grad(sum(y), {x});
  for (const NDArray& root : {sum(y * 2), sum(y * x)}) {
    try {
      (void)grad(root, {x});
      ADD_FAILURE();
    } catch (const ArrayError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("freed"));
    }
  }
  // What lies behind the arrays that are asked for does not matter.
  EXPECT_EQ(floats(grad(sum(h * 2), {h})[0]), (Floats{2, 2}));
  // Nor does what is older than all of them: it depends on none.
  const NDArray c = ones({2}).with_grad();
  EXPECT_EQ(floats(grad(sum(y * c), {c})[0]), floats(y));
  EXPECT_EQ(floats(grad(sum(h * c), {h, c})[1]), floats(h));
  EXPECT_EQ(floats(vjp([&](const NDArray& z) { return z * y; }, {c}, {ones({2})}).products[0]), floats(y));
  EXPECT_EQ(floats(grad(sum(y.detach() * x), {x})[0]), floats(y));
}

TEST(Backward, MisuseIsOneClearLine) {
  const NDArray w = ones({2}).with_grad();
  EXPECT_THROW((w * 2).backward(), ArrayError);        // not one element
  EXPECT_THROW(ones({}).backward(), ArrayError);       // no history
  EXPECT_THROW(arange(0, 2).with_grad(), ArrayError);  // integers
  EXPECT_THROW((w * 2).with_grad(), ArrayError);
  EXPECT_THROW(ones({2}).set_grad(ones({2})), ArrayError);
  EXPECT_THROW(w.set_grad(ones({3})), ArrayError);
  const NDArray y = w * 2, bad = ones({3});
  EXPECT_THROW(backward(std::span(&y, 1), std::span(&bad, 1)), ArrayError);
}

TEST(Backward, GradientsOfSeveralUsesDoNotShareMemory) {
  const NDArray a = ones({3}).with_grad(), b = ones({3}).with_grad();
  sum(a + b).backward();
  a.grad().fill(5);
  EXPECT_EQ(floats(b.grad()), Floats(3, 1.0F));
  const Arrays both{a, b};
  Arrays g = grad(sum(a + b), both);
  g[0] *= 7;
  EXPECT_EQ(floats(g[1]), Floats(3, 1.0F));
  sum(a + b).backward();
  EXPECT_EQ(floats(a.grad()), Floats(3, 6.0F));
}

TEST(Backward, GradientsOfBroadcastViewsAreSumsOverAllAxes) {
  const NDArray x = from({1.0F, 2.0F, 3.0F}, {3}).with_grad();
  const NDArray wide = x.reshape({1, 3, 1}).broadcast_to({2, 3, 4});
  sum(wide * arange(0, 24, 1, DType::f32).reshape({2, 3, 4})).backward();
  EXPECT_EQ(floats(x.grad()), (Floats{60, 92, 124}));  // 0 + 1 + 2 + 3 + 12 + 13 + 14 + 15, and so on
}

/// Two results of one function, in any order.
TEST(Grad, OfSeveralResultsOfOneFunction) {
  const CustomFunction both{.name = "both",
                            .forward =
                                [](Saved&, const Arrays& xs) {
                                  return Arrays{xs[0] * 2.0, xs[0] * 3.0};
                                },
                            .backward = [](const Saved&, const Arrays& g) { return Arrays{g[0] * 2.0 + g[1] * 3.0}; }};
  const NDArray x = from({1.0F, 2.0F}, {2}).with_grad();
  const Arrays ys = apply_custom(both, {x});
  const NDArray l = sum(ys[0] * 5.0 + ys[1] * 7.0);
  const Arrays forwards = grad(l, {ys[0], ys[1]}, {.retain = true}), backwards = grad(l, {ys[1], ys[0]});
  EXPECT_EQ(floats(forwards[0]), Floats(2, 5.0F));
  EXPECT_EQ(floats(forwards[1]), Floats(2, 7.0F));
  EXPECT_EQ(floats(backwards[0]), Floats(2, 7.0F));
  EXPECT_EQ(floats(backwards[1]), Floats(2, 5.0F));
}

TEST(Backward, VectorJacobianProductsOfSeveralRoots) {
  const NDArray x = from({1.0F, 2.0F}, {2}).with_grad();
  const Arrays roots{x * 2, square(x)}, weights{from({1.0F, 10.0F}, {2}), from({100.0F, 1000.0F}, {2})};
  backward(roots, weights);
  EXPECT_EQ(floats(x.grad()), (Floats{202, 4020}));
}

TEST(Backward, StagesMeetAtDetachedArrays) {
  const NDArray w1 = from({3.0F}, {1}).with_grad(), w2 = from({5.0F}, {1}).with_grad();
  const NDArray sent = w1 * w1;
  const NDArray received = sent.detach().with_grad();
  EXPECT_FALSE(sent.detach().requires_grad());
  sum(received * w2).backward();
  const Arrays roots{sent}, gradients{received.grad()};
  backward(roots, gradients);
  EXPECT_EQ(floats(w1.grad()), Floats{30});
  EXPECT_EQ(floats(w2.grad()), Floats{9});
}

TEST(Grad, OfIntermediateArraysAndOfViews) {
  const NDArray x = from({1.0F, 2.0F, 3.0F}, {3}).with_grad();
  const NDArray y = x * 2, unrelated = ones({1}).with_grad();
  const NDArray l = sum(square(y));
  const Arrays xs{y, x, y(slice(1, 3)), unrelated};
  const Arrays g = grad(l, xs);
  EXPECT_EQ(floats(g[0]), (Floats{4, 8, 12}));
  EXPECT_EQ(floats(g[1]), (Floats{8, 16, 24}));
  EXPECT_EQ(floats(g[2]), (Floats{8, 12}));
  EXPECT_FALSE(g[3].defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Grad, ThirdDerivatives) {
  const NDArray x = from({2.0}, {}).with_grad();
  const Arrays xs{x};
  const NDArray d1 = grad(x * x * x * x, xs, {.create_graph = true})[0];
  const NDArray d2 = grad(d1, xs, {.create_graph = true})[0];
  const NDArray d3 = grad(d2, xs, {.create_graph = true})[0];
  EXPECT_DOUBLE_EQ(d1.item<double>(), 32);
  EXPECT_DOUBLE_EQ(d2.item<double>(), 48);
  EXPECT_DOUBLE_EQ(d3.item<double>(), 48);
}

TEST(Scopes, NoGradTravelsWithThePush) {
  const NDArray w = ones({2}).with_grad();
  {
    const NoGrad scope;
    EXPECT_FALSE((w * 2).requires_grad());
    const WithGrad inner;
    EXPECT_TRUE((w * 2).requires_grad());
  }
  EXPECT_TRUE((w * 2).requires_grad());
  EXPECT_FALSE(greater(w, 0).requires_grad());
}

// ---- in-place writes with a history

TEST(InPlace, WritesToViewsOfArraysWithHistory) {
  const NDArray a = from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2}).with_grad(), b = from({5.0F, 6.0F}, {2}).with_grad();
  NDArray x = a * 10;
  x(0) = b * 2;    // the first row comes from b now
  x(all, 1) *= 3;  // and the second column counts three times
  EXPECT_EQ(floats(x), (Floats{10, 36, 30, 120}));
  sum(x * x).backward();
  EXPECT_EQ(floats(a.grad()), (Floats{0, 0, 600, 7200}));
  EXPECT_EQ(floats(b.grad()), (Floats{40, 432}));
}

TEST(InPlace, WholeArrays) {
  const NDArray a = from({1.0F, 2.0F}, {2}).with_grad();
  NDArray x = exp(a);
  const NDArray before = x * 1;
  x *= x;
  x += before;
  sum(x).backward();
  for (std::size_t i = 0; i < 2; ++i) {
    const float e = std::exp(static_cast<float>(i + 1));
    EXPECT_NEAR(floats(a.grad())[i], 2 * e * e + e, 1e-3);
  }
  NDArray y = a * 2;
  y.fill(3);
  sum(y).backward();  // nothing of a is left in it
  EXPECT_NEAR(floats(a.grad())[0], 2 * std::exp(2.0F) + std::exp(1.0F), 1e-3);
}

TEST(InPlace, AWriteOfRecordedValuesMakesAnArrayPartOfTheGraph) {
  const NDArray w = from({2.0F}, {1}).with_grad();
  NDArray buffer = zeros({3});
  for (int i = 0; i < 3; ++i) buffer(slice(i, i + 1)) = w * static_cast<float>(i + 1);
  EXPECT_TRUE(buffer.requires_grad());
  sum(square(buffer)).backward();
  EXPECT_EQ(floats(w.grad()), Floats{56});
}

TEST(InPlace, SecondOrderThroughAWrite) {
  const NDArray a = from({1.0, 2.0}, {2}).with_grad();
  NDArray x = square(a);
  x(slice(0, 1)) *= 3.0;
  const Arrays as{a};
  const NDArray g = grad(sum(x * x), as, {.create_graph = true})[0];  // 36 a0^3, 4 a1^3
  const NDArray h = grad(sum(g), as)[0];
  EXPECT_NEAR(h.to_vector<double>()[0], 108, 1e-9);
  EXPECT_NEAR(h.to_vector<double>()[1], 48, 1e-9);
}

// ---- what is kept, and for how long

TEST(Tape, KeepsOnlyWhatGradientsNeed) {
  NDArray a = ones({1 << 16}), w = ones({1 << 16}).with_grad();
  const auto holders = [](const NDArray& x) { return x.array()->version()->arrays(); };
  const NDArray sum_ab = w + a;  // a sum needs shapes only
  EXPECT_EQ(holders(a), 1);
  EXPECT_EQ(holders(w), 1);
  const NDArray product = a * w;  // a is needed for w's gradient; w is not, because a wants none
  EXPECT_EQ(holders(a), 2);
  EXPECT_EQ(holders(w), 1);
  const NDArray r = relu(w);
  EXPECT_EQ(holders(r), 2);
  EXPECT_EQ(holders(w), 1);
  sum(sum_ab + product + r).backward();
  EXPECT_EQ(holders(a), 1);  // the tape is gone, and with it what it held
  EXPECT_EQ(holders(r), 1);
}

TEST(Tape, TheFirstLayerComputesNoInputGradient) {
  TestEngine test(1);
  const NDArray x = ones({2, 1, 4, 4}), w = ones({3, 1, 3, 3}).with_grad(), v = ones({2, 12}).with_grad();
  test.engine.start_trace();
  sum(linear(conv2d(x, w).flatten(1), v)).backward();
  w.grad().wait();
  v.grad().wait();
  test.engine.wait_all();
  int input_grads = 0, weight_grads = 0;
  for (const TraceEvent& e : test.engine.stop_trace()) {
    input_grads += std::string_view(e.name) == "conv2d_input_grad";
    weight_grads += std::string_view(e.name) == "conv2d_weight_grad";
  }
  EXPECT_EQ(input_grads, 0);
  EXPECT_EQ(weight_grads, 1);
}

TEST(Tape, AVeryLongChainNeitherRecursesForwardsNorWhenItGoes) {
  const NDArray w = ones({1}).with_grad();
  NDArray x = w;
  for (int i = 0; i < 100000; ++i) x = x + 1;
  sum(x).backward();
  EXPECT_EQ(floats(w.grad()), Floats{1});
  x = w;
  for (int i = 0; i < 100000; ++i) x = exp(x * 0.0);  // holds values as well
  x = NDArray();                                      // and goes without backward
  w.wait();
}

// ---- 22: order of accumulation, and bits

TEST(Rule22, UsesAreSummedInTheOrderOfTheProgram) {
  // In f32 these sums differ by order: (1e8 + 1) - 1e8 = 0, (1e8 - 1e8) + 1 = 1.
  const NDArray w = ones({1}).with_grad();
  const auto gradient = [&](std::vector<float> factors) {
    w.zero_grad();
    NDArray total;
    for (float f : factors) {
      const NDArray term = w * f;
      total = total.defined() ? total + term : term;
    }
    sum(total).backward();
    return floats(w.grad())[0];
  };
  EXPECT_EQ(gradient({1e8F, 1, -1e8F}), 0);
  EXPECT_EQ(gradient({1e8F, -1e8F, 1}), 1);
  EXPECT_EQ(gradient({1, 1e8F, -1e8F}), 0);
  // Microbatches: each one's sum is added in the order of the calls of backward.
  w.zero_grad();
  for (float f : {1e8F, -1e8F, 1.0F}) sum(w * f).backward();
  EXPECT_EQ(floats(w.grad()), Floats{1});
}

struct Net {
  NDArray c1, b1, c2, b2, w1, d1, w2, d2;
  Arrays all_of() const { return {c1, b1, c2, b2, w1, d1, w2, d2}; }
};

Net make_net(RandomStream& stream) {
  const auto make = [&](const Dims& shape) { return (normal(shape, stream) * 0.2).detach().with_grad(); };
  return {make({4, 1, 3, 3}), make({4}),  make({6, 4, 3, 3}), make({6}),
          make({20, 54}),     make({20}), make({10, 20}),     make({10})};
}

NDArray forward(const Net& n, const NDArray& x) {
  NDArray h = max_pool2d(conv2d(x, n.c1, n.b1, {.padding = 1, .relu = true}), 2);
  h = max_pool2d(conv2d(h, n.c2, n.b2, {.relu = true}), 2);
  return linear(linear(h.flatten(1), n.w1, n.d1, {.relu = true}), n.w2, n.d2);
}

std::vector<std::byte> train(int threads, EngineMode mode = EngineMode::threaded) {
  TestEngine test(threads, 1, mode);
  RandomStream stream(11);
  const Net net = make_net(stream);
  Arrays states;
  for (const NDArray& p : net.all_of()) states.push_back(zeros_like(p));
  for (int step = 0; step < 5; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const NDArray x = normal({16, 1, 16, 16}, stream);
      std::vector<std::int64_t> labels;
      for (int i = 0; i < 16; ++i) labels.push_back((i + step + micro) % 10);
      cross_entropy(forward(net, x), from(labels, {16}), 32).backward();
    }
    const Arrays parameters = net.all_of();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      sgd_step(parameters[i], states[i], parameters[i].grad(), 0.05, 0.9, 1e-4);
      parameters[i].zero_grad();
    }
  }
  std::vector<std::byte> bits;
  for (const NDArray& p : net.all_of()) {
    const auto bytes = p.to_bytes();
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  }
  return bits;
}

TEST(Determinism, TrainingHasTheSameBitsOnAnyNumberOfThreads) {
  const auto one = train(1);
  EXPECT_EQ(one, train(2));
  EXPECT_EQ(one, train(4));
  EXPECT_EQ(one, train(1, EngineMode::serial));  // 18
}

TEST(Threads, SeparateGraphsRunAtOnce) {
  TestEngine test(2);
  const NDArray shared = from({3.0F}, {1}).with_grad();
  std::vector<std::thread> threads;
  std::array<float, 4> results{};
  for (std::size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      const DeviceScope scope(test::device());
      NDArray w = from({static_cast<float>(t)}, {1}).with_grad();
      for (int i = 0; i < 50; ++i) {
        w.zero_grad();
        sum(square(w) * shared).backward();
      }
      results[t] = floats(w.grad())[0];
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t t = 0; t < results.size(); ++t) EXPECT_EQ(results[t], 6.0F * static_cast<float>(t));
  EXPECT_EQ(floats(shared.grad()), Floats{50 * (0 + 1 + 4 + 9)});
}

TEST(Linear, RegressionLearns) {
  RandomStream stream(1);
  const NDArray x = normal({256, 3}, stream), truth = from({1.0F, -2.0F, 0.5F}, {3, 1});
  const NDArray y = matmul(x, truth);
  NDArray w = zeros({3, 1}).with_grad();
  for (int i = 0; i < 200; ++i) {
    mean(square(matmul(x, w) - y)).backward();
    const NoGrad scope;
    w -= w.grad() * 0.1;
    w.zero_grad();
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(floats(w)[i], floats(truth)[i], 1e-3);
}

}  // namespace
}  // namespace sluice::testing
