// Layers with a bias and a fused relu, by columns and by rows of their weights, beside the same on one device: where
// places have terms of a sum the bias is added to the sum once, and relu comes behind it.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "placing_support.h"

namespace sluice {
namespace {

struct Net {
  nn::Conv2d first{.in = 2, .out = 7, .kernel = 3, .padding = 1, .relu = true};
  nn::Conv2d second{.in = 7, .out = 3, .kernel = 3, .relu = true};
  nn::Linear up{.in = 27, .out = 11, .relu = true}, down{.in = 11, .out = 5, .relu = true}, head{5, 4};
  nn::LayerNorm norm{5};
  NDArray operator()(const NDArray& x) const {
    const NDArray h = second(first(x));
    return head(norm(down(up(h.reshape({h.size(0), -1}))) + 0.25));
  }
};

TEST(PlacingLayers, ABiasIsAddedOnceAndReluComesBehindIt) {
  const test::TestEngine engine({.threads = 2, .logical_cpus = 4});
  const Mesh meshes[] = {Mesh({{"tp", 2}}, test::device_kind()), Mesh({{"tp", 3}}, test::device_kind()),
                         Mesh({{"dp", 2}, {"tp", 2}}, test::device_kind())};
  const nn::PartLayout by_columns{.weight = shard(0), .bias = shard(0)};
  const Net plain;
  const auto fill = [](const Net& net) {
    nn::initialise(net, 3, {{"*.bias", nn::normal(0.5)}}, {.dtype = DType::f64});
  };
  fill(plain);
  const NDArray x = test::made_up({5, 2, 5, 5}, 1), weight = test::made_up({5, 4}, 2);
  const NDArray wanted = plain(x);
  sum(wanted * weight).backward();
  for (const Mesh& mesh : meshes) {
    for (const bool bias_cut : {false, true}) {
      for (const Placement between : {replicate, shard(0)}) {
        if (between != replicate && mesh.axes() > 1) continue;  // rows of the batch are cut over dp
        SCOPED_TRACE(to_string(mesh) + (bias_cut ? ", bias cut, " : ", ") + to_string(between));
        const Net net;
        const nn::PartLayout by_rows{.weight = shard(1), .in = shard(1), .out = replicate};
        nn::PartLayout down = by_rows;
        down.out = between;
        nn::place(net, mesh,
                  {{"tp",
                    {{"first", by_columns},
                     {"second", by_rows},
                     {"up", by_columns},
                     {"down", down},
                     {"norm", {.out = replicate}},
                     {"head", bias_cut ? by_columns : nn::PartLayout{}}}}});
        fill(net);
        const Placements rows = mesh.axes() > 1 ? Placements{{"dp", shard(0)}} : Placements();
        const NDArray y = net(place(x, mesh, rows));
        EXPECT_LE(max(abs(gathered(y) - wanted)).item<double>(), 1e-12);
        whole(sum(y * place(weight, mesh, rows))).backward();
        const auto a = nn::parameters(plain), b = nn::parameters(net);
        for (std::size_t i = 0; i < a.size(); ++i) {
          const NDArray is = b[i].state->value.grad(), of_plain = a[i].state->value.grad();
          EXPECT_EQ(to_string(layout_of(is)), to_string(layout_of(b[i].state->value))) << a[i].name;
          EXPECT_LE(max(abs(gathered(is) - of_plain)).item<double>(), 1e-11) << a[i].name;
          EXPECT_GT(max(abs(of_plain)).item<double>(), 1e-6) << a[i].name;
        }
      }
    }
  }
}

/// Reads n texts of as many tokens at once, as a program for one device: (steps, n) tokens.
struct Reader {
  nn::Embedding token{11, 6};
  nn::Lstm lstm{6, 5};
  nn::Gru gru{5, 4};
  nn::Linear each{4, 7};  ///< of a step of a text
  nn::Linear head{7, 11};
  NDArray loss(const NDArray& tokens, const NDArray& targets, double count) const {
    const std::int64_t n = tokens.size(1);
    const NDArray memory = gru(lstm(token(tokens), lstm.begin(n)).outputs, gru.begin(n)).outputs;
    const NDArray logits = head(relu(each(memory))).permute({1, 0, 2});
    return cross_entropy(logits.reshape({-1, 11}), targets.transpose().flatten(), count);
  }
};

/// Each place has whole texts, and so the batch's axis, which is not the first, is cut: the gradients are the sums of
/// those of a plain net of each part, bit for bit.
TEST(PlacingLayers, RecurrentLayersAreDataParallel) {
  const test::TestEngine engine({.threads = 2, .logical_cpus = 4});
  const Mesh dp({{"dp", 3}}, test::device_kind());
  constexpr std::int64_t kSteps = 6, kTexts = 5;
  for (const int zero : {0, 3}) {
    const Reader plain, placed;
    nn::initialise(plain, 3);
    nn::place(placed, dp, {{.axis = "dp", .zero = zero}});
    nn::initialise(placed, 3);
    nn::Optimizer one(plain, nn::Adam{.lr = 0.01}), other(placed, nn::Adam{.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE("zero " + std::to_string(zero) + ", step " + std::to_string(step));
      const NDArray x = test::tokens(kSteps, kTexts, 10 + step, 11), y = test::tokens(kSteps, kTexts, 20 + step, 11);
      const Layout texts(dp, x.shape(), {{"dp", shard(1)}});
      std::map<std::string, std::vector<NDArray>> terms;
      for (int r = 0; r < 3; ++r) {
        const std::int64_t begin = texts.begin(r)[1], end = begin + texts.extent(r)[1];
        plain.loss(x.narrow(1, begin, end), y.narrow(1, begin, end), kSteps * kTexts).backward();
        for (const nn::Named& p : nn::parameters(plain)) {
          terms[p.name].push_back(p.state->value.grad());
          p.state->value.zero_grad();
        }
      }
      for (const nn::Named& p : nn::parameters(plain)) {
        p.state->value.set_grad((terms[p.name][0] + terms[p.name][1]) + terms[p.name][2]);
      }
      one.step();
      std::optional<MeshScope> scope;  // the states' zeros are where the weights are, with it and without
      if (step == 1) scope.emplace(dp);
      placed.loss(place(x, texts), place(y, texts), kSteps * kTexts).backward();
      other.step();
      const auto a = nn::parameters(plain), b = nn::parameters(placed);
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(test::bits(gathered(b[i].state->value)) == test::bits(a[i].state->value)) << a[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
