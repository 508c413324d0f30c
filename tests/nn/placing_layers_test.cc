// Layers with a bias and a fused relu, by columns and by rows of their weights, beside the same on one device: where
// places have terms of a sum the bias is added to the sum once, and relu comes behind it.
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

}  // namespace
}  // namespace sluice
