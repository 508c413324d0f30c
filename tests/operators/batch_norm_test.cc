// The row batch_norm: its kernels of the CPU against the reference's, over planes of every size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "operators_test_support.h"
#include "sluice/autograd/halves.h"
#include "sluice/operators/register.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

/// Numbers around `mean`. Far from 0 the rounding of a mean is much of the deviation.
NDArray numbers(const Dims& shape, DType dtype, std::uint64_t seed, double mean = 0) {
  RandomStream stream(seed);
  return (normal(shape, stream, 0, 1, DType::f64) * 3 + mean).to(dtype);
}

std::vector<NDArray> run(const Dims& shape, DType dtype, int parameters) {
  const NDArray x = numbers(shape, dtype, 1, 5e4).with_grad(), running_mean = zeros({shape[1]}, dtype),
                running_variance = ones({shape[1]}, dtype);
  NDArray weight, bias;
  if (parameters > 0) weight = numbers({shape[1]}, dtype, 2).with_grad();
  if (parameters > 1) bias = numbers({shape[1]}, dtype, 3).with_grad();
  const NDArray y = batch_norm(x, {running_mean, running_variance}, weight, bias, {.momentum = 0.5});
  sum(y * numbers(shape, dtype, 4)).backward();
  std::vector<NDArray> results{y, running_mean, running_variance, x.grad()};
  if (weight.defined()) results.push_back(weight.grad());
  if (bias.defined()) results.push_back(bias.grad());
  return results;
}

const std::vector<Dims>& shapes() {
  static const std::vector<Dims> list{{4, 3},           {9, 70},    {5, 1, 1},     {4, 3, 2, 2},   {2, 130, 7},
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
          // A gradient of a parameter is a sum over the elements of a channel.
          const double terms = i > 3 ? std::sqrt(static_cast<double>(shape.count() / shape[1])) : 0,
                       largest = std::max(terms, max(abs(plain[i])).item<double>()),
                       off = max(abs(fast[i].to(DType::f64) - plain[i].to(DType::f64))).item<double>();
          EXPECT_LE(off, (dtype == DType::f32 ? 1e-5 : 1e-9) * largest)
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
    const NDArray x = numbers(shape, DType::f32, 7, 500);
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
  const NDArray x = numbers({4, 8, 16, 16}, DType::f32, 6, 500).with_grad(), weight = ones({8}).with_grad(),
                bias = zeros({8}).with_grad();
  const NDArray y = batch_norm(x * 2, {}, weight, bias);
  std::int64_t bytes = 0;
  for (const auto& kept : kept_memory({y}, {})) bytes += static_cast<std::int64_t>(kept.bytes);
  EXPECT_EQ(bytes, 4 * (x.count() + 4 * 8));
}

/// Channels without any deviation, and squares that are out of the range of the dtype.
TEST(BatchNormRow, OfPlanesThatAreFlatOrLarge) {
  for (const Dims& shape : {Dims{3, 2, 10, 10}, Dims{3, 2, 5}}) {
    for (const double value : {0.0, 7.0, 1e30}) {
      EXPECT_EQ(max(abs(batch_norm(full(shape, value), {}))).item<float>(), 0) << value;
    }
    EXPECT_EQ(max(abs(batch_norm(full(shape, 1e200, DType::f64), {}))).item<double>(), 0);
  }
  for (const Dims& shape : {Dims{4, 2, 9, 9}, Dims{40, 3}}) {
    for (const double factor : {1e25, 1e-22}) {
      const NDArray x = numbers(shape, DType::f64, 5);
      const NDArray large = batch_norm((x * factor).to(DType::f32), {}, {}, {}, {.eps = 0});
      EXPECT_LE(max(abs(large.to(DType::f64) - batch_norm(x, {}, {}, {}, {.eps = 0}))).item<double>(), 1e-5) << factor;
    }
  }
}

/// The function's dtypes: the row computes in that of x, or in f32; parameters that are wider come after it.
TEST(BatchNormRow, OfOtherDtypes) {
  const NDArray x = numbers({6, 5, 3}, DType::f64, 1), weight = numbers({5}, DType::f64, 2),
                bias = numbers({5}, DType::f64, 3);
  const auto of = [&](DType dtype, DType of_weight, DType of_bias) {
    const NDArray mean = zeros({5}, DType::f64), variance = ones({5}, DType::f64);
    const NDArray y = batch_norm(x.to(dtype), {mean, variance}, weight.to(of_weight), bias.to(of_bias));
    EXPECT_TRUE(y.dtype() == dtype);
    EXPECT_NEAR(max(abs(mean - 0.1 * sum(x, {0, 2}) / 18)).item<double>(), 0, dtype == DType::bf16 ? 1e-2 : 1e-3);
    return y.to(DType::f64);
  };
  const NDArray wanted = batch_norm(x, {}, weight, bias);
  for (const auto& [dtype, of_weight, of_bias, bound] :
       {std::tuple(DType::f32, DType::f64, DType::f64, 1e-5), std::tuple(DType::f32, DType::f64, DType::f32, 1e-5),
        std::tuple(DType::f32, DType::f16, DType::f32, 2e-2), std::tuple(DType::f16, DType::f32, DType::f32, 2e-2),
        std::tuple(DType::bf16, DType::f32, DType::f32, 2e-1), std::tuple(DType::f16, DType::f16, DType::f16, 3e-2)}) {
    EXPECT_LE(max(abs(of(dtype, of_weight, of_bias) - wanted)).item<double>(), bound) << name_of(dtype);
  }
}

/// Counts calls of rows by name.
class Names final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    ++counts[std::string(call.row().name)];
    next(call);
  }
  std::map<std::string, int> counts;
};

