// Networks: the two halves of backward have the bits of one whole pass.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "../ndarray/ndarray_test_support.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

using Arrays = std::vector<NDArray>;
using Bytes = std::vector<std::vector<std::byte>>;

/// What a network is made from: the same numbers for the same dtype, each time.
struct Source {
  explicit Source(DType type) : dtype(type) {}
  DType dtype;
  RandomStream numbers{3}, masks{4};
  Arrays leaves = {};

  NDArray array(const Dims& shape) { return normal(shape, numbers, 0, 0.5, DType::f64).to(dtype).detach(); }
  NDArray weight(const Dims& shape) {
    leaves.push_back(array(shape).with_grad());
    return leaves.back();
  }
};

/// The network's weights are made at once; what is returned is called for each microbatch.
using Forward = std::function<NDArray(const NDArray& x)>;
struct Network {
  const char* name;
  Dims input;
  std::function<Forward(Source& s)> make;
};

NDArray heads(const NDArray& x) { return x.reshape({2, 5, 2, 4}).permute({0, 2, 1, 3}); }

Forward transformer(Source& s) {
  const NDArray scale = s.weight({8}), shift = s.weight({8}), q = s.weight({8, 8}), k = s.weight({8, 8}),
                v = s.weight({8, 8}), out = s.weight({8, 8}), up = s.weight({16, 8}), up_bias = s.weight({16}),
                down = s.weight({8, 16}), scale2 = s.weight({8});
  return [=](const NDArray& x) {
    const NDArray rows = x.reshape({10, 8});
    const NDArray h = layer_norm(rows, scale, shift);
    const NDArray a = attention(heads(linear(h, q)), heads(linear(h, k)), heads(linear(h, v)), {.causal = true});
    const NDArray y = rows + linear(a.permute({0, 2, 1, 3}).reshape({10, 8}), out);
    return y + linear(gelu(linear(rms_norm(y, scale2), up, up_bias)), down);
  };
}

std::vector<Network> networks() {
  std::vector<Network> list;
  list.push_back({"mlp", {5, 6}, [](Source& s) {
                    const NDArray a = s.weight({7, 6}), b = s.weight({7}), c = s.weight({3, 7}), d = s.weight({3});
                    return [=](const NDArray& x) { return linear(linear(x, a, b, {.relu = true}), c, d); };
                  }});
  list.push_back({"convolutions, batch norm, dropout", {3, 2, 8, 8}, [](Source& s) {
                    const NDArray a = s.weight({4, 2, 3, 3}), bias = s.weight({4}), scale = s.weight({4}),
                                  shift = s.weight({4}), c = s.weight({3, 4, 3, 3}), grouped = s.weight({3, 1, 3, 3}),
                                  along = s.weight({2, 3, 3});
                    const NDArray mean = zeros({4}, s.dtype), variance = ones({4}, s.dtype);
                    return [=, &s](const NDArray& x) {
                      NDArray y = conv2d(x, a, bias, {.padding = 1, .relu = true});
                      y = batch_norm(y, {mean, variance}, scale, shift, {.training = true});
                      y = dropout(max_pool2d(y, 2), 0.25, s.masks);
                      y = conv2d(conv2d(y, c, {}, {.padding = 1}), grouped, {}, {.padding = 1, .groups = 3});
                      return group_norm(conv1d(y.reshape({3, 3, 16}), along, {}, {.padding = 1, .relu = true}), 2);
                    };
                  }});
  list.push_back({"transformer", {2, 5, 8}, transformer});
  list.push_back({"tied and changed weights", {4, 6}, [](Source& s) {
                    const NDArray w = s.weight({6, 6}), u = s.weight({6, 6});
                    return [=](const NDArray& x) {
                      const NDArray twice = u * 2, both = twice + w.transpose();
                      NDArray y = tanh(linear(x, w));
                      for (int i = 0; i < 20; ++i) y = tanh(y + matmul(y, i % 2 == 0 ? w : both));
                      return matmul(y, w.transpose()) + sum(u) + y(0) * w(1);
                    };
                  }});
  list.push_back({"embedding", {3, 4}, [](Source& s) {
                    const NDArray table = s.weight({9, 4}), w = s.weight({4, 4});
                    const NDArray tokens = from(std::vector<std::int64_t>{8, 0, 8}, {3});
                    return [=](const NDArray& x) {
                      return linear(linear(embedding(table, tokens) + x, w), table);  // tied with the last layer
                    };
                  }});
  list.push_back({"recurrent cells", {4, 2, 3}, [](Source& s) {
                    const RecurrentWeights a{s.weight({16, 3}), s.weight({16, 4}), s.weight({16}), s.weight({16})};
                    const RecurrentWeights b{s.weight({12, 4}), s.weight({12, 4})};
                    const NDArray state = s.array({2, 4});
                    return [=](const NDArray& x) { return gru(lstm(x, {state, state}, a).outputs, state, b).outputs; };
                  }});
  list.push_back({"custom function", {3, 4}, [](Source& s) {
                    const NDArray w = s.weight({3, 4}), u = s.weight({3, 4});
                    const CustomFunction product{.name = "product",
                                                 .forward =
                                                     [](Saved& saved, const Arrays& xs) {
                                                       saved.keep(xs);
                                                       return Arrays{xs[0] * xs[1], xs[0] + xs[2]};
                                                     },
                                                 .backward =
                                                     [](const Saved& saved, const Arrays& g) {
                                                       return Arrays{g[0] * saved[1] + g[1], g[0] * saved[0], g[1]};
                                                     }};
                    return [=](const NDArray& x) {
                      const Arrays y = apply_custom(product, {exp(x), w * 3, u});
                      return y[0] * u + sin(y[1]) * w;
                    };
                  }});
  list.push_back({"checkpoints", {10, 8}, [](Source& s) {
                    const Forward inner = transformer(s);
                    const NDArray w = s.weight({8, 8});
                    return [=](const NDArray& x) {
                      const NDArray ready = checkpoint([&](const NDArray& a) { return tanh(a * 2); }, w);
                      const NDArray y = checkpoint([inner](const NDArray& a) { return inner(a); }, x);
                      return checkpoint([w](const NDArray& a) { return sin(matmul(a, w)) * sum(exp(w)); }, y) *
                             ready(2);
                    };
                  }});
  list.push_back({"writes in place", {4, 6}, [](Source& s) {
                    const NDArray w = s.weight({4, 6}), v = s.weight({6});
                    return [=](const NDArray& x) {
                      NDArray y = x * w;
                      y(1) = v;
                      y(slice(0, 4, 2)) += v * 2;
                      NDArray t = w * 2;
                      t(3) = x(0);
                      y *= t;
                      y += y;
                      return y;
                    };
                  }});
  return list;
}

