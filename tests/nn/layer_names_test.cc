// What errors, traces and records call the parts of a net, forward and backward: paths and the lines where layers
// stand.
#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <thread>

#include "nn_support.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice {
namespace {

using test::made_up;
using test::TestEngine;
using test::what_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// "name in layer" of each traced op whose name begins with `prefix`, in the order in which they began.
std::vector<std::string> traced(const std::vector<TraceEvent>& events, const std::string& prefix) {
  std::vector<std::string> list;
  for (const TraceEvent& e : events) {
    if (std::string(e.name).starts_with(prefix)) list.push_back(std::string(e.name) + " in " + e.layer);
  }
  return list;
}

/// x * x, whose gradient fails when it runs, not at its push.
NDArray square_without_gradient(const NDArray& x) {
  static const Operator& broken = add_operator("broken_gradient", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.add_kernel({.name = "test"}, {DType::f64},
                  {.run = [](ArrayContext&) { throw std::runtime_error("no memory of it"); }});
  });
  static const Operator& row = add_operator("square_without_gradient", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    op.gradient = [](GradientContext& c) { c.set(0, apply(broken, {&c.gradient()})); };
    op.add_kernel({.name = "test"}, {DType::f64},
                  {.run =
                       [](ArrayContext& c) {
                         for (std::int64_t i = 0; i < c.input(0).count(); ++i) {
                           const double value = c.input(0).as<double>()[i];
                           c.output().as<double>()[i] = value * value;
                         }
                       },
                   .dense_inputs = true});
  });
  return apply(row, {&x});
}

struct Block {
  nn::Size n;
  nn::Linear attention{n, n}, output{n, n, false};
  nn::Place place{};
  NDArray operator()(const NDArray& x) const {
    const auto here = place();
    return x + output(tanh(attention(x)));
  }
};
struct Model {
  std::vector<Block> encoder = nn::repeat(2, Block{4});
  nn::Linear head{4, 2};
  NDArray operator()(const NDArray& x) const { return head(encoder[1](encoder[0](x))); }
};
const nn::InitOptions kWide{.dtype = DType::f64};

TEST(LayerNames, AreInTracesForwardAndBackward) {
  TestEngine engine;
  Model model;
  nn::initialise(model, 1, {}, kWide);
  engine->wait_all();
  engine->start_trace();
  const NDArray loss = sum(square(model(made_up({3, 4}, 1))));
  loss.wait();
  engine->wait_all();
  const std::vector<TraceEvent> forward = engine->stop_trace();
  EXPECT_THAT(traced(forward, "linear"),
              ElementsAre("linear in encoder.0.attention", "linear in encoder.0.output",
                          "linear in encoder.1.attention", "linear in encoder.1.output", "linear in head"));
  EXPECT_THAT(traced(forward, "tanh"), ElementsAre("tanh in encoder.0", "tanh in encoder.1"));
  EXPECT_THAT(traced(forward, "sum"), ElementsAre("sum in "));
  EXPECT_THAT(to_perfetto(forward), HasSubstr("\"layer\": \"encoder.1.attention\""));
  engine->start_trace();
  {
    const LayerScope outer("the caller's");  // is not theirs
    loss.backward();
    EXPECT_STREQ(current_layer(), "the caller's");
  }
  engine->wait_all();
  const std::vector<TraceEvent> backward = engine->stop_trace();
  EXPECT_THAT(traced(backward, "tanh_grad"), UnorderedElementsAre("tanh_grad in encoder.0", "tanh_grad in encoder.1"));
  // The gradients of input and weight; the model's input wants none.
  EXPECT_THAT(traced(backward, "matmul"),
              UnorderedElementsAre("matmul in encoder.0.attention", "matmul in encoder.0.output",
                                   "matmul in encoder.0.output", "matmul in encoder.1.attention",
                                   "matmul in encoder.1.attention", "matmul in encoder.1.output",
                                   "matmul in encoder.1.output", "matmul in head", "matmul in head"));
}

TEST(LayerNames, AreInGradientsOfGradients) {
  TestEngine engine;
  NDArray x = made_up({3}, 1).with_grad(), y;
  {
    const LayerScope layer("cubes");
    y = sum(x * x * x);
  }
  const NDArray first = grad(y, std::span(&x, 1), {.create_graph = true})[0];
  const NDArray total = sum(first);
  engine->wait_all();
  engine->start_trace();
  const NDArray second = grad(total, std::span(&x, 1))[0];
  second.wait();
  engine->wait_all();
  const std::vector<std::string> muls = traced(engine->stop_trace(), "mul");
  EXPECT_GE(muls.size(), 2U);
  for (const std::string& mul : muls) EXPECT_EQ(mul, "mul in cubes");
}

