// The row batch_norm: its kernels of the CPU against the reference's, over planes of every size.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "operators_test_support.h"
#include "sluice/autograd/halves.h"
#include "sluice/operators/register.h"
#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

/// Numbers that lie far from 0, so that sums of squares would lose the variance.
NDArray numbers(const Dims& shape, DType dtype, std::uint64_t seed) {
  RandomStream stream(seed);
  return (normal(shape, stream, 0, 1, DType::f64) * 3 + 500).to(dtype);
}

std::vector<NDArray> run(const Dims& shape, DType dtype, int parameters) {
  const NDArray x = numbers(shape, dtype, 1).with_grad(), running_mean = zeros({shape[1]}, dtype),
                running_variance = ones({shape[1]}, dtype);
  NDArray weight, bias;
  if (parameters > 0) weight = (numbers({shape[1]}, DType::f64, 2) / 500).to(dtype).with_grad();
  if (parameters > 1) bias = numbers({shape[1]}, dtype, 3).with_grad();
  const NDArray y = batch_norm(x, {running_mean, running_variance}, weight, bias, {.momentum = 0.5});
  sum(y * numbers(shape, dtype, 4) / 500).backward();
  std::vector<NDArray> results{y, running_mean, running_variance, x.grad()};
  if (weight.defined()) results.push_back(weight.grad());
  if (bias.defined()) results.push_back(bias.grad());
  return results;
}

const std::vector<Dims>& shapes() {
  static const std::vector<Dims> list{{2, 3},           {9, 70},    {5, 1, 1},     {4, 3, 2, 2},   {2, 130, 7},
                                      {3, 5, 63},       {3, 5, 64}, {2, 2, 9, 9},  {6, 2, 32, 32}, {1, 1, 700},
                                      {2, 1, 5, 1, 13}, {3, 0, 4},  {40, 65, 1, 2}};
  return list;
}

TEST(BatchNormRow, HasTheReferencesNumbers) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Dims& shape : shapes()) {
      for (int parameters = 0; parameters < 3; ++parameters) {
        const std::vector<NDArray> fast = run(shape, dtype, parameters);
        std::vector<NDArray> plain;
        {
          const KernelRankLimit reference_only(0);
          plain = run(shape, dtype, parameters);
        }
        for (std::size_t i = 0; i < fast.size(); ++i) {
          ASSERT_TRUE(fast[i].shape() == plain[i].shape());
          if (fast[i].count() == 0) continue;
          // Gradients of parameters are sums over all elements of a channel, whose terms are about 1.
          const double terms = i > 3 ? static_cast<double>(shape.count() / shape[1]) : 1,
                       largest = std::max(terms, max(abs(plain[i])).item<double>()),
                       off = max(abs(fast[i].to(DType::f64) - plain[i].to(DType::f64))).item<double>();
          EXPECT_LE(off, (dtype == DType::f32 ? 2e-6 : 3e-12) * largest)
              << to_string(shape) << ", " << name_of(dtype) << ", " << parameters << " parameters, array " << i;
        }
      }
    }
  }
}

/// Whether it is computed beside others or alone, a channel has the same bits.
TEST(BatchNormRow, AChannelDependsOnItselfAlone) {
  for (const Dims& shape : {Dims{5, 67, 3}, Dims{4, 3, 10, 10}, Dims{30, 100}}) {
    const auto outcome = [](const NDArray& some) {
      const NDArray x = some.detach().with_grad(), y = batch_norm(x, {});
      sum(square(y) * x).backward();
      return std::pair(y, x.grad());
    };
    const NDArray x = numbers(shape, DType::f32, 7);
    const auto [y, gradient] = outcome(x);
    for (const std::int64_t k : {std::int64_t{0}, shape[1] / 2, shape[1] - 1}) {
      const auto [alone, of_alone] = outcome(x.narrow(1, k, k + 1).copy());
      EXPECT_TRUE(alone.to_bytes() == y.narrow(1, k, k + 1).copy().to_bytes()) << to_string(shape);
      EXPECT_TRUE(of_alone.to_bytes() == gradient.narrow(1, k, k + 1).copy().to_bytes()) << to_string(shape);
    }
  }
}

TEST(BatchNormRow, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const Dims& shape : {Dims{300, 200}, Dims{8, 48, 4, 4}, Dims{8, 24, 16, 16}}) {
      for (const NDArray& y : run(shape, DType::f32, 2)) bytes.push_back(y.to_bytes());
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  for (const int threads : {2, 4}) EXPECT_TRUE(one == results(threads)) << threads;
}

/// For its gradient it keeps x and four numbers for each channel; it makes no copy of x, and keeps no result.
TEST(BatchNormRow, KeepsItsInputAlone) {
  const NDArray x = numbers({4, 8, 16, 16}, DType::f32, 6).with_grad(), weight = ones({8}).with_grad(),
                bias = zeros({8}).with_grad();
  const NDArray y = batch_norm(x * 2, {}, weight, bias);
  std::int64_t bytes = 0;
  for (const auto& kept : kept_memory({y}, {})) bytes += static_cast<std::int64_t>(kept.bytes);
  EXPECT_EQ(bytes, 4 * (x.count() + 4 * 8));
}

/// Planes without any deviation, and planes whose squares are out of the range of f32.
TEST(BatchNormRow, OfPlanesThatAreFlatOrLarge) {
  const NDArray flat = batch_norm(full({3, 2, 10, 10}, 7), {});
  EXPECT_EQ(max(abs(flat)).item<float>(), 0);
  for (const double factor : {1e25, 1e-22}) {
    const NDArray x = numbers({4, 2, 9, 9}, DType::f64, 5) - 500;
    const NDArray large = batch_norm((x * factor).to(DType::f32), {}, {}, {}, {.eps = 0});
    EXPECT_LE(max(abs(large.to(DType::f64) - batch_norm(x, {}, {}, {}, {.eps = 0}))).item<double>(), 1e-5) << factor;
  }
}

}  // namespace
}  // namespace sluice::testing
