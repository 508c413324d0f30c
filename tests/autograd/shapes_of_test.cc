// shapes_of: what a function gives and needs without running, and that nothing is different afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "sluice/autograd/halves.h"
#include "sluice/resources/memory_pool.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Arrays = std::vector<NDArray>;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const ArrayError& error) {
    return error.what();
  }
  return "";
}

std::size_t sum_of(const std::vector<KeptMemory>& pieces) {
  std::size_t bytes = 0;
  for (const KeptMemory& piece : pieces) bytes += piece.bytes;
  return bytes;
}

const LayerShapes& layer_of(const Shapes& shapes, const std::string& name) {
  for (const LayerShapes& layer : shapes.layers) {
    if (layer.layer == name) return layer;
  }
  ADD_FAILURE() << "no layer " << name;
  static const LayerShapes none;
  return none;
}

// ---- networks

/// The quickstart's network.
struct Mlp {
  nn::Sequential net{nn::Linear{784, 256}, relu, nn::Linear{256, 10}};
  Mlp() { nn::initialise(net, 5); }
  NDArray loss(const NDArray& x, const NDArray& labels) const { return cross_entropy(net(x), labels); }
};

/// Two convolutions with batch normalisations, around which the input goes too.
struct ResidualBlock {
  nn::Size channels;
  nn::Conv2d a{.in = channels, .out = channels, .kernel = 3, .padding = 1, .use_bias = false};
  nn::Conv2d b{.in = channels, .out = channels, .kernel = 3, .padding = 1, .use_bias = false};
  nn::BatchNorm norm{channels};
  NDArray operator()(const NDArray& x) const { return relu(norm(b(relu(norm(a(x))))) + x); }
};

/// A transformer of this many blocks.
struct Gpt {
  std::int64_t width, heads;
  RandomStream stream{7};
  NDArray tokens;
  struct Block {
    NDArray norm1, qkv, out, norm2, up, down;
  };
  std::vector<Block> blocks;
  Gpt(std::int64_t words, std::int64_t size, std::int64_t of_heads, int depth, DType dtype = DType::f32)
      : width(size), heads(of_heads) {
    const auto weight = [&](const Dims& shape) { return normal(shape, stream, 0, 0.02, dtype).with_grad(); };
    tokens = weight({words, width});
    for (int i = 0; i < depth; ++i) {
      blocks.push_back({weight({width}), weight({3 * width, width}), weight({width, width}), weight({width}),
                        weight({4 * width, width}), weight({width, 4 * width})});
    }
  }
  NDArray block(const Block& w, const NDArray& x) const {
    const std::int64_t n = x.size(0), length = x.size(1), size = width / heads;
    const NDArray all_three =
        linear(rms_norm(x, w.norm1), w.qkv).reshape({n, length, 3, heads, size}).permute({2, 0, 3, 1, 4});
    const NDArray seen = attention(all_three(0), all_three(1), all_three(2), {.causal = true});
    const NDArray h = x + linear(seen.permute({0, 2, 1, 3}).reshape({n, length, width}), w.out);
    return h + linear(gelu(linear(rms_norm(h, w.norm2), w.up)), w.down);
  }
  NDArray operator()(const NDArray& ids, bool checkpoints) const {
    NDArray x = embedding(tokens, ids);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const LayerScope layer("block." + std::to_string(i));
      x = checkpoints ? checkpoint([&](const NDArray& h) { return block(blocks[i], h); }, x) : block(blocks[i], x);
    }
    return linear(x, tokens);
  }
};

// ---- what it says

TEST(ShapesOf, SaysWhatANetworkGivesAndHas) {
  const Mlp mlp;
  const Shapes shapes = shapes_of([&] { return mlp.net(zeros({64, 784})); });
  EXPECT_EQ(shapes.results, (std::vector<Spec>{{{64, 10}, DType::f32, test::device(0)}}));
  EXPECT_EQ(shapes.parameters, 784 * 256 + 256 + 256 * 10 + 10);
  EXPECT_EQ(shapes.parameter_bytes, static_cast<std::size_t>(shapes.parameters) * 4);
  EXPECT_EQ(layer_of(shapes, "0").parameters, 784 * 256 + 256);
  EXPECT_EQ(layer_of(shapes, "0").outputs, (std::vector<Spec>{{{64, 256}, DType::f32, test::device(0)}}));
  EXPECT_EQ(layer_of(shapes, "").parameters, 0);
  EXPECT_EQ(layer_of(shapes, "2").output_bytes, 64U * 10 * 4);
  EXPECT_NEAR(layer_of(shapes, "0").flops, 2.0 * 64 * 784 * 256, 64 * 256);

  EXPECT_TRUE(shapes_of([] {}).results.empty());
  EXPECT_EQ(shapes_of([&] { return Arrays{ones({2}), zeros({3}, DType::f16)}; }).results.size(), 2U);
  EXPECT_THROW(shapes_of([] { return NDArray(); }), ArrayError);
}

