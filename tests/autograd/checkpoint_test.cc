// checkpoint: the same bits as without, and less memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
using Arrays = std::vector<NDArray>;
using ::testing::HasSubstr;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

/// A stretch with a weight that it captures, a dropout, writes in place, and statistics of a batch norm.
struct Stretch {
  RandomStream stream{5};
  NDArray w, mean, variance;
  Stretch() {
    RandomStream values(6);
    w = (normal({4, 4}, values) * 0.5).detach().with_grad();
    mean = zeros({4});
    variance = ones({4});
  }
  NDArray operator()(const NDArray& x) {
    NDArray y = tanh(matmul(x, w));
    y = batch_norm(y, {mean, variance}, {}, {}, {.training = true});
    y = dropout(y, 0.5, stream);
    y += x;
    y(0).fill(0.25);
    return exp(y * 0.5) * y;
  }
};

struct Gradients {
  Floats values, x, w, mean, second, next_draw, graph;
};

Gradients train(bool checkpointed, bool writes_after) {
  Stretch s;
  RandomStream values(7);
  const NDArray leaf = normal({3, 4}, values).detach().with_grad();
  NDArray x = leaf * 1.5;
  const auto f = [&s](const NDArray& a) { return s(a); };
  NDArray y = checkpointed ? checkpoint(f, x) : s(x);
  y = checkpointed ? checkpoint(f, y) : s(y);
  const NDArray loss = sum(y * y);
  if (writes_after) {
    x.fill(9);
    const NoGrad scope;
    s.w *= 3.0F;
    s.mean.fill(4);
  }
  const Arrays first = grad(loss, {leaf, s.w}, {.create_graph = true});
  const Arrays second = grad(sum(square(first[0])) + sum(square(first[1])), {leaf, s.w}, {.retain = true});
  loss.backward();
  Gradients out{floats(y),
                floats(leaf.grad()),
                floats(s.w.grad()),
                floats(s.mean),
                floats(second[0]),
                floats(uniform({4}, s.stream)),
                {}};
  for (float g : floats(second[1])) out.second.push_back(g);
  // With a graph a normalisation's gradient is of several operators, without it is one: their last bits differ.
  const Floats with_graph = floats(first[0]);
  float largest = 0;
  for (const float g : out.x) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < out.x.size(); ++i) EXPECT_NEAR(with_graph[i], out.x[i], 1e-5F * largest) << i;
  out.graph = with_graph;
  return out;
}

TEST(Checkpoint, HasTheSameBits) {
  TestEngine test(2);
  for (bool writes : {false, true}) {
    const Gradients a = train(false, writes), b = train(true, writes);
    EXPECT_EQ(a.values, b.values);
    EXPECT_EQ(a.x, b.x);
    EXPECT_EQ(a.w, b.w);
    EXPECT_EQ(a.mean, b.mean);  // the statistics moved once
    EXPECT_EQ(a.second, b.second);
    EXPECT_EQ(a.graph, b.graph);
    EXPECT_EQ(a.next_draw, b.next_draw);  // and so did the stream
  }
}

TEST(Checkpoint, NestsAndHasSeveralArgumentsAndResults) {
  TestEngine test(2);
  const NDArray x = from({0.5F, 1.5F}, {2}).with_grad(), y = from({2.0F, 3.0F}, {2}).with_grad();
  const auto inner = [&](const NDArray& a) { return sin(a) * exp(a) * y; };
  const auto outer = [&](const NDArray& a, const NDArray& b) {
    const NDArray c = checkpoint(inner, a * b);
    return Arrays{c * b, tanh(c), b};
  };
  const auto plain = [&](const NDArray& a, const NDArray& b) {
    const NDArray c = inner(a * b);
    return Arrays{c * b, tanh(c), b};
  };
  const auto gradients = [&](const Arrays& r) {
    const Arrays g = grad(sum(r[0] * r[1]) + sum(r[2]), {x, y}, {.retain = true});
    const Arrays of_one = grad(sum(r[1]), {x});
    return std::vector<Floats>{floats(g[0]), floats(g[1]), floats(of_one[0])};
  };
  EXPECT_EQ(gradients(checkpoint(outer, {x, y})), gradients(plain(x, y)));
}

