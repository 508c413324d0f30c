// Sums of many f32 numbers in every operator that has some: the result and the gradients are those of f64 but for the
// roundings of single numbers, whatever the number of terms. The oracle is the same operator in f64 on the same
// numbers; sums of ones are known. SLUICE_DEEP=1 takes 10^6 and 10^7 terms instead of 10^5, and prints all errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "long_sums_networks.h"
#include "operators_test_support.h"

namespace sluice::testing {
namespace {

bool is_deep() { return std::getenv("SLUICE_DEEP") != nullptr; }

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

/// The largest difference, relative to the largest exact value; infinity where a number is none.
double error_of(const NDArray& found, const NDArray& exact) {
  const std::vector<double> a = found.to(DType::f64).to_vector<double>(), b = exact.to_vector<double>();
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    most = std::max(most, std::abs(a[i] - b[i]));
  }
  const double scale = largest_of(b);
  return most == 0 ? 0 : most / scale;
}

/// The result and the gradients of what is floating, of the sum of the result by weights that do not depend on a dtype.
Arrays run(const LongSum& c, const Arrays& inputs) {
  Arrays leaves, operands;
  for (const NDArray& x : inputs) {
    operands.push_back(is_floating(x.dtype()) && c.gradient ? x.with_grad() : x);
    if (is_floating(x.dtype()) && c.gradient) leaves.push_back(operands.back());
  }
  const NDArray y = c.call(operands);
  Arrays results{y.detach()};
  if (!c.gradient) return results;
  RandomStream stream(7);
  const NDArray weights = uniform(y.shape(), stream, 0.5, 1.5, DType::f32).to(y.dtype());
  for (const NDArray& gradient : grad(sum(y * weights), leaves)) {
    if (gradient.defined()) results.push_back(gradient);
  }
  return results;
}

void check(const LongSum& c, std::int64_t n) {
  const Arrays inputs = c.inputs(n);
  Arrays wide;
  for (const NDArray& x : inputs) wide.push_back(is_floating(x.dtype()) ? x.to(DType::f64) : x);
  const Arrays found = run(c, inputs), exact = run(c, wide);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = error_of(found[i], exact[i]), bound = i == 0 ? c.bound : c.gradient_bound;
    const std::string what = i == 0 ? "result" : "gradient " + std::to_string(i);
    if (is_deep())
      std::printf("%-40s n %-9lld %-11s %.1e of %.1e\n", c.name.c_str(), static_cast<long long>(n), what.c_str(), error,
                  bound);
    EXPECT_LE(error, bound) << c.name << ", " << n << " terms, " << what;
  }
}

TEST(LongSums, AreThoseOfF64) {
#ifdef SLUICE_SANITIZED
  std::vector<std::int64_t> sizes{20'000};
#else
  std::vector<std::int64_t> sizes{100'000};
#endif
  if (is_deep()) sizes.insert(sizes.end(), {1'000'000, 10'000'000});
  for (const LongSum& c : long_sums()) {
    for (const std::int64_t n : sizes) {
      if (n <= c.most) check(c, n);
    }
  }
}

/// In f16 and bf16 the result is that of f64, rounded.
TEST(LongSums, OfHalvesAreRoundedOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const double rounding = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (const LongSum& c : long_sums_of_halves()) {
      Arrays inputs, wide;
      for (const NDArray& x : c.inputs(60'000)) {
        inputs.push_back(x.to(dtype));
        wide.push_back(inputs.back().to(DType::f64));
      }
      EXPECT_LE(error_of(c.call(inputs), c.call(wide)), 1.01 * rounding) << c.name << " in " << name_of(dtype);
    }
  }
}

TEST(LongSums, OfOnesAreCounts) {
  const std::int64_t n = is_deep() ? 40'000'000 : 17'000'000;  // 2^24 and one more is no f32
  const std::int64_t outer = is_deep() ? 2 : 1;
  const NDArray x = ones({1}).broadcast_to({outer, n, 2});
  EXPECT_EQ(sum(x, 1).to_vector<float>(),
            std::vector<float>(static_cast<std::size_t>(2 * outer), static_cast<float>(n)));
  const NDArray row = ones({1}).broadcast_to({n});
  EXPECT_EQ(dot(row, row).item<float>(), static_cast<float>(n));
}

/// Pieces and trees depend on shapes alone.
TEST(LongSums, HaveTheSameBitsOnAnyNumberOfThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const LongSum& c : long_sums()) {
      for (const NDArray& y : run(c, c.inputs(20'000))) bytes.push_back(y.to_bytes());
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  for (const int threads : {2, 4}) EXPECT_TRUE(one == results(threads)) << threads;
}

}  // namespace
}  // namespace sluice::testing
