// A network of convolutions and batch normalisation whose batch is cut over a mesh, beside the same on one device: the
// layout does not change what a batch is.
#include "placing_support.h"

namespace sluice {
namespace {

struct ConvNet {
  nn::Conv2d first{3, 6, 3, 1, 1}, second{6, 4, 3};
  nn::BatchNorm norm1{6}, norm2{4};
  nn::Linear head{4, 5};
  NDArray operator()(const NDArray& x) const {
    const NDArray h = norm2(second(relu(norm1(first(x)))));
    return head(mean(h, {2, 3}));
  }
};

TEST(PlacingBatchNorm, ABatchIsTheWholeBatch) {
  const test::TestEngine engine({.threads = 2, .logical_cpus = 8});
  const Mesh meshes[] = {Mesh({{"dp", 4}}, test::device_kind()), Mesh({{"dp", 2}, {"tp", 2}}, test::device_kind())};
  for (const Mesh& mesh : meshes) {
    for (const int zero : {0, 3}) {
      SCOPED_TRACE(to_string(mesh) + " zero " + std::to_string(zero));
      const ConvNet plain, placed;
      std::vector<nn::AxisLayouts> tables{{.axis = "dp", .zero = zero}};
      if (mesh.axes() > 1) {  // channels are cut: normalised where they are
        const nn::PartLayout by_channels{
            .weight = shard(0), .bias = shard(0), .others = {{"running_mean", shard(0)}, {"running_var", shard(0)}}};
        tables.push_back({"tp",
                          {{"first", {.weight = shard(0), .bias = shard(0)}},
                           {"norm1", by_channels},
                           {"second", {.weight = shard(1), .out = replicate}}}});
      }
      nn::place(placed, mesh, tables);
      for (const ConvNet* net : {&plain, &placed}) nn::initialise(*net, 3, {}, {.dtype = DType::f64});
      const nn::Sgd rule{.lr = 0.1, .momentum = 0.9};
      nn::Optimizer one(plain, rule), other(placed, rule);
      RandomStream data(5), draws(6);
      for (int step = 0; step < 3; ++step) {
        const std::int64_t n = step == 2 ? 3 : 7;  // fewer rows than places in the last
        const NDArray x = normal({n, 3, 6, 5}, data, 1, 2, DType::f64), y = randint({n}, data, 0, 5);
        const nn::Training on(draws);
        cross_entropy(plain(x), y).backward();
        const Placements rows{{"dp", shard(0)}};
        cross_entropy(placed(place(x, mesh, rows)), place(y, mesh, rows)).backward();
        one.step();
        other.step();
        ASSERT_LE(test::apart(placed, plain), 1e-10) << "step " << step;  // statistics too
      }
      const nn::Evaluation off;
      const NDArray x = normal({5, 3, 6, 5}, data, 1, 2, DType::f64);
      const NDArray wanted = plain(x), is = gathered(placed(place(x, mesh, {{"dp", shard(0)}})));
      EXPECT_LE(max(abs(is - wanted)).item<double>(), 1e-10);
    }
  }
}

/// A mean that f32 cannot hold beside a small deviation.
TEST(PlacingBatchNorm, FarFromZero) {
  const test::TestEngine engine({.threads = 2, .logical_cpus = 8});
  const Mesh mesh({{"dp", 2}}, test::device_kind());
  const NDArray x = from<float>({16777216, 16777218, 16777216, 16777218}, {4, 1}).to(test::device());
  const NDArray y = gathered(batch_norm(place(x, mesh, {{"dp", shard(0)}}), {}));
  EXPECT_LE(max(abs(y - batch_norm(x, {}))).item<float>(), 1e-5);
}

/// A number for each channel, then two, and three times one back.
TEST(PlacingBatchNorm, SendsThreeNumbersForEachChannel) {
  const test::TestEngine engine({.threads = 2, .logical_cpus = 8});
  const Mesh mesh({{"dp", 4}}, test::device_kind());
  const NDArray x = place(zeros({8, 6, 5, 5}), mesh, {{"dp", shard(0)}}).with_grad();
  const auto list = comms([&] { sum(square(batch_norm(x, {}))).backward(); });
  std::map<bool, std::int64_t> count, numbers;
  for (const Communication& one : list) {
    EXPECT_EQ(name_of(one.kind), "all_reduce");
    ++count[one.backward];
    numbers[one.backward] += one.array.shape.count();
  }
  EXPECT_EQ(count[false], 2);
  EXPECT_EQ(count[true], 3);
  EXPECT_EQ(numbers[false], 3 * 6);
  EXPECT_EQ(numbers[true], 3 * 6);
}

}  // namespace
}  // namespace sluice
