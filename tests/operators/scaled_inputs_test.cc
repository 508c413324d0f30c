// Inputs of 1e-30 to 1e30: where a result and its gradients fit f32, what lies between must not leave the range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "ops_table.h"

namespace sluice::testing {
namespace {

using Numbers = std::vector<double>;

/// The result, and the gradient of each input of a sum of its elements with weights of their own.
std::vector<Numbers> results(const OperatorCase& c, const Arrays& inputs, DType dtype) {
  Arrays x;
  for (const NDArray& input : inputs) {
    const NDArray own = input.to(dtype).copy();
    x.push_back(c.gradient ? own.with_grad() : own);
  }
  const NDArray y = c.call(x);
  std::vector<Numbers> all{values_of(y.detach())};
  if (!c.gradient || !y.requires_grad()) return all;
  RandomStream weights(9);
  sum(y * uniform(y.shape(), weights, 0.5, 1.5).to(y.dtype())).backward();
  for (const NDArray& input : x) all.push_back(input.grad().defined() ? values_of(input.grad()) : Numbers());
  return all;
}

/// With room for the sums that the table's calls make of it.
bool fits(const Numbers& values) {
  return std::ranges::all_of(values, [](double v) { return v == 0 || (std::abs(v) < 1e38 && std::abs(v) > 1e-36); });
}

/// The largest difference, beside the largest value; infinite where `got` has no number.
double difference(const Numbers& got, const Numbers& right, double floor) {
  double most = floor, worst = 0;
  for (const double v : right) most = std::max(most, std::abs(v));
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double off = std::abs(got[i] - right[i]);
    worst = std::isfinite(got[i]) ? std::max(worst, off == 0 ? 0 : off / most) : HUGE_VAL;
  }
  return worst;
}

// f64 is the oracle: there nothing leaves the range. Each input is scaled by itself, because products of two such
// numbers leave it for good reason.
TEST(ScaledInputs, GiveWhatF64GivesWhereF32CanHoldIt) {
  int compared = 0;
  for (const OperatorCase& c : operator_cases()) {
    const Arrays plain = make_inputs(c, DType::f32);
    for (const double scale : {1e30, 1e25, 1e-25, 1e-30}) {
      for (std::size_t which = 0; which < plain.size(); ++which) {
        Arrays inputs = plain;
        inputs[which] = (plain[which].to(DType::f64) * scale).to(DType::f32);
        std::vector<Numbers> right;
        try {
          right = results(c, inputs, DType::f64);
        } catch (const std::exception&) {
          continue;  // refused: the case makes indices or pivots of these numbers
        }
        if (!fits(right[0])) continue;
        const std::vector<Numbers> got = results(c, inputs, DType::f32);
        ASSERT_EQ(got.size(), right.size()) << c.name;
        // Of scores of 1e25 one takes all, and the gradients of queries and keys are differences of equal numbers.
        const double floor = c.name.starts_with("attention") ? scale : 0;
        for (std::size_t k = 0; k < right.size(); ++k) {
          if (!fits(right[k])) continue;
          ++compared;
          EXPECT_LT(difference(got[k], right[k], k > 0 ? floor : 0), 1e-4)
              << c.name << ", input " << which << " times " << scale
              << (k == 0 ? ": the result" : ": the gradient of input " + std::to_string(k - 1));
        }
      }
    }
  }
  RecordProperty("comparisons", compared);
  EXPECT_GT(compared, 5000);
}

}  // namespace
}  // namespace sluice::testing
