// Layers against the operators and formulas that they stand for; modes; the cache of keys and values.
#include "sluice/nn/layers/layers.h"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "layers_support.h"
#include "sluice/nn/net/net.h"
#include "sluice/nn/net/sequential.h"

namespace sluice {
namespace {

using test::bits;
using test::check_gradients;
using test::doubles;
using test::expect_equal;
using test::kWide;
using test::made;
using test::made_up;
using test::TestEngine;
using test::what_of;
using ::testing::HasSubstr;

TEST(NetLayers, LinearAndEmbedding) {
  TestEngine engine;
  const auto net = made(nn::Linear{3, 4});
  const NDArray x = made_up({2, 5, 3}, 1);
  expect_equal(net(x), matmul(x, net.weight.value().transpose()) + *net.bias);
  expect_equal(net(x(1)), net(x)(1));
  expect_equal(net(x(1, 2)), net(x)(1, 2));
  check_gradients(net, x, std::cref(net));
  EXPECT_FALSE((nn::Linear{3, 4, false}.bias));
  for (const bool bias : {true, false}) {
    const auto fused = made(nn::Linear{.in = 3, .out = 4, .use_bias = bias, .relu = true});
    expect_equal(fused(x),
                 relu(matmul(x, fused.weight.value().transpose()) + (bias ? *fused.bias : zeros({4}, kWide))));
    check_gradients(fused, x, std::cref(fused));
  }
  const auto table = made(nn::Embedding{6, 3});
  const NDArray tokens = from({5, 0, 5, 2}, {2, 2});
  expect_equal(table(tokens)(0, 0), table.weight.value()(5));
  expect_equal(table.logits(x), matmul(x, table.weight.value().transpose()));
  check_gradients(table, x, [&](const NDArray& y) { return table.logits(table(tokens) + y.narrow(1, 0, 2)); });
}

TEST(NetLayers, Convolutions) {
  TestEngine engine;
  const auto net = made(nn::Conv2d{.in = 4, .out = 6, .kernel = 3, .stride = 2, .padding = 1, .groups = 2});
  EXPECT_EQ(net.weight.shape(), (Dims{6, 2, 3, 3}));
  const NDArray x = made_up({2, 4, 5, 6}, 1);
  expect_equal(net(x), conv2d(x, net.weight, *net.bias, {.stride = 2, .padding = 1, .groups = 2}));
  check_gradients(net, x, std::cref(net));
  const auto fused = made(nn::Conv2d{.in = 4, .out = 3, .kernel = 3, .padding = 1, .relu = true});
  expect_equal(fused(x), relu(conv2d(x, fused.weight, *fused.bias, {.padding = 1})));
  check_gradients(fused, x, std::cref(fused));
  const auto line = made(nn::Conv1d{.in = 2, .out = 3, .kernel = 3, .padding = 1});
  const NDArray row = made_up({2, 2, 7}, 2);
  expect_equal(line(row), conv1d(row, line.weight, *line.bias, {.padding = 1}));
  check_gradients(line, row, std::cref(line));
  const auto turned = made(nn::ConvTranspose2d{.in = 4, .out = 2, .kernel = 3, .stride = 2, .output_padding = 1});
  expect_equal(turned(x), conv_transpose2d(x, turned.weight, *turned.bias, {.stride = 2, .output_padding = 1}));
  check_gradients(turned, x, std::cref(turned));
  const auto turned_line = made(nn::ConvTranspose1d{.in = 2, .out = 2, .kernel = 3, .stride = 2});
  expect_equal(turned_line(row), conv_transpose1d(row, turned_line.weight, *turned_line.bias, {.stride = 2}));
  expect_equal(nn::MaxPool2d{2}(x), max_pool2d(x, 2));
  expect_equal(nn::MaxPool2d{.kernel = 3, .stride = 2, .padding = 1}(x), max_pool2d(x, 3, 2, 1));
  expect_equal(nn::AvgPool2d{.kernel = 3, .stride = 1, .padding = 1}(x), avg_pool2d(x, 3, {.stride = 1, .padding = 1}));
  expect_equal(nn::AdaptiveAvgPool2d{1, 1}(x), mean(x, {2, 3}).reshape({2, 4, 1, 1}));
  expect_equal(nn::AdaptiveMaxPool2d{1, 1}(x), max(x, {2, 3}).reshape({2, 4, 1, 1}));
  EXPECT_EQ(nn::Flatten{}(x).shape(), (Dims{2, 120}));
}

TEST(NetLayers, FirstValuesAreThoseOfTheInputs) {
  TestEngine engine;
  // Uniform in [-b, b], b = 1 / sqrt(n), of weights and biases.
  const auto expect_inputs = [](const auto& net, double n) {
    nn::initialise(net, 1);
    for (const nn::Named& p : nn::parameters(net)) {
      const double largest = max(abs(p.state->value)).template item<double>();
      EXPECT_LE(largest, 1 / std::sqrt(n)) << p.name;
      EXPECT_GT(largest, 0.8 / std::sqrt(n)) << p.name;
    }
  };
  expect_inputs(nn::Linear{100, 50}, 100);
  expect_inputs(nn::Conv2d{.in = 4, .out = 32, .kernel = 5, .groups = 2}, 50);
  expect_inputs(nn::Conv1d{.in = 4, .out = 32, .kernel = 5}, 20);
  expect_inputs(nn::ConvTranspose2d{.in = 8, .out = 32, .kernel = 3, .groups = 2}, 144);
  expect_inputs(nn::ConvTranspose1d{.in = 8, .out = 32, .kernel = 3}, 96);
  expect_inputs(nn::Lstm{7, 20}, 20);
  expect_inputs(nn::Gru{7, 20}, 20);
}

TEST(NetLayers, Normalisations) {
  TestEngine engine;
  const NDArray x = made_up({3, 4, 5}, 1);
  const auto layer = made(nn::LayerNorm{5});
  expect_equal(layer(x), layer_norm(x, layer.weight, layer.bias));
  check_gradients(layer, x, std::cref(layer));
  const auto rms = made(nn::RmsNorm{5});
  expect_equal(rms(x), rms_norm(x, rms.weight));
  const auto group = made(nn::GroupNorm{2, 4});
  expect_equal(group(x), group_norm(x, 2, group.weight, group.bias));
  check_gradients(group, x, std::cref(group));
}

TEST(NetLayers, BatchNormFollowsTheMode) {
  TestEngine engine;
  const NDArray x = made_up({6, 2, 3}, 1);
  const auto net = made(nn::BatchNorm{.channels = 2, .momentum = 0.25});
  RandomStream stream(1);
  {
    const nn::Training on(stream);
    const NDArray y = net(x);
    expect_equal(mean(y, {0, 2}), zeros({2}, kWide), 1e-10);
    expect_equal(mean(square(y), {0, 2}), ones({2}, kWide), 1e-3);
  }
  const NDArray mean_of_x = mean(x, {0, 2});
  expect_equal(net.running_mean, 0.25 * mean_of_x);
  const std::string before = bits(net.running_mean);
  {
    const nn::Evaluation off;
    expect_equal(net(x), batch_norm(x, {net.running_mean, net.running_var}, net.weight, net.bias, {.training = false}));
  }
  {
    const NoGrad off;
    (void)net(x);
  }
  EXPECT_EQ(bits(net.running_mean), before);
  try {
    (void)net(x);
    FAIL() << "neither mode was said";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[BatchNorm]"));
    EXPECT_THAT(error.what(), HasSubstr("neither nn::Training nor nn::Evaluation is in force"));
  }
  nn::freeze(net, "*");
  {
    const nn::Training on(stream);
    (void)net(x);
    EXPECT_EQ(bits(net.running_mean), before) << "frozen";
  }
  {
    const nn::Training on(stream);
    const nn::Evaluation teacher;
    const auto other = made(nn::BatchNorm{2});
    (void)other(x);
    EXPECT_EQ(doubles(other.running_mean), std::vector<double>(2, 0)) << "the innermost mode counts";
  }
}

struct Two {
  nn::Dropout first{0.5}, second{0.5};
  NDArray operator()(const NDArray& x) const { return first(x) + 10 * second(x); }
};
struct TwoTurned {
  nn::Dropout second{0.5};
  nn::Parameter other{{2}, nn::normal(1)};
  nn::Dropout first{0.5};
  NDArray operator()(const NDArray& x) const {
    const NDArray y = 10 * second(x);
    return first(x) + y;
  }
};

TEST(NetLayers, MasksDependOnScopePathUseAndMicrobatchAlone) {
  TestEngine engine;
  const NDArray x = ones({1000});
  const Two net = made(Two{});
  const TwoTurned turned = made(TwoTurned{});
  const auto run = [&](std::uint64_t seed, const auto& f) {
    RandomStream stream(seed);
    const nn::Training on(stream);
    return f();
  };
  const std::string one = run(1, [&] { return bits(net(x)); });
  EXPECT_EQ(run(1, [&] { return bits(turned(x)); }), one);
  EXPECT_EQ(run(1,
                [&] {
                  const nn::Microbatch zero(0);
                  return bits(net(x));
                }),
            one);
  std::set<std::string> all{one};
  all.insert(run(2, [&] { return bits(net(x)); }));
  all.insert(run(1, [&] {
    (void)net(x);
    return bits(net(x));
  }));
  all.insert(run(1, [&] {
    const nn::Microbatch two(2);
    return bits(net(x));
  }));
  RandomStream stream(1);
  { const nn::Training first(stream); }
  {
    const nn::Training second(stream);
    all.insert(bits(net(x)));
  }
  EXPECT_EQ(stream.state().draw, 2U) << "a scope takes one draw";
  EXPECT_EQ(all.size(), 5U);
  const NDArray y = run(3, [&] { return net.first(x); });
  EXPECT_NEAR(mean(y).item<float>(), 1, 0.1);
  EXPECT_EQ(bits(y == 0.0F), bits(y != 2.0F));
}

TEST(NetLayers, ACheckpointsSecondCallHasTheSameMasks) {
  TestEngine engine;
  for (const bool inside : {true, false}) {
    std::string gradients[2], later[2];
    for (const bool again : {false, true}) {
      const Two net = made(Two{});
      const NDArray x = ones({500}).with_grad();
      RandomStream stream(4);
      NDArray loss;
      std::optional<nn::Training> on(std::in_place, stream);
      loss = sum(again ? checkpoint([&](const NDArray& a) { return square(net(a)); }, x) : square(net(x)));
      if (!inside) on.reset();
      loss.backward();
      gradients[again] = bits(x.grad());
      if (!inside) on.emplace(stream);
      later[again] = bits(net(x.detach()));
    }
    EXPECT_EQ(gradients[0], gradients[1]) << inside;
    EXPECT_EQ(later[0], later[1]) << "the second call counts no uses";
  }
}

TEST(NetLayers, DropoutNamesItsMisuses) {
  TestEngine engine;
  const NDArray x = ones({4});
  const nn::Dropout bare{0.5}, wrong{1.5};
  RandomStream stream(1);
  EXPECT_THAT(what_of([&] { bare(x); }), HasSubstr("neither nn::Training nor nn::Evaluation"));
  {
    const nn::Training on(stream);
    EXPECT_THAT(what_of([&] { bare(x); }), HasSubstr("no nn::initialise or nn::load reached it"));
    EXPECT_THAT(what_of([&] { wrong(x); }), HasSubstr("p is 1.5"));
  }
  const nn::Evaluation off;
  EXPECT_EQ(bits(bare(x)), bits(x));
  EXPECT_THAT(what_of([] { nn::Microbatch k(-1); }), HasSubstr("number -1"));
}

/// Attention of one head by plain arrays.
NDArray plain_attention(const NDArray& q, const NDArray& k, const NDArray& v, bool causal) {
  NDArray scores = matmul(q, k.transpose()) / std::sqrt(static_cast<double>(q.size(-1)));
  if (causal) scores = scores + triu(full({q.size(0), k.size(0)}, -1e30, kWide), 1 + k.size(0) - q.size(0));
  return matmul(softmax(scores, -1), v);
}

TEST(NetLayers, SelfAttentionIsThatOfItsHeads) {
  TestEngine engine;
  struct Case {
    std::int64_t heads, kv_heads;
  };
  for (const auto& [heads, kv_heads] : {Case{1, 1}, {2, 2}, {8, 2}, {5, 5}, {4, 1}}) {
    const std::int64_t size = 4, width = heads * size, queries = heads / kv_heads;
    const auto net = made(nn::SelfAttention{.width = width, .heads = heads, .kv_heads = kv_heads});
    const NDArray x = made_up({2, 6, width}, 1);
    const NDArray rows = net.qkv(x);  // (batch, positions, key-value head, queries k v, size)
    for (std::int64_t b = 0; b < 2; ++b) {
      std::vector<NDArray> of_heads;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t group = h / queries * (queries + 2);
        const auto part = [&](std::int64_t i) { return rows(b).narrow(1, (group + i) * size, (group + i + 1) * size); };
        of_heads.push_back(plain_attention(part(h % queries), part(queries), part(queries + 1), true));
      }
      expect_equal(net(x, {.causal = true})(b), net.proj(concat(of_heads, 1)), 1e-10);
    }
    check_gradients(net, x, [&](const NDArray& y) { return net(y, {.causal = true}); });
    const auto cross = made(nn::CrossAttention{.width = width, .heads = heads, .context = 3, .kv_heads = kv_heads});
    const NDArray y = made_up({2, 5, 3}, 2);
    const NDArray q = cross.q(x), kv = cross.kv(y);
    std::vector<NDArray> of_heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t group = h / queries * 2;
      const auto part = [&](std::int64_t i) { return kv(0).narrow(1, (group + i) * size, (group + i + 1) * size); };
      of_heads.push_back(plain_attention(q(0).narrow(1, h * size, (h + 1) * size), part(0), part(1), false));
    }
    expect_equal(cross(x, y)(0), cross.proj(concat(of_heads, 1)), 1e-10);
  }
  EXPECT_THROW(made(nn::SelfAttention{6, 4})(ones({1, 2, 6}, kWide)), ArrayError);
  EXPECT_THROW(made(nn::SelfAttention{6, 2})(ones({2, 6}, kWide)), ArrayError);
}