TEST(LayerNames, AreInRecords) {
  TestEngine engine;
  struct Net {
    nn::Linear up{4, 2};
  } net;
  nn::initialise(net, 1);
  const RecordScope scope;
  net.up(ones({3, 4}));
  ASSERT_EQ(scope.records().size(), 2U);
  EXPECT_STREQ(scope.records()[1].layer, "up");
  EXPECT_TRUE(to_string(scope.records()[1]).ends_with(" in up"));
}

TEST(LayerNames, AreInAFailureOfBackward) {
  TestEngine engine;
  struct Square {
    nn::Place place{};
    NDArray operator()(const NDArray& x) const {
      const auto here = place();
      return square_without_gradient(x);
    }
  };
  nn::Sequential net{nn::Linear{4, 4}, nn::Sequential{relu, Square{}}};
  nn::initialise(net, 1, {}, kWide);
  const NDArray loss = sum(net(made_up({3, 4}, 1)));
  loss.wait();
  loss.backward();
  const std::string what = what_of([&] { nn::parameters(net)[0].state->value.grad().wait(); });
  EXPECT_THAT(what, StartsWith("[broken_gradient] layer_names_test.cc:"));
  EXPECT_THAT(what, AllOf(HasSubstr(" in 1.1"), HasSubstr(": no memory of it")));
}

TEST(LayerNames, AreThoseOfTheNetThatGaveTheValues) {
  TestEngine engine;
  Model model;
  nn::initialise(model, 1, {}, kWide);
  const NDArray x = made_up({3, 4}, 1);
  model.head = nn::Linear{5, 2};
  nn::complete(model, 1, {}, kWide);
  EXPECT_THAT(what_of([&] { model(x); }), HasSubstr(" in head: (3, 4) x (2, 5)"));
  nn::Sequential outer{std::move(model)};
  EXPECT_THAT(what_of([&] { outer(x); }), HasSubstr(" in head: (3, 4) x (2, 5)"));
  nn::initialise(outer, 1, {}, {.again = true, .dtype = DType::f64});
  EXPECT_THAT(what_of([&] { outer(x); }), HasSubstr(" in 0.head: (3, 4) x (2, 5)"));
  EXPECT_STREQ(current_layer(), "");
}

TEST(LayerNames, TwoThreadsUseOneNetInTwoModes) {
  TestEngine engine;
  struct Net {
    nn::Linear up{9, 64};
    nn::Dropout drop{0.5};
    NDArray operator()(const NDArray& x) const { return drop(up(x)); }
  } net;
  nn::initialise(net, 1);
  const auto run = [&](bool training) {
    const DeviceScope device(test::device());
    std::string all;
    RandomStream stream(3);
    for (int i = 0; i < 20; ++i) {
      std::optional<nn::Training> on;
      std::optional<nn::Evaluation> off;
      training ? (void)on.emplace(stream) : (void)off.emplace();
      all += test::bits(net(ones({2, 9})));
      const std::string what = what_of([&] { net(ones({1, 3})); });
      EXPECT_THAT(what, HasSubstr(" in up: (1, 3) x (64, 9)"));
    }
    return all;
  };
  const std::string alone[] = {run(false), run(true)};
  std::string together[2];
  std::thread other([&] { together[0] = run(false); });
  together[1] = run(true);
  other.join();
  for (const int i : {0, 1}) EXPECT_TRUE(together[i] == alone[i]) << i;
}

/// `layer` refuses x in one line with its own place.
template <class Layer>
void expect_line(const Layer& layer, const NDArray& x, const std::string& name) {
  const std::string what = what_of([&] { layer(x); });
  EXPECT_THAT(what, StartsWith("[" + name + "] layer_names_test.cc:" + std::to_string(layer.where.line()) + ": "));
  EXPECT_EQ(what.find('\n'), what.npos) << what;
}

