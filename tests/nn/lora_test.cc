// Changes of low rank: what they compute, what is trained and kept, merging, and meshes.
#include "sluice/nn/layers/add_lora.h"

#include <gmock/gmock.h>

#include "nn_support.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::bits;
using test::made_up;
using test::TestEngine;
using test::what_of;
using ::testing::HasSubstr;

struct LoraTest : ::testing::Test {
  TestEngine engine{{.threads = 2, .logical_cpus = 4}};
};

std::vector<double> values(const NDArray& x) { return x.detach().to(DType::f64).to_vector<double>(); }

struct Net {
  nn::Linear up{6, 8, true, true}, down{.in = 8, .out = 4, .use_bias = false};
  NDArray operator()(const NDArray& x) const { return down(up(x)); }
};

void give_values(const nn::Lora& lora, std::uint64_t seed, DType dtype = DType::f64) {
  lora.a.assign(made_up(lora.a.shape(), seed, dtype));
  lora.b.assign(made_up(lora.b.shape(), seed + 1, dtype));
}

/// x (n, in) . transpose(w + scale b . a) + bias, by plain loops.
std::vector<double> by_hand(const std::vector<double>& x, const nn::Linear& layer) {
  const auto in = static_cast<std::size_t>(layer.in), out = static_cast<std::size_t>(layer.out);
  std::vector<double> w = values(layer.weight);
  if (layer.lora) {
    const std::vector<double> a = values(layer.lora->a), b = values(layer.lora->b);
    const std::size_t rank = a.size() / in;
    for (std::size_t i = 0; i < out; ++i) {
      for (std::size_t j = 0; j < in; ++j) {
        for (std::size_t r = 0; r < rank; ++r) w[i * in + j] += layer.lora->scale * b[i * rank + r] * a[r * in + j];
      }
    }
  }
  std::vector<double> y;
  for (std::size_t row = 0; row < x.size() / in; ++row) {
    for (std::size_t i = 0; i < out; ++i) {
      double sum = layer.bias ? values(*layer.bias)[i] : 0;
      for (std::size_t j = 0; j < in; ++j) sum += w[i * in + j] * x[row * in + j];
      y.push_back(layer.relu ? std::max(sum, 0.0) : sum);
    }
  }
  return y;
}

TEST_F(LoraTest, IsAPlainProductWithAChangedMatrix) {
  for (const std::int64_t rank : {1, 3, 4}) {
    Net net;
    nn::initialise(net, 1, {}, {.dtype = DType::f64});
    const NDArray x = made_up({7, 6}, 3);
    const std::string before = bits(net(x));
    nn::add_lora(net.up, {.rank = rank, .alpha = 2});
    nn::add_lora(net.down, {.rank = rank, .alpha = 3});
    nn::complete(net, 2, {}, {.dtype = DType::f64});
    EXPECT_EQ(bits(net(x)), before) << "b begins as 0";
    EXPECT_EQ(net.up.lora->a.path(), "up.lora.a");
    EXPECT_NE(values(net.up.lora->a), std::vector<double>(static_cast<std::size_t>(6 * rank)));
    EXPECT_EQ(net.down.lora->scale, 3.0 / static_cast<double>(rank));
    give_values(*net.up.lora, 10);
    give_values(*net.down.lora, 20);
    const std::vector<double> expected = by_hand(by_hand(values(x), net.up), net.down);
    test::expect_close(values(net(x)), expected, 1e-12);
    const Net clone = nn::clone(net);
    EXPECT_EQ(bits(clone(x)), bits(net(x)));
    nn::merge_lora(net.up);
    nn::merge_lora(net.down);
    EXPECT_EQ(nn::contents(net).slots.size(), 3U) << "as before";
    test::expect_close(values(net(x)), expected, 1e-12);
  }
}

