// Every operator on operands in any layout: views with strides that are negative, turned, wide or 0, and views whose
// elements share places. The oracle is the reference on contiguous copies of the same values.
#include <gtest/gtest.h>

#include <cmath>

#include "operand_layouts.h"

namespace sluice::testing {
namespace {

/// The result, and the gradients of `leaves`, of which `views` shows what the case is called with.
Arrays run(const OperatorCase& c, const Arrays& leaves, const std::function<NDArray(std::size_t)>& view) {
  Arrays operands;
  for (std::size_t i = 0; i < leaves.size(); ++i) operands.push_back(view(i));
  const NDArray y = c.call(operands);
  Arrays results{y.detach()};
  if (!c.gradient) return results;
  RandomStream stream(99);
  const NDArray weights = uniform(y.shape(), stream, 0.5, 1.5, DType::f64).to(y.dtype());
  const Arrays gradients = grad(sum(y * weights), leaves);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

/// Relative to the largest element. Where elements are equal, results may be sums that cancel: then at least to 300,
/// since norms of equal elements divide operands of the order of 1 by the root of 1e-5.
void expect_equal(const std::vector<double>& found, const std::vector<double>& wanted, double tolerance, bool cancels,
                  const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  double largest = cancels ? 300 : 1e-30;
  for (double v : wanted) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(wanted[i])) continue;
    if (found[i] == wanted[i]) continue;
    ASSERT_LE(std::abs(found[i] - wanted[i]), tolerance * largest)
        << what << ", element " << i << ": " << found[i] << " and " << wanted[i];
  }
}

class Layouts : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(Layouts, GiveTheValuesAndGradientsOfContiguousCopies) {
  const OperatorCase& c = GetParam();
  const Device device = test::device();
  for (int kind = 0; kind < kLayoutCount; ++kind) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::string what = c.name + ", " + kLayouts[kind] + ", " + std::string(name_of(dtype));
      SCOPED_TRACE(what);
      std::vector<Layout> layouts;
      std::vector<std::vector<double>> buffers;
      Arrays values;  // what the views show, contiguous
      bool injective = true;
      for (const NDArray& x : make_inputs(c, dtype)) {
        layouts.push_back(layout_of(kind, x.shape()));
        injective = injective && layouts.back().injective;
        buffers.push_back(in_layout(layouts.back(), values_of(x)));
        std::vector<double> shown;
        each_place(layouts.back(), [&](std::size_t place) { shown.push_back(buffers.back()[place]); });
        values.push_back(from(shown, x.shape()).to(dtype));
      }
      const auto contiguous = [&] {
        Arrays leaves;
        for (const NDArray& x : values) leaves.push_back(x.to(device).copy().with_grad());
        return run(c, leaves, [&](std::size_t i) { return leaves[i]; });
      };
      const auto viewed = [&] {
        Arrays leaves;
        for (const std::vector<double>& buffer : buffers) {
          leaves.push_back(from(buffer, {static_cast<std::int64_t>(buffer.size())}).to(dtype).to(device).with_grad());
        }
        return run(c, leaves, [&](std::size_t i) {
          return leaves[i].strided(layouts[i].shape, layouts[i].strides, layouts[i].offset);
        });
      };
      Arrays plain, of_views;
      {
        const KernelRankLimit reference_only(0);
        plain = contiguous();
        of_views = viewed();
      }
      const Arrays fast = viewed();
      const double bound = dtype == DType::f32 ? c.tolerance : 1e-12;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        std::vector<double> wanted = values_of(plain[i]);
        if (i > 0) {  // the gradient of the buffer
          std::vector<double> sums(buffers[i - 1].size(), 0.0);
          auto next = wanted.begin();
          each_place(layouts[i - 1], [&](std::size_t place) { sums[place] += *next++; });
          wanted = sums;
        }
        const std::string which = i == 0 ? "result" : "gradient of input " + std::to_string(i - 1);
        expect_equal(values_of(of_views[i]), wanted, bound, !injective, which + " by the reference");
        expect_equal(values_of(fast[i]), wanted, bound, !injective, which);
      }
      if (HasFatalFailure()) return;
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<OperatorCase>& test) {
  std::string name = std::to_string(test.index) + "_" + test.param.name;
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, Layouts, ::testing::ValuesIn(operator_cases()), test_name);

}  // namespace
}  // namespace sluice::testing
