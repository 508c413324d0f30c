// gelu where formulas on ordinary numbers do not look: at infinities and far from 0, in every dtype and by every
// kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops_table.h"

namespace sluice::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

const std::vector<double> kInputs{-kInfinity, -1000, -40, 0, 40, 1000, kInfinity, kNan};

/// Calls check(x, form, where) for kInputs in each floating dtype, both forms, and the kernels of CPU and reference.
template <class F>
void for_each_form(F check) {
  for (const int rank : {0, Operator::kAnyRank}) {
    const KernelRankLimit limit(rank);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const bool tanh : {false, true}) {
        // Many copies, so that vectors are full.
        const NDArray x = from(kInputs, {8, 1}).to(dtype).broadcast_to({8, 33}).copy();
        SCOPED_TRACE((tanh ? "tanh, " : "erf, ") + std::string(name_of(dtype)) + (rank == 0 ? ", reference" : ", cpu"));
        check(x, [tanh](const NDArray& of) { return gelu(of, {.tanh = tanh}); });
      }
    }
  }
}

void expect_rows(const NDArray& got, const std::vector<double>& wanted, const char* what) {
  const std::vector<double> values = values_of(got);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double want = wanted[i / 33];
    EXPECT_TRUE(std::isnan(want) ? std::isnan(values[i]) : values[i] == want)
        << what << " at " << kInputs[i / 33] << ": " << values[i] << ", not " << want;
  }
}

TEST(Gelu, IsZeroAtMinusInfinityAndTheIdentityFarAboveZero) {
  for_each_form([](const NDArray& x, auto f) { expect_rows(f(x), {0, 0, 0, 0, 40, 1000, kInfinity, kNan}, "gelu"); });
}

TEST(Gelu, GradientsAreFiniteAtInfinity) {
  for_each_form([](const NDArray& x, auto f) {
    const NDArray leaf = x.with_grad();
    sum(f(leaf) * 3).backward();
    expect_rows(leaf.grad(), {0, 0, 0, 1.5, 3, 3, 3, kNan}, "the gradient");
  });
}

TEST(Gelu, SecondGradientsAreFiniteAtInfinity) {
  for_each_form([](const NDArray& x, auto f) {
    const NDArray leaf = x.detach()(slice(0, 7)).copy().with_grad();
    const NDArray first = grad(sum(f(leaf)), {leaf}, {.create_graph = true}).at(0);
    expect_rows(first, {0, 0, 0, 0.5, 1, 1, 1}, "the gradient made of operators");
    const NDArray second = grad(sum(first), {leaf}).at(0);
    for (const double value : values_of(second)) EXPECT_TRUE(std::isfinite(value)) << value;
    expect_rows(second(slice(0, 2)), {0, 0}, "the second gradient");
    expect_rows(second(slice(5, 7)), {0, 0}, "the second gradient, above 0,");
  });
}

}  // namespace
}  // namespace sluice::testing