TEST(NetLayers, ACacheGivesWhatTheWholeSequenceGives) {
  TestEngine engine;
  for (const bool rotary : {false, true}) {
    const auto net = made(nn::SelfAttention{.width = 24, .heads = 6, .kv_heads = 2, .rotary = rotary});
    const NDArray x = made_up({2, 150, 24}, 1);
    const nn::Evaluation off;
    const NDArray whole = net(x, {.causal = true});
    nn::KvCache cache;
    std::int64_t at = 0;
    for (const std::int64_t n : {3, 1, 1, 90, 1, 54}) {  // beyond 64 and 128 positions the arrays grow
      expect_equal(net(x.narrow(1, at, at + n), {.causal = true, .cache = &cache}), whole.narrow(1, at, at + n), 1e-11);
      at += n;
    }
    EXPECT_EQ(cache.length, 150);
    EXPECT_LE(cache.capacity, 256);
    EXPECT_THROW(net(x.narrow(0, 0, 1), {.cache = &cache}), ArrayError) << "another batch";
  }
  const auto net = made(nn::SelfAttention{4, 2});
  nn::KvCache cache;
  EXPECT_THROW(net(ones({1, 1, 4}, kWide), {.cache = &cache}), ArrayError) << "gradients are recorded";
  const NDArray k = ones({1, 2, 1, 2});
  for (const auto& [new_k, new_v, words] : {std::tuple{NDArray(), NDArray(), "an empty handle"},
                                            {k, NDArray(), "an empty handle"},
                                            {k, k.reshape({2, 1, 1, 2}), "(1, 2, 1, 2), values (2, 1, 1, 2)"},
                                            {k(0), k(0), "keys (2, 1, 2)"}}) {
    const auto append = [&, a = new_k, b = new_v] { cache.append(a, b, std::source_location::current()); };
    EXPECT_THAT(what_of(append), HasSubstr("[KvCache] net_layers_test.cc:"));
    EXPECT_THAT(what_of(append), HasSubstr(words));
  }
  EXPECT_FALSE(cache.k.defined()) << "nothing was changed";
}

