// No result depends on how many blocks run a kernel: the bits of reductions, of softmax, of normalisations and of what
// else folds elements are the same on grids of one block, of few, and of as many as the backend takes by itself.
#include "sluice/operators/backends/cuda/grid.h"
#include "support.h"

namespace sluice {
namespace {

/// While it lives kernels have at most so many blocks.
class ForcedGrid {
 public:
  explicit ForcedGrid(std::int64_t blocks) { cuda::most_blocks = blocks; }
  ~ForcedGrid() { cuda::most_blocks = before_; }
  ForcedGrid(const ForcedGrid&) = delete;
  ForcedGrid& operator=(const ForcedGrid&) = delete;

 private:
  const std::int64_t before_ = cuda::most_blocks;
};

using Bytes = std::vector<std::vector<std::byte>>;

/// What reductions give over each set of axes, and their gradients.
Bytes reductions(const NDArray& x) {
  Bytes results;
  const auto add = [&](const NDArray& y) { results.push_back(y.to_bytes()); };
  for (int axes = 0; axes < 1 << x.rank(); ++axes) {
    Dims list;
    for (int i = 0; i < x.rank(); ++i) {
      if ((axes >> i & 1) != 0) list.push_back(i);
    }
    if (list.empty() && x.rank() > 1) continue;  // empty means all of them, which comes too
    add(sum(x, list));
    add(mean(x, list));
    add(max(x, list));
    add(min(x, list));
    const NDArray leaf = x.detach().with_grad();
    sum(square(max(leaf, list))).backward();
    add(leaf.grad());
  }
  for (int axis = 0; axis < x.rank(); ++axis) {
    add(argmax(x, axis));
    add(argmin(x, axis));
    add(cumsum(x, axis));
    add(cummax(x, axis).indices);
    add(argsort(x, axis));
    if (x.count() / x.size(axis) > 40) continue;  // a row is a block, which takes long on the double
    add(softmax(x, axis));
    add(log_softmax(x, axis));
  }
  if (x.rank() == 2) {
    const NDArray labels = (arange(0, x.size(0)) * 7).to(x.device());
    const NDArray leaf = x.detach().with_grad();
    const NDArray loss = cross_entropy(leaf, labels - labels / x.size(1) * x.size(1));
    loss.backward();
    add(loss);
    add(leaf.grad());
  }
  if (x.count() / x.size(-1) <= 40) {
    const NDArray leaf = x.detach().with_grad(), weight = x(0).detach().with_grad();
    const NDArray y = x.rank() == 2 ? layer_norm(leaf, weight, weight) : layer_norm(leaf);
    sum(square(y)).backward();
    add(y);
    add(leaf.grad());
    if (x.rank() == 2) add(weight.grad());
  }
  return results;
}

/// Contiguous arrays, and views whose elements lie apart, backwards, transposed, or are one. Groups of several chunks
/// of a fold are among them, by rows (more than 4096 elements) and by columns (more than 256).
std::vector<NDArray> operands(DType dtype) {
  RandomStream random(12);
  const auto made = [&](const Dims& shape) { return normal(shape, random, 0, 1, DType::f32).to(dtype); };
  return {made({9001}),
          made({2, 4200}),
          made({300, 3}),
          made({5, 4, 17}),
          made({40, 30})(slice(1, 40, 3), reversed()),
          made({17, 40}).transpose(),
          made({5, 4, 7}).permute({2, 0, 1}),
          made({1, 20}).broadcast_to({10, 20}),
          made({9001})(slice(0, 9001, 2))};
}

TEST(CudaGrids, ReductionsHaveTheSameBitsOnAny) {
  const OnDouble on;
  const DeviceScope scope(gpu(0));
  for (const DType dtype : {DType::f32, DType::f16}) {
    int number = 0;
    for (const NDArray& x : operands(dtype)) {
      const Bytes want = reductions(x);
      for (const std::int64_t blocks : {1, 3}) {
        const ForcedGrid forced(blocks);
        const Bytes got = reductions(x);
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(got[i] == want[i]) << "operand " << number << ", " << name_of(dtype) << ", result " << i << ", "
                                         << blocks << " blocks";
        }
      }
      ++number;
    }
  }
}

TEST(CudaGrids, AttentionHasTheSameBitsOnAny) {
  const OnDouble on;
  const DeviceScope scope(gpu(0));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RandomStream random(12);
    Bytes want;
    NDArray x[3];
    for (NDArray& each : x) each = normal({1, 2, 70, 16}, random, 0, 1, DType::f32).to(dtype).with_grad();
    for (const std::int64_t blocks : {1 << 14, 1, 3}) {
      const ForcedGrid forced(blocks);
      const NDArray y = attention(x[0], x[1], x[2], {.causal = true});
      for (NDArray& each : x) each = each.detach().with_grad();
      sum(square(attention(x[0], x[1], x[2], {.causal = true}))).backward();
      Bytes got{y.to_bytes()};
      for (const NDArray& each : x) got.push_back(each.grad().to_bytes());
      if (want.empty()) want = got;
      EXPECT_TRUE(got == want) << name_of(dtype) << ", " << blocks << " blocks";
    }
  }
}

}  // namespace
}  // namespace sluice