TEST(Checkpoint, WorksWithFunctionsThatHaveGradientsOfTheirOwn) {
  TestEngine test(2);
  const CustomFunction product{.name = "my_mul",
                               .forward =
                                   [](Saved& saved, const Arrays& xs) {
                                     saved.keep(xs);
                                     return Arrays{xs[0] * xs[1]};
                                   },
                               .backward =
                                   [](const Saved& saved, const Arrays& g) {
                                     return Arrays{g[0] * saved[1], g[0] * saved[0]};
                                   }};
  const NDArray x = from({2.0F}, {1}).with_grad();
  const auto f = [&](const NDArray& a) { return apply_custom(product, {a * a, a})[0]; };
  const NDArray g = grad(sum(checkpoint(f, x)), {x}, {.create_graph = true})[0];
  EXPECT_EQ(floats(g), Floats{12});
  EXPECT_EQ(floats(grad(sum(g), {x})[0]), Floats{12});
}

TEST(Checkpoint, SeesHostReadsAndDetachedArraysAsTheyWere) {
  TestEngine test(2);
  const NDArray x = from({2.0F}, {1}).with_grad(), scale = from({3.0F}, {1});
  const auto f = [&](const NDArray& a) { return a * a * scale.item<float>() * scale.detach(); };
  const NDArray y = checkpoint(f, x);
  scale.fill(100);
  sum(y).backward();
  EXPECT_EQ(floats(x.grad()), Floats{36});
}

TEST(Checkpoint, AnArrayMayBeAskedAndThenMarked) {
  const NDArray w = full({3}, 2), x = full({3}, 5).with_grad();
  const auto f = [&](const NDArray& a) {
    if (!w.requires_grad()) w.with_grad();
    return square(w) * a;
  };
  sum(checkpoint(f, x)).backward();
  EXPECT_EQ(w.grad().to_bytes(), full({3}, 20).to_bytes());
  EXPECT_EQ(x.grad().to_bytes(), full({3}, 4).to_bytes());
}

/// Some functions push other operators for arrays that want gradients.
TEST(Checkpoint, KnowsWhichArraysWantedGradients) {
  TestEngine test(2);
  const NDArray w = from({1.0F, 2.0F, 3.0F}, {3}).with_grad();
  for (const bool again : {false, true}) {
    NDArray h = w * 2.0F;
    const auto f = [&h](const NDArray& a) {
      h(from({std::int64_t{0}, std::int64_t{2}}, {2})) += full({}, 0.5F);
      EXPECT_TRUE(h.requires_grad());
      return a * h * sum(sqrt(h));
    };
    const NDArray y = again ? checkpoint(f, w) : f(w);
    push_value({h}, 7);  // a constant, from here on
    EXPECT_FALSE(h.requires_grad());
    w.zero_grad();
    sum(y).backward();
    static Floats wanted;
    if (!again) wanted = floats(w.grad());
    EXPECT_EQ(floats(w.grad()), wanted);
  }
}

TEST(Checkpoint, KeepsNoValuesInside) {
  TestEngine test(2);
  const NDArray x = ones({1 << 16}).with_grad();
  const auto layers = [](const NDArray& a) {
    NDArray h = a;
    for (int i = 0; i < 8; ++i) h = exp(h * 0.1F);
    return h;
  };
  const auto kept = [&](bool checkpointed) {
    test.engine.wait_all();
    const std::size_t before = memory_pool(cpu(0)).stats().in_use;
    const NDArray y = checkpointed ? checkpoint(layers, x) : layers(x);
    test.engine.wait_all();
    return (memory_pool(cpu(0)).stats().in_use - before) / x.bytes();
  };
  EXPECT_EQ(kept(true), 1U);  // the result
  EXPECT_GE(kept(false), 8U);
}