/// Also where kernels are those of the reference, as on simulated devices.
TEST(BatchNormRow, IsOneCallForwardAndOneBack) {
  Engine engine({.mode_given = true, .providers = {sim_devices(1)}});
  set_default_engine(&engine);
  for (const Device device : {cpu(0), sim(0)}) {
    const DeviceScope scope(device);
    const auto names = std::make_shared<Names>();
    const InterpreterScope seen(names);
    const NDArray x = ones({2, 3, 4}).with_grad(), weight = ones({3}).with_grad(), bias = ones({3}).with_grad();
    sum(batch_norm(x, {}, weight, bias)).backward();
    sum(lstm(ones({2, 1, 3}), {ones({1, 2}), ones({1, 2})}, {ones({8, 3}), ones({8, 2}).with_grad()}).outputs)
        .backward();
    sum(gru(ones({2, 1, 3}), ones({1, 2}), {ones({6, 3}), ones({6, 2}).with_grad()}).outputs).backward();
    for (const char* row : {"batch_norm", "batch_norm_grad", "lstm", "lstm_grad", "gru", "gru_grad"}) {
      EXPECT_EQ(names->counts[row], 1) << row;
    }
    engine.wait_all();
  }
  set_default_engine(nullptr);
}

/// On a mesh whose places have channels the row runs at each, forward and back; a cut weight alone cuts nothing else.
TEST(BatchNormRow, OfChannelsThatAreCut) {
  Engine engine({.mode_given = true, .logical_cpus = 2});
  set_default_engine(&engine);
  {
    const Mesh mesh({{"tp", 2}});
    const NDArray x = numbers({4, 6, 3}, DType::f64, 1).with_grad(), weight = numbers({6}, DType::f64, 2).with_grad();
    const NDArray factors = numbers({4, 6, 3}, DType::f64, 3);
    const NDArray y = batch_norm(x, {}, weight);
    sum(y * factors).backward();
    const NDArray placed = place(x.detach(), mesh, {{"tp", shard(1)}}).with_grad(),
                  of_weight = place(weight.detach(), mesh, {{"tp", shard(0)}}).with_grad();
    const NDArray there = batch_norm(placed, {}, of_weight);
    EXPECT_TRUE(gathered(there).to_bytes() == y.to_bytes());
    sum(there * place(factors, mesh, {{"tp", shard(1)}})).backward();
    EXPECT_TRUE(gathered(placed.grad()).to_bytes() == x.grad().to_bytes());
    EXPECT_TRUE(gathered(of_weight.grad()).to_bytes() == weight.grad().to_bytes());

    const NDArray mean = place(zeros({6}, DType::f64), mesh, {}), variance = place(ones({6}, DType::f64), mesh, {});
    const NDArray whole = batch_norm(place(x.detach(), mesh, {}), {mean, variance}, of_weight.detach());
    EXPECT_LE(max(abs(gathered(whole) - y)).item<double>(), 1e-12);
    engine.wait_all();
  }
  set_default_engine(nullptr);
}

}  // namespace
}  // namespace sluice::testing