TEST(NetLayers, RecurrentLayersGoOnFromTheirState) {
  TestEngine engine;
  const NDArray x = made_up({5, 2, 3}, 1);
  const auto net = made(nn::Lstm{3, 4});
  const LstmResult whole = net(x, net.begin(2));
  const LstmResult first = net(x.narrow(0, 0, 2), net.begin(2)), second = net(x.narrow(0, 2, 5), first.state);
  expect_equal(concat({first.outputs, second.outputs}), whole.outputs);
  expect_equal(second.state.cell, whole.state.cell);
  check_gradients(net, x, [&](const NDArray& y) { return net(y, net.begin(2)).outputs; });
  const auto gru = made(nn::Gru{3, 4});
  check_gradients(gru, x, [&](const NDArray& y) { return gru(y, gru.begin(2)).outputs; });
}

TEST(NetLayers, SequentialCallsOneAfterTheOther) {
  TestEngine engine;
  const auto net = made(nn::Sequential{nn::Linear{3, 4}, relu, nn::Dropout{0.5}, nn::Linear{4, 2}});
  EXPECT_EQ(net.size(), 4U);
  const NDArray x = made_up({5, 3}, 1);
  const nn::Evaluation off;
  expect_equal(net(x), net[3](relu(net[0](x))));
  EXPECT_THROW(net[4], std::out_of_range);
}