TEST(Backward, FreesWhatIsKeptAsItGoes) {
  TestEngine test(1, 1, EngineMode::serial);
  const NDArray leaf = ones({1 << 16}).with_grad();
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = pool.stats().in_use;
  const auto arrays = [&] { return (pool.stats().in_use - before) / leaf.bytes(); };
  std::vector<std::size_t> held;
  NDArray x = leaf;
  for (int i = 0; i < 8; ++i) {
    x = sin(x);
    on_gradient(x, [&](const NDArray&) {
      held.push_back(arrays());
      return NDArray();
    });
  }
  const NDArray loss = sum(x);
  x = NDArray();
  loss.backward();
  ASSERT_EQ(held.size(), 8U);
  // Each step frees one; at the first the gradient takes no memory yet.
  for (std::size_t i = 2; i < held.size(); ++i) EXPECT_LT(held[i], held[i - 1]) << i;
  EXPECT_LE(held[7], 3U);
}

/// A chain of 64 layers, each of which keeps one array, in segments. The bytes at the peak, in arrays. 0 threads:
/// serial.
std::size_t peak_of(std::int64_t segments, int threads) {
  TestEngine test(std::max(1, threads), 1, threads == 0 ? EngineMode::serial : EngineMode::threaded);
  const NDArray leaf = ones({1 << 16}).with_grad();
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = pool.stats().in_use;
  pool.reset_peak();
  {
    NDArray x = leaf;
    for (std::int64_t s = 0; s < segments; ++s) {
      const auto layers = [n = 64 / segments](const NDArray& a) {
        NDArray h = a;
        for (std::int64_t i = 0; i < n; ++i) h = sin(h);
        return h;
      };
      x = segments == 1 ? layers(x) : checkpoint(layers, x);
    }
    sum(x).backward();
  }
  test.engine.wait_all();
  return (pool.stats().peak - before) / leaf.bytes();
}

/// On threads too, each of which may have an op under way, while the pushing one has the handle of an array that is no
/// longer needed: a recomputation depends on no gradient, and must not run ahead of backward all the same.
TEST(Checkpoint, SegmentsOfSquareRootLengthPeakAtTwiceTheRoot) {
  for (const int threads : {0, 1, 2, 4}) {
    SCOPED_TRACE(threads);
    EXPECT_GE(peak_of(1, threads), 64U);
    const unsigned more = threads == 0 ? 0U : static_cast<unsigned>(threads) + 1;
    EXPECT_LE(peak_of(8, threads), 17U + more);  // 2.2 * sqrt(64) = 17.6
  }
}

TEST(Checkpoint, ErrorsNameTheLayerAndDifferencesAreFound) {
  TestEngine test(2);
  const NDArray x = ones({2}).with_grad();
  bool bad = false;
  const auto f = [&](const NDArray& a) {
    const LayerScope layer("inner");
    return bad ? a + ones({3}) : exp(a);
  };
  NDArray y;
  {
    const LayerScope layer("outer");
    y = checkpoint(f, x);
  }
  bad = true;
  try {
    sum(y).backward();
    FAIL();
  } catch (const ArrayError& e) {
    EXPECT_THAT(e.what(), HasSubstr("in outer.inner"));
  }
  int calls = 0;
  const NDArray z = checkpoint([&](const NDArray& a) { return calls++ == 0 ? exp(a) : exp(exp(a)); }, x);
  EXPECT_THROW(sum(z).backward(), ArrayError);
  const NDArray u = checkpoint([&](const NDArray& a) { return calls++ == 2 ? exp(a) : tanh(a); }, x);
  EXPECT_THROW(sum(u).backward(), ArrayError);
}

}  // namespace
}  // namespace sluice::testing