struct Result {
  Bytes bytes;
  std::size_t leaves = 0;
};

constexpr int kMicrobatches = 3;

/// The gradients after three microbatches: whole passes, or all first halves and then all second ones. Between them the
/// weights are overwritten, as by a step that comes too early.
Result run(const Network& network, DType dtype, bool halves, bool input_wants) {
  Source s(dtype);
  const Forward forward = network.make(s);
  Arrays xs, ys, seeds;
  std::vector<WeightGradients> later;
  for (int k = 0; k < kMicrobatches; ++k) {
    xs.push_back(s.array(network.input));
    if (input_wants) xs.back().with_grad();
    ys.push_back(forward(xs.back()));
    seeds.push_back(s.array(ys.back().shape()));
  }
  for (std::size_t k = 0; k < kMicrobatches; ++k) {
    if (halves) {
      later.push_back(backward_inputs({ys[k]}, {seeds[k]}, {xs[k]}));
    } else {
      backward({ys[k]}, {seeds[k]});
    }
    ys[k] = NDArray();
    seeds[k].fill(7);
  }
  {
    const NoGrad scope;
    for (const NDArray& w : s.leaves) w.fill(9);
  }
  Result out;
  for (const NDArray& x : xs) out.bytes.push_back(input_wants ? x.grad().to_bytes() : Bytes::value_type());
  for (WeightGradients& w : later) w.run();
  for (const NDArray& w : s.leaves) out.bytes.push_back(w.grad().to_bytes());
  out.leaves = s.leaves.size();
  return out;
}

TEST(BackwardInHalves, HasTheBitsOfOnePassInNetworks) {
  for (const int threads : {0, 1, 2, 3, 4}) {  // 0: serial
    if (test::on_streams() && threads != 2) continue;
    TestEngine test(std::max(1, threads), 1, threads == 0 ? EngineMode::serial : EngineMode::threaded);
    for (const Network& network : networks()) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        for (const bool input_wants : {true, false}) {
          SCOPED_TRACE(std::string(network.name) + ", " + std::to_string(threads) + " threads, " +
                       std::string(name_of(dtype)));
          const Result whole = run(network, dtype, false, input_wants), halves = run(network, dtype, true, input_wants);
          EXPECT_GT(whole.leaves, 0U);
          EXPECT_TRUE(whole.bytes == halves.bytes);
        }
      }
    }
  }
}