TEST(ShapesOf, SummaryIsATable) {
  const Mlp mlp;
  EXPECT_EQ(sluice::summary(mlp.net, {{64, 784}, DType::f32, test::device(0)}),
            "layer       output         parameters        kept  scratch   flops\n"
            "0           (64, 256) f32     200,960  196.00 KiB      0 B  25.7 M\n"
            "(no layer)  (64, 256) f32           0   64.00 KiB      0 B  16.4 k\n"
            "2           (64, 10) f32        2,570         0 B      0 B   328 k\n"
            "all         (64, 10) f32      203,530  260.00 KiB           26.1 M\n"
            "parameters 795.04 KiB, at most 128.00 KiB beside them\n");
}

TEST(ShapesOf, KeepsWhatARealTapeKeeps) {
  const Mlp mlp;
  RandomStream stream(6);
  const NDArray x = uniform({64, 784}, stream), labels = zeros({64}, DType::i64);
  EXPECT_EQ(shapes_of([&] { return mlp.loss(x, labels); }).kept_bytes, sum_of(kept_memory({mlp.loss(x, labels)}, {})));

  const ResidualBlock residual{8};
  nn::initialise(residual, 6);
  const NDArray image = uniform({2, 8, 14, 14}, stream);
  const nn::Training on(stream);
  EXPECT_EQ(shapes_of([&] { return residual(image); }).kept_bytes, sum_of(kept_memory({residual(image)}, {})));

  const Gpt gpt(50, 32, 4, 2);
  const NDArray ids = zeros({2, 16}, DType::i64);
  for (const bool checkpoints : {false, true}) {
    const std::size_t kept = shapes_of([&] { return gpt(ids, checkpoints); }).kept_bytes;
    EXPECT_EQ(kept, sum_of(kept_memory({gpt(ids, checkpoints)}, {})));
    EXPECT_EQ(shapes_of([&] { return gpt(zeros({2, 16}, DType::i64), checkpoints); }).kept_bytes, kept);
    EXPECT_GT(kept, checkpoints ? 0U : 100'000U);
  }
}

TEST(ShapesOf, CountsTheFlopsOfATransformer) {
  constexpr std::int64_t kWords = 1000, kWidth = 64, kHeads = 4, kDepth = 3, kBatch = 2, kLength = 32;
  constexpr std::int64_t kRows = kBatch * kLength;
  const Gpt gpt(kWords, kWidth, kHeads, kDepth);
  const auto forward = [&] { return gpt(zeros({kBatch, kLength}, DType::i64), false); };
  // Products: 2 for each weight and row; scores and their use: 2 x 2 for each pair that sees each other and column.
  const double weights = kDepth * 12.0 * kWidth * kWidth + 1.0 * kWords * kWidth;
  const double pairs = kBatch * kDepth * kLength * (kLength + 1) / 2.0;
  const double products = 2 * weights * kRows + 4 * pairs * kWidth;
  const Shapes f = shapes_of(forward);
  EXPECT_EQ(f.parameters, kDepth * (12 * kWidth * kWidth + 2 * kWidth) + kWords * kWidth);
  EXPECT_GT(f.flops, products);
  EXPECT_LT(f.flops, products * 1.1);  // what is not a product
  const Shapes both = shapes_of([&] { sum(forward()).backward(); });
  // Backward makes two products of each; of attention five in place of two, as one is computed again.
  const double all = 3 * 2 * weights * kRows + (1 + 2.5) * 4 * pairs * kWidth;
  EXPECT_GT(both.flops, all);
  EXPECT_LT(both.flops, all * 1.1);
  EXPECT_EQ(both.kept_bytes, 0U);
}

TEST(ShapesOf, PeakIsWhatOneAfterAnotherTakes) {
  constexpr std::size_t kArray = 1000 * 4;
  const NDArray outside = ones({1000});
  EXPECT_EQ(shapes_of([&] { return exp(outside); }).peak_bytes, kArray);
  const auto chain = [](NDArray x) {
    for (int i = 0; i < 10; ++i) x = exp(x);
    return x;
  };
  EXPECT_EQ(shapes_of([&] { return chain(outside); }).peak_bytes, 2 * kArray);
  const NDArray wanted = outside.detach().with_grad();
  EXPECT_EQ(shapes_of([&] { return chain(wanted); }).peak_bytes, 10 * kArray);
}

TEST(ShapesOf, SevenBillionParametersTakeNoMemoryAndNoTime) {
  default_engine().wait_all();  // what the tests before have left to do takes memory too
  const auto before = memory_pool(cpu(0)).stats();
  const auto began = std::chrono::steady_clock::now();
  const Shapes shapes = shapes_of([&] {
    const Gpt gpt(32000, 4096, 32, 33, DType::bf16);
    const NDArray logits = gpt(zeros({1, 2048}, DType::i64), false);
    sum(logits).backward();
    return logits;
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_GT(shapes.parameters, 6'700'000'000);
  EXPECT_EQ(shapes.results[0].shape, (Dims{1, 2048, 32000}));
  EXPECT_GT(shapes.peak_bytes, 2U * 2 * 6'700'000'000);
  EXPECT_LT(memory_pool(cpu(0)).stats().in_use, before.in_use + 1'000'000);
  std::printf("%.0f ms\n", took.count() * 1e3);
}

// ---- nothing is different afterwards

/// A step of training with all that changes beside elements.
struct Training {
  RandomStream stream{8};
  struct Net {
    ResidualBlock block{4};
    nn::Dropout drop{0.25};
    nn::Linear head{.in = 4, .out = 3, .use_bias = false};
  } net;
  nn::Optimizer adam{net, nn::Adam{.lr = 0.01}};
  NDArray image = uniform({2, 4, 6, 6}, stream), labels = zeros({2}, DType::i64), count = zeros({});
  Training() { nn::initialise(net, 8); }
  NDArray step() {
    const nn::Training on(stream);
    const NDArray h = mean(checkpoint([&](const NDArray& x) { return net.block(x); }, image), Axes{2, 3});
    const NDArray loss = cross_entropy(net.head(net.drop(dropout(h, 0.5, stream))), labels);
    loss.backward();
    adam.step();
    count += 1;
    return loss.detach();
  }
  std::vector<std::vector<float>> state() const {
    std::vector<std::vector<float>> list;
    Arrays arrays{count, image};
    for (const nn::Named& slot : nn::contents(net).slots) arrays.push_back(slot.state->value);
    for (const NDArray& x : arrays) {
      list.push_back(x.to_vector<float>());
      const NDArray g = x.grad();
      list.push_back(g.defined() ? g.to_vector<float>() : std::vector<float>{});
    }
    for (const nn::SavedArray& s : adam.saved_arrays()) list.push_back(s.value.to(DType::f32).to_vector<float>());
    const RandomStream::State draws = stream.state();
    list.push_back({static_cast<float>(draws.draw), static_cast<float>(adam.steps())});
    return list;
  }
};

TEST(ShapesOf, LeavesEverythingAsItWas) {
  Training plain, asked;
  for (int i = 0; i < 3; ++i) {
    const auto before = asked.state();
    const Shapes shapes = shapes_of([&] {
      asked.step();
      return asked.step();
    });
    EXPECT_EQ(shapes.results[0].shape, Dims{});
    EXPECT_EQ(asked.state(), before);
    EXPECT_THROW(shapes_of([&] {
                   asked.step();
                   throw ArrayError("mine", std::source_location::current(), "in the middle");
                 }),
                 ArrayError);
    EXPECT_EQ(asked.state(), before);
    plain.step();
    asked.step();
    EXPECT_EQ(asked.state(), plain.state());
  }
  // A gradient that was there is there, with its value.
  const NDArray& weight = asked.net.head.weight;
  sum(weight).backward();
  const auto before = asked.state();
  shapes_of([&] { asked.step(); });
  shapes_of([&] { weight.set_grad({}); });
  shapes_of([&] { sum(weight * 2).backward(); });
  EXPECT_EQ(asked.state(), before);
}

TEST(ShapesOf, LeavesHistoriesAndLeavesAsTheyWere) {
  const NDArray x = ones({3}), w = ones({3}).with_grad();
  NDArray y = w * 2;
  shapes_of([&] {
    x.with_grad();
    y += w;
    y(0).fill(7);
    return sum(x * y);
  });
  EXPECT_FALSE(x.requires_grad());
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{2, 2, 2}));
  sum(y).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));

  // A value that a tape holds, in memory that others show.
  const Partitioned parts = partitioned(std::vector<std::int64_t>{1, 2}, {}, DType::f32, test::device(0));
  parts.whole.fill(3);
  const NDArray kept = square(w.narrow(0, 0, 2) * parts.parts[1].detach());
  shapes_of([&] { parts.whole.fill(5); });
  EXPECT_EQ(parts.whole.to_vector<float>(), (std::vector<float>{3, 3, 3}));
  sum(kept).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{20, 20, 2}));
}