TEST(LayerLines, AreThoseWhereTheLayersStand) {
  TestEngine engine;
  const nn::Flatten flatten{};
  const nn::MaxPool2d pool{2};
  EXPECT_EQ(flatten.where.line(), __LINE__ - 2U);
  EXPECT_EQ(pool.where.line(), __LINE__ - 2U);
  const NDArray row = ones({3});
  for (const NDArray& bad : {row, NDArray()}) {
    expect_line(pool, bad, "max_pool2d");
    expect_line(nn::AvgPool2d{2}, bad, "avg_pool2d");
    expect_line(nn::AdaptiveAvgPool2d{2, 2}, bad, "adaptive_avg_pool2d");
    expect_line(nn::AdaptiveMaxPool2d{2, 2}, bad, "adaptive_max_pool2d");
  }
  expect_line(nn::MaxPool2d{0}, ones({1, 1, 4, 4}), "max_pool2d");
  expect_line(flatten, NDArray(), "flatten");
  const nn::Sequential net{nn::Linear{4, 8}, relu, nn::Linear{9, 2}};
  nn::initialise(net, 1);
  EXPECT_THAT(what_of([&] {
                net(ones({3, 4}));
              }),
              AllOf(StartsWith("[linear] layer_names_test.cc:"), HasSubstr(" in 2: (3, 8) x (2, 9) x (2,): ")));
}

TEST(LayerLines, AreInRefusalsOfGroupsAndHeads) {
  const auto refused = [](const std::string& layer, const std::string& words, const auto& make) {
    EXPECT_THAT(what_of(make), AllOf(StartsWith("[" + layer + "] layer_names_test.cc:"), HasSubstr(words)));
  };
  for (const std::int64_t g : {std::int64_t{0}, std::int64_t{-2}, std::int64_t{4}, kMost}) {
    const std::string words = "channels in " + std::to_string(g) + " groups: at least one group is wanted";
    refused("Conv2d", "4 and 6 " + words, [=] { return nn::Conv2d{.in = 4, .out = 6, .kernel = 3, .groups = g}; });
    refused("Conv2d", "6 and 4 " + words, [=] { return nn::Conv2d{.in = 6, .out = 4, .kernel = 3, .groups = g}; });
    refused("Conv1d", words, [=] { return nn::Conv1d{.in = 4, .out = 6, .kernel = 3, .groups = g}; });
    refused("ConvTranspose2d", words, [=] { return nn::ConvTranspose2d{.in = 4, .out = 6, .kernel = 3, .groups = g}; });
    refused("ConvTranspose1d", words, [=] { return nn::ConvTranspose1d{.in = 4, .out = 6, .kernel = 3, .groups = g}; });
    const std::string heads = "width 6, " + std::to_string(g) + " heads, 1 of keys and values: at least one is wanted";
    refused("SelfAttention", heads, [=] { return nn::SelfAttention{.width = 6, .heads = g, .kv_heads = 1}; });
    refused("CrossAttention", heads, [=] { return nn::CrossAttention{.width = 6, .heads = g, .kv_heads = 1}; });
    const std::string few = "width 6, 2 heads, " + std::to_string(g) + " of keys and values";
    refused("SelfAttention", few, [=] { return nn::SelfAttention{.width = 6, .heads = 2, .kv_heads = g}; });
    refused("CrossAttention", few, [=] { return nn::CrossAttention{.width = 6, .heads = 2, .kv_heads = g}; });
  }
  refused("SelfAttention", "(-6,)", [] { return nn::SelfAttention{-6, 2}; });
  refused("SelfAttention", "(" + std::to_string(kMost), [] { return nn::SelfAttention{kMost, kMost}; });
  refused("SelfAttention", "width 0", [] { return nn::SelfAttention{0, 1}; });
}

TEST(LayerLines, AreInRefusalsOfSizesThatNoArrayHas) {
  const auto refused = [](const auto& layer) {
    const std::string line = "layer_names_test.cc:" + std::to_string(layer.where.line()) + ": ";
    EXPECT_THAT(what_of([&] { nn::initialise(layer, 1); }), HasSubstr(line));
    EXPECT_THAT(what_of([&] { nn::describe(layer); }), HasSubstr(line));
  };
  refused(nn::Linear{-3, 4});
  refused(nn::Linear{3, -4, false});
  refused(nn::Linear{kMost, kMost});
  refused(nn::Embedding{kMost, 2});
  refused(nn::LayerNorm{-1});
  refused(nn::Conv2d{.in = 2, .out = 2, .kernel = std::int64_t{1} << 40});
  refused(nn::ConvTranspose1d{.in = 2, .out = kMost, .kernel = kMost});
  refused(nn::Conv1d{.in = -4, .out = 2, .kernel = 3, .groups = 2});
  refused(nn::Lstm{3, kMost / 2});
  refused(nn::Gru{kMost, 3});
  EXPECT_THAT(what_of([&] { return nn::Lstm{3, -1}; }), StartsWith("[nn::fan_in] layer_names_test.cc:"));
  EXPECT_THAT(what_of([&] { nn::contents(nn::Linear{3, -4}); }), StartsWith("[nn::Parameter] layer_names_test.cc:"));
}

}  // namespace
}  // namespace sluice
