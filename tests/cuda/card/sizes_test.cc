// Sizes that only a card computes in time: large arrays, odd sizes and offsets, many matrices (tests/card.sh).
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "../support.h"
#include "sluice/engine/bytes_in_words.h"

namespace sluice {
namespace {

NDArray numbers(const Dims& shape, DType dtype, std::uint64_t seed) {
  const DeviceScope on_the_host(cpu(0));
  RandomStream random(seed);
  return uniform(shape, random, -1, 1).to(dtype);
}

/// f on the card and on the CPU; the largest difference, over the largest number.
double difference(const std::vector<NDArray>& inputs, const std::function<NDArray(const std::vector<NDArray>&)>& f) {
  std::vector<NDArray> there;
  for (const NDArray& x : inputs) there.push_back(x.to(gpu(0)));
  NDArray got, want;
  {
    const DeviceScope scope(gpu(0));
    got = f(there).to(cpu(0)).to(DType::f64);
  }
  const DeviceScope scope(cpu(0));
  want = f(inputs).to(DType::f64);
  return max(abs(got - want)).item<double>() / max(abs(want)).item<double>();
}

TEST(CudaSizes, SumsOfManyNumbersAreAsExactAsTheCpus) {
  const OnCuda on;
  const DeviceScope scope(gpu(0));
  const std::int64_t side = size_or(1 << 14, 1 << 10), n = side * side;
  const double column = static_cast<double>(0.1F) * static_cast<double>(side),
               total = column * static_cast<double>(side);
  EXPECT_NEAR(sum(full({n}, 0.1)).item<float>(), total, 3e-7 * total);
  EXPECT_NEAR(sum(full({side, side}, 0.1), {0})(5).item<float>(), column, 3e-7 * column);
}

TEST(CudaSizes, MoreThan32BitsOfElements) {
  const OnCuda on;
  const DeviceScope scope(gpu(0));
  const std::int64_t n = size_or((std::int64_t{1} << 31) + 90, (1 << 20) + 90);
  NDArray x = zeros({n}, DType::u8);
  x(slice(n - 3, n)).fill(7);
  const NDArray y = x.copy();
  EXPECT_EQ(y(n - 1).item<std::uint8_t>(), 7);
  EXPECT_EQ(y(n - 4).item<std::uint8_t>(), 0);
  EXPECT_EQ((y + 1)(n - 2).item<std::uint8_t>(), 8);
  EXPECT_EQ(argmax(x, 0).item<std::int64_t>(), n - 3);
}

/// All of a card's memory in small blocks, and when they are gone most of it in one.
TEST(CudaSizes, MemoryComesBackInOnePiece) {
  const std::int64_t full_block = 1 << 28, block = size_or(full_block, 1 << 20);
  OnCuda on({.memory = static_cast<std::size_t>(block == full_block ? 0 : 32 * block)});
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  const DeviceScope scope(gpu(0));
  std::vector<NDArray> blocks;
  try {
    for (;;) {
      blocks.push_back(zeros({block}, DType::u8));
      blocks.back().wait();
    }
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("has no " + bytes_in_words(static_cast<double>(block)) + " left"),
              std::string::npos)
        << e.what();
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  blocks.clear();
  on.engine().wait_all();
  const NDArray large = zeros({count * block * 4 / 5}, DType::u8);
  EXPECT_EQ(large(-1).item<std::uint8_t>(), 0) << count << " blocks of " << block << " bytes";
}

TEST(CudaSizes, ManySmallMatrices) {
  const OnCuda on;
  for (const std::int64_t count : {65535, 65536, 70000}) {
    const std::vector<NDArray> inputs{numbers({count, 3, 5}, DType::f32, 1), numbers({count, 5, 2}, DType::f32, 2)};
    EXPECT_LE(difference(inputs, [](const auto& x) { return matmul(x[0], x[1]); }), 1e-6) << count;
  }
}

TEST(CudaSizes, OddMatricesAtOddOffsets) {
  const OnCuda on;
  const std::int64_t rows = size_or(4098, 130);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const double tolerance = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 1e-2;
    const std::vector<NDArray> inputs{numbers({rows, 1026}, dtype, 1), numbers({131, 1027}, dtype, 2),
                                      numbers({133}, dtype, 3)};
    const auto parts = [rows](const auto& x) {
      return std::vector{x[0](slice(1, rows), slice(1, 1026)), x[1](slice(0, 130), slice(2, 1027)),
                         x[2](slice(3, 133))};
    };
    const auto with = [&](const char* what, const std::function<NDArray(const std::vector<NDArray>&)>& f) {
      EXPECT_LE(difference(inputs, [&](const auto& x) { return f(parts(x)); }), tolerance)
          << what << ", " << name_of(dtype);
    };
    with("matmul", [](const auto& x) { return matmul(x[0], x[1].transpose()); });
    with("linear", [](const auto& x) { return linear(x[0], x[1], x[2]); });
    with("softmax", [](const auto& x) { return softmax(x[0]); });
    with("sum", [](const auto& x) { return sum(x[0], {1}); });
    with("a copy", [](const auto& x) { return x[0].transpose().copy(); });
    with("layer_norm", [](const auto& x) { return layer_norm(x[0]); });
  }
}

TEST(CudaSizes, RowsOfWords) {
  const OnCuda on;
  const std::vector<NDArray> inputs{numbers({size_or(64, 8), 50257}, DType::f32, 1)};
  EXPECT_LE(difference(inputs, [](const auto& x) { return softmax(x[0]); }), 2e-6);
  EXPECT_LE(
      difference(inputs, [](const auto& x) { return cross_entropy(x[0], arange(0, x[0].size(0)).to(x[0].device())); }),
      2e-6);
  EXPECT_LE(difference({numbers({64, 10}, DType::f32, 1)}, [](const auto& x) { return log_softmax(x[0]); }), 2e-6);
}

TEST(CudaSizes, NaNStaysInLinearWithRelu) {
  const OnCuda on;
  const DeviceScope scope(gpu(0));
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    NDArray x = ones({16, 32}).to(dtype);
    x(3, 4).fill(NAN);
    const NDArray y = linear(x, ones({8, 32}).to(dtype), ones({8}).to(dtype), {.relu = true});
    EXPECT_TRUE(std::isnan(y(3, 0).to(DType::f64).item<double>())) << name_of(dtype);
    EXPECT_EQ(y(2, 0).to(DType::f64).item<double>(), 33) << name_of(dtype);
  }
}

}  // namespace
}  // namespace sluice