/// An operation's first output that is as large as the whole weight, or what products cost: counted by name.
std::size_t count(const std::vector<OperationRecord>& records, const std::string& name) {
  std::size_t n = 0;
  for (const OperationRecord& r : records) n += r.name == name ? 1 : 0;
  return n;
}

TEST(BackwardInHalves, PushesEachOperationOnce) {
  TestEngine test(2);
  for (const Network& network : networks()) {
    SCOPED_TRACE(network.name);
    Source s(DType::f32);
    const Forward forward = network.make(s);
    const NDArray x = s.array(network.input).with_grad();
    const auto records_of = [&](auto&& f) {
      const RecordScope scope;
      f();
      return scope.records();
    };
    const auto seed_like = [&](const NDArray& y) { return ones(y.shape(), y.dtype()); };
    // From now on gradients are added, and two leaves of one sum have an array each: they begin with one.
    for (int i = 0; i < 2; ++i) backward({forward(x)}, {seed_like(forward(x))});
    const NDArray y = forward(x), z = forward(x), seed = seed_like(y);
    WeightGradients later;
    const auto whole = records_of([&] { backward({y}, {seed}); }),
               first = records_of([&] { later = backward_inputs({z}, {seed}, {x}); }),
               second = records_of([&] { later.run(); });
    // But for a copy: behind a write in place one pass sends two parts of a gradient, and a half sends one.
    EXPECT_EQ(first.size() + second.size() - count(first, "copy") - count(second, "copy"),
              whole.size() - count(whole, "copy"));
    EXPECT_GT(first.size(), 0U);
    EXPECT_GT(second.size(), 0U);
    for (const OperationRecord& r : whole) {
      if (r.name == std::string("copy")) continue;
      EXPECT_EQ(count(first, r.name) + count(second, r.name), count(whole, r.name)) << r.name;
    }
    EXPECT_LE(count(first, "copy") + count(second, "copy"), count(whole, "copy"));
  }
}

TEST(BackwardInHalves, DoesHalfOfTheProductsInEach) {
  TestEngine test(2);
  struct Case {
    const char* name;
    std::vector<const char*> now, later;  ///< what is pushed for one layer
    Dims input, weight;
    std::function<NDArray(const NDArray& x, const NDArray& w, const NDArray& bias)> layer;
  };
  const Case cases[] = {
      {"linear",
       {"matmul"},
       {"matmul", "sum"},
       {5, 6},
       {4, 6},
       [](const auto& x, const auto& w, const auto& b) { return linear(x, w, b); }},
      {"linear and relu",
       {"relu_grad", "matmul"},
       {"matmul", "sum"},
       {5, 6},
       {4, 6},
       [](const auto& x, const auto& w, const auto& b) { return linear(x, w, b, {.relu = true}); }},
      {"conv2d and relu",
       {"relu_grad", "conv2d_input_grad"},
       {"conv2d_weight_grad", "conv2d_bias_grad"},
       {2, 3, 6, 6},
       {4, 3, 3, 3},
       [](const auto& x, const auto& w, const auto& b) { return conv2d(x, w, b, {.relu = true}); }},
      {"matmul",
       {"matmul"},
       {"matmul"},
       {5, 4},
       {4, 6},
       [](const auto& x, const auto& w, const auto&) { return matmul(x, w); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Source s(DType::f32);
    const NDArray x = s.array(c.input).with_grad(), w = s.weight(c.weight), b = s.weight({4});
    const NDArray y = c.layer(x, w, b), seed = ones(y.shape());
    const auto names = [](const RecordScope& scope) {
      std::vector<std::string> list;
      for (const OperationRecord& r : scope.records()) list.push_back(r.name);
      return list;
    };
    WeightGradients later;
    {
      const RecordScope scope;
      later = backward_inputs({y}, {seed}, {x});
      EXPECT_EQ(names(scope), std::vector<std::string>(c.now.begin(), c.now.end()));
    }
    const RecordScope scope;
    later.run();
    EXPECT_EQ(names(scope), std::vector<std::string>(c.later.begin(), c.later.end()));
  }
}

}  // namespace
}  // namespace sluice::testing