TEST_F(LoraTest, GradientsAreThoseOfTheProduct) {
  nn::Linear layer{3, 4};
  nn::initialise(layer, 1, {}, {.dtype = DType::f64});
  nn::add_lora(layer, {.rank = 2, .alpha = 5});
  nn::complete(layer, 2, {}, {.dtype = DType::f64});
  give_values(*layer.lora, 5);
  const NDArray x = made_up({6, 3}, 1).with_grad(), g = made_up({6, 4}, 2);
  sum(layer(x) * g).backward();
  EXPECT_FALSE(layer.weight.grad().defined());
  EXPECT_FALSE(layer.bias->grad().defined());
  constexpr double kStep = 1e-6;
  const auto loss = [&](const NDArray& input) {
    const std::vector<double> y = by_hand(values(input), layer), weights = values(g);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
    return sum;
  };
  for (const nn::Parameter* p : {&layer.lora->a, &layer.lora->b}) {
    const std::vector<double> at = values(p->value()), gradient = values(p->grad());
    for (std::size_t i = 0; i < at.size(); ++i) {
      double difference = 0;
      for (const int side : {1, -1}) {
        std::vector<double> moved = at;
        moved[i] += side * kStep;
        p->assign(from(moved, p->shape()));
        difference += side * loss(x.detach());
      }
      p->assign(from(at, p->shape()));
      EXPECT_NEAR(gradient[i], difference / (2 * kStep), 1e-7) << i;
    }
  }
  const std::vector<double> of_x = values(x.grad());
  for (std::size_t j = 0; j < 3; ++j) {  // of the first row: transpose(w + scale b . a) . g
    nn::Linear unit = nn::clone(layer);
    unit.bias->assign(zeros({4}, DType::f64));
    std::vector<double> e(3);
    e[j] = 1;
    const std::vector<double> column = by_hand(e, unit), weights = values(g);
    double expected = 0;
    for (std::size_t i = 0; i < 4; ++i) expected += column[i] * weights[i];
    EXPECT_NEAR(of_x[j], expected, 1e-12);
  }
}

TEST_F(LoraTest, NothingIsKeptForWhatIsFrozen) {
  if (test::on_streams()) GTEST_SKIP() << "counts bytes of the CPU's own memory";
  struct Deep {
    std::vector<nn::Linear> layers;
    NDArray operator()(NDArray x) const {
      for (const nn::Linear& layer : layers) x = relu(layer(x));
      return x;
    }
  };
  constexpr std::int64_t kWidth = 256, kRank = 4, kLayers = 6;
  const auto deep = [] {
    Deep net;
    for (std::int64_t i = 0; i < kLayers; ++i) net.layers.push_back(nn::Linear{kWidth, kWidth});
    nn::initialise(net, 1);
    return net;
  };
  MemoryPool& pool = memory_pool(cpu(0));
  /// Bytes that gradients and an optimiser's state take after a step.
  const auto taken = [&](const Deep& net) {
    engine->wait_all();  // until what drew the parameters holds no memory
    const auto before = static_cast<double>(pool.stats().in_use);
    nn::Optimizer opt(net, nn::AdamW{}, {}, {.keep_gradients = true});
    {
      RandomStream stream(1);
      const nn::Training on(stream);
      sum(square(net(made_up({4, kWidth}, 1, DType::f32)))).backward();
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) {
      p.state->value.wait();
      const bool lora = p.name.find("lora") != p.name.npos;
      EXPECT_EQ(p.state->value.grad().defined(), !p.state->frozen) << p.name;
      EXPECT_EQ(opt.kept(p.name, "exp_avg").defined(), !p.state->frozen) << p.name;
      EXPECT_EQ(lora, net.layers[0].lora && !p.state->frozen) << p.name;
    }
    engine->wait_all();
    return static_cast<double>(pool.stats().in_use) - before;
  };
  const Deep whole = deep();
  Deep small = deep();
  for (nn::Linear& layer : small.layers) nn::add_lora(layer, {.rank = kRank});
  nn::complete(small, 2);
  const double matrices = 4.0 * kWidth * kWidth * kLayers, changes = 4.0 * 2 * kWidth * kRank * kLayers;
  const double all = taken(whole), few = taken(small);
  EXPECT_GE(all, 3 * matrices) << "a gradient and two moments";
  EXPECT_GE(few, 3 * changes);
  EXPECT_LE(few, 4 * changes) << "scalars and size classes are all that may be more";
  EXPECT_LT(few, all / 20);
}

