// What holds of each layer: a layer is a row of the table. docs/adding-a-layer.md adds one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "layers_support.h"
#include "sluice/nn/layers/layers.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::bits;
using test::expect_equal;
using test::made_up;
using ::testing::HasSubstr;

struct Row {
  std::string name;
  std::function<void()> check;
};

/// make() gives the layer, `shape` is that of an input, and formula(layer, x) says by operators what it computes.
template <class Make, class Formula>
Row layer(std::string name, Make make, const Dims& shape, Formula formula) {
  return {std::move(name), [make, shape, formula] {
            const auto net = test::made(make());
            const NDArray x = made_up(shape, 1);
            {
              SCOPED_TRACE("its formula, and its gradients");
              expect_equal(net(x), formula(net, x));
              test::check_gradients(net, x, [&](const NDArray& at) { return net(at); });
            }
            {
              SCOPED_TRACE("in f32, which it keeps");
              auto narrow = make();
              nn::initialise(narrow, 7);
              const NDArray y = narrow(x.to(DType::f32));
              EXPECT_EQ(y.dtype(), DType::f32);
              expect_equal(y, formula(narrow, x.to(DType::f32)), 1e-5);
            }
            {
              SCOPED_TRACE("from a file, and as a copy");
              const test::TemporaryDirectory folder;
              const std::string path = (folder / "layer.safetensors").string();
              nn::save(path, {{"layer", net}});
              auto other = make();
              nn::initialise(other, 8, {}, {.dtype = test::kWide});
              nn::load(path, {{"layer", other}});
              EXPECT_TRUE(bits(other(x)) == bits(net(x)));
              EXPECT_TRUE(bits(nn::clone(net)(x)) == bits(net(x)));
            }
            {
              SCOPED_TRACE("what does not fit is refused by a line that says where the layer stands");
              Dims wider = shape;
              for (int i = 0; i < wider.rank(); ++i) ++wider[i];
              const std::string said = test::what_of([&] { net(made_up(wider, 1)); });
              EXPECT_THAT(said, HasSubstr("layers_table_test.cc:"));
              EXPECT_EQ(said.find('\n'), std::string::npos) << said;
            }
          }};
}

NDArray centred(const NDArray& x, double eps) {
  const NDArray mean_of = mean(x, -1, {.keep = true}), from_mean = x - mean_of;
  return from_mean / sqrt(mean(from_mean * from_mean, -1, {.keep = true}) + eps);
}

const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      layer(
          "linear",
          [] {
            return nn::Linear{3, 4};
          },
          {2, 5, 3}, [](const auto& l, const NDArray& x) { return matmul(x, l.weight.value().transpose()) + *l.bias; }),
      layer(
          "linear_relu", [] { return nn::Linear{.in = 3, .out = 4, .use_bias = false, .relu = true}; }, {7, 3},
          [](const auto& l, const NDArray& x) { return relu(matmul(x, l.weight.value().transpose())); }),
      layer(
          "layer_norm", [] { return nn::LayerNorm{6}; }, {3, 2, 6},
          [](const auto& l, const NDArray& x) { return centred(x, l.eps) * l.weight + l.bias; }),
      layer(
          "rms_norm", [] { return nn::RmsNorm{6}; }, {3, 6},
          [](const auto& l, const NDArray& x) { return x / sqrt(mean(x * x, -1, {.keep = true}) + l.eps) * l.weight; }),
      layer(
          "group_norm",
          [] {
            return nn::GroupNorm{2, 6};
          },
          {3, 6, 4},
          [](const auto& l, const NDArray& x) {
            return centred(x.reshape({3, 2, 12}), l.eps).reshape({3, 6, 4}) * l.weight.value().reshape({6, 1}) +
                   l.bias.value().reshape({6, 1});
          }),
  };
  return rows;
}

class Layers : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Layers, AreTheirFormulas) {
  test::TestEngine engine;
  table()[GetParam()].check();
}

INSTANTIATE_TEST_SUITE_P(, Layers, ::testing::Range(std::size_t{0}, table().size()),
                         [](const auto& of) { return table()[of.param].name; });

}  // namespace
}  // namespace sluice