TEST(ShapesOf, GradientsOfGradientsAndNestedCalls) {
  const NDArray x = ones({4, 2}).with_grad();
  const Shapes shapes = shapes_of([&] {
    const NDArray first = grad(sum(exp(x)), {x}, {.create_graph = true})[0];
    EXPECT_EQ(shapes_of([&] { return sum(first, 1); }).results[0].shape, Dims{4});
    return grad(sum(square(first)), {x})[0];
  });
  EXPECT_EQ(shapes.results[0].shape, (Dims{4, 2}));
  EXPECT_FALSE(x.grad().defined());
}

// ---- what is refused

TEST(ShapesOf, ElementsAreRefused) {
  const NDArray outside = ones({2}), written = ones({2});
  const auto says = [&](const std::function<void(const NDArray&)>& ask) {
    return error_of([&] { shapes_of([&] { ask(exp(outside)); }); });
  };
  EXPECT_THAT(says([](const NDArray& x) { sum(x).item<float>(); }),
              AllOf(HasSubstr("asks for elements"), HasSubstr(".cc:")));
  EXPECT_THAT(says([](const NDArray& x) { x.to_vector<float>(); }), HasSubstr("asks for elements"));
  EXPECT_THAT(says([](const NDArray& x) { x.wait(); }), HasSubstr("[wait]"));
  EXPECT_THAT(says([](const NDArray& x) { x.borrow<const float>(); }), HasSubstr("[borrow]"));
  EXPECT_THAT(says([](const NDArray& x) { std::ostringstream() << x; }), HasSubstr("asks for elements"));
  EXPECT_THAT(says([](const NDArray& x) { nonzero(x); }),
              HasSubstr("which a function in shapes_of must not; give a size"));
  EXPECT_THAT(says([&](const NDArray& x) {
                written.assign(x);
                written.to_vector<float>();
              }),
              HasSubstr("asks for elements"));
  EXPECT_EQ(says([&](const NDArray&) { EXPECT_EQ(outside.to_vector<float>(), (std::vector<float>{1, 1})); }), "");
  EXPECT_EQ(written.to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(ShapesOf, ArraysThatLeaveItAreRefused) {
  NDArray left;
  shapes_of([&] { left = ones({2, 3}); });
  EXPECT_EQ(left.spec(), (Spec{{2, 3}, DType::f32, test::device(0)}));
  const std::string words = "an array that shapes_of made has no elements";
  EXPECT_THAT(error_of([&] { left + 1; }), AllOf(HasSubstr("[add]"), HasSubstr(words)));
  EXPECT_THAT(error_of([&] { left += 1; }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { left.to_vector<float>(); }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { left.wait(); }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { left(0).detach(); }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { left.fill(1); }), HasSubstr(words));
  EXPECT_THAT(error_of([&] { push_op([](ArrayContext&) {}, {left}, {}); }), HasSubstr(words));
  // In another one it has its shape again.
  EXPECT_EQ(shapes_of([&] { return left + 1; }).results[0].shape, (Dims{2, 3}));
}

TEST(ShapesOf, ATapeOfOutsideIsRefused) {
  const NDArray w = ones({2}).with_grad();
  const NDArray loss = sum(exp(w));
  EXPECT_THAT(error_of([&] { shapes_of([&] { loss.backward(); }); }),
              HasSubstr("shapes_of: the tape was recorded outside of it"));
  loss.backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST(ShapesOf, ErrorsOfCallsAreTheirs) {
  EXPECT_THAT(error_of([] { shapes_of([] { return matmul(ones({2, 3}), ones({2, 3})); }); }), HasSubstr("[matmul]"));
}

/// Every gelu by what it is near to.
class GeluBySigmoid final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    if (call.name() != "gelu") return next(call);
    call.answer({call.input() * sigmoid(call.input() * 1.702)});
  }
};

TEST(ShapesOf, SeesWhatInterpretersMakeOfACall) {
  const NDArray x = ones({10}).with_grad();
  const auto f = [&] { return gelu(x * 2); };
  EXPECT_EQ(shapes_of(f).kept_bytes, 40U);
  const InterpreterScope scope(std::make_shared<GeluBySigmoid>());
  const Shapes shapes = shapes_of(f);
  EXPECT_EQ(shapes.kept_bytes, sum_of(kept_memory({f()}, {})));
  EXPECT_EQ(shapes.kept_bytes, 80U);  // x * 2 and the sigmoid
  EXPECT_EQ(shapes.layers.at(0).calls, 4);
}

}  // namespace
}  // namespace sluice