TEST(NetLayers, ASequenceHasItsGradients) {
  TestEngine engine;
  const auto net = made(nn::Sequential{nn::Conv2d{.in = 1, .out = 2, .kernel = 3, .padding = 1, .relu = true},
                                       nn::MaxPool2d{2}, nn::Flatten{}, nn::Linear{18, 4}, relu, nn::Linear{4, 2}});
  check_gradients(net, made_up({2, 1, 6, 6}, 1), std::cref(net));
}

TEST(NetLayers, HalfPrecisionAndDryRuns) {
  TestEngine engine;
  const NDArray x = made_up({2, 6, 16}, 1);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    nn::Sequential net{nn::Linear{16, 16}, nn::LayerNorm{16}, nn::SelfAttention{16, 4}, nn::RmsNorm{16}};
    nn::initialise(net, 1, {}, {.dtype = dtype});
    nn::Sequential wide{nn::Linear{16, 16}, nn::LayerNorm{16}, nn::SelfAttention{16, 4}, nn::RmsNorm{16}};
    nn::initialise(wide, 1, {}, {.dtype = DType::f64});
    EXPECT_EQ(net(x.to(dtype)).dtype(), dtype);
    for (const nn::Named& p : nn::parameters(wide)) EXPECT_EQ(p.state->value.dtype(), DType::f64);
  }
  const nn::Sequential empty{nn::Linear{16, 16}, nn::BatchNorm{6}, nn::Dropout{0.1}, nn::SelfAttention{16, 4}};
  EXPECT_THAT(nn::summary(empty, {{2, 6, 16}, DType::f32, cpu(0)}), HasSubstr("(2, 6, 16) f32"));
}

}  // namespace
}  // namespace sluice