TEST_F(LoraTest, InsideOfAttentionAndInFiles) {
  struct Block {
    nn::SelfAttention attention{.width = 8, .heads = 2};
    NDArray operator()(const NDArray& x) const { return attention(x); }
  };
  Block net, other;
  nn::initialise(net, 1, {}, {.dtype = DType::f64});
  nn::add_lora(net.attention.qkv, {.rank = 2});
  nn::complete(net, 2, {}, {.dtype = DType::f64});
  const std::string frozen = bits(net.attention.qkv.weight), proj = bits(net.attention.proj.weight);
  nn::freeze(net.attention.proj, "*");
  nn::Optimizer opt(net, nn::AdamW{.lr = 0.01});
  const NDArray x = made_up({2, 3, 8}, 1);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    RandomStream stream(1);
    const nn::Training on(stream);
    const NDArray loss = mean(square(net(x) - 1));
    loss.backward();
    opt.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  EXPECT_EQ(bits(net.attention.qkv.weight), frozen);
  EXPECT_EQ(bits(net.attention.proj.weight), proj);
  const test::TemporaryDirectory folder;
  const std::string file = folder / "lora.safetensors";
  nn::save(file, {{"net", net}, {"opt", opt}});
  EXPECT_TRUE(load_arrays(file).arrays.contains("net.attention.qkv.lora.a"));
  EXPECT_FALSE(load_arrays(file).arrays.contains("opt.attention.qkv.weight.exp_avg"));
  nn::add_lora(other.attention.qkv, {.rank = 2});
  nn::load(file, {{"net", other}});
  EXPECT_EQ(bits(other(x)), bits(net(x)));
  Block plain;
  EXPECT_THAT(what_of([&] {
                nn::load(file, {{"net", plain}});
              }),
              HasSubstr("'net.attention.qkv.lora.a' (f64 (2, 8)) is not expected"));
}

TEST_F(LoraTest, WhatDoesNotFitIsRefused) {
  nn::Linear layer{3, 4};
  EXPECT_THAT(what_of([&] { nn::add_lora(layer, {.rank = 0}); }),
              HasSubstr("rank 0 for a layer of 3 and 4: from 1 to the smaller one is wanted"));
  EXPECT_THAT(what_of([&] { nn::add_lora(layer, {.rank = 4}); }), HasSubstr("rank 4"));
  EXPECT_THAT(what_of([&] { nn::merge_lora(layer); }), HasSubstr("the layer has no Lora"));
  EXPECT_FALSE(layer.weight.frozen());
  nn::initialise(layer, 1);
  nn::add_lora(layer, {.rank = 2});
  EXPECT_TRUE(layer.weight.frozen());
  EXPECT_THAT(what_of([&] { nn::add_lora(layer); }), HasSubstr("lora_test.cc"));
  EXPECT_THAT(what_of([&] { layer(zeros({1, 3})); }), HasSubstr("nn::complete(net, seed)"));
  EXPECT_THAT(what_of([&] { nn::merge_lora(layer); }), HasSubstr("is used before nn::initialise"));
  EXPECT_TRUE(layer.lora.has_value());
}

/// Cut by rows and by columns: the numbers are those of one device.
TEST_F(LoraTest, OnAMesh) {
  const Mesh mesh({{"tp", 2}}, test::device_kind());
  const NDArray x = made_up({4, 6}, 3);
  const auto make = [&](bool placed) {
    Net net;
    nn::add_lora(net.up, {.rank = 3});
    nn::add_lora(net.down, {.rank = 2});
    if (placed) {
      nn::place(net, mesh,
                {{"tp",
                  {{"up", {.weight = shard(0), .bias = shard(0)}},
                   {"down", {.weight = shard(1), .out = replicate}},
                   {"down.lora", {.others = {{"a", shard(1)}}}}}}});
    }
    nn::initialise(net, 1, {{"up.weight", nn::normal(1)}, {"*.lora.b", nn::normal(1)}}, {.dtype = DType::f64});
    return net;
  };
  const Net one = make(false), two = make(true);
  const NDArray y = one(x), z = two(place(x, mesh));
  test::expect_close(values(gathered(z.detach())), values(y), 1e-12);
  sum(square(y)).backward();
  sum(square(z)).backward();
  const auto these = nn::parameters(two), same = nn::parameters(one);
  for (std::size_t i = 0; i < these.size(); ++i) {
    EXPECT_EQ(these[i].state->frozen, these[i].name.find("lora") == std::string::npos);
    if (these[i].state->frozen) continue;
    test::expect_close(values(gathered(these[i].state->value.grad())), values(same[i].state->value.grad()), 1e-12);
  }
}

}  // namespace
}  // namespace sluice
