// Every operator on operands in any layout: views with strides that are negative, turned, wide or 0, and views whose
// elements share places. The oracle is the reference on contiguous copies of the same values.
#include <gtest/gtest.h>

#include <cmath>

#include "operand_layouts.h"

namespace sluice::testing {
namespace {

/// The result, and the gradients of `leaves`, of which `view` shows what the case is called with.
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

/// The largest of the finite elements.
double largest_of(const std::vector<double>& values) {
  double largest = 1e-30;
  for (double v : values) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  return largest;
}

/// `tolerance` is relative to `scale`.
void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, double tolerance, double scale,
                 const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(wanted[i])) continue;
    if (found[i] == wanted[i]) continue;
    ASSERT_LE(std::abs(found[i] - wanted[i]), tolerance * scale)
        << what << ", element " << i << ": " << found[i] << " and " << wanted[i];
  }
}

/// A case's operands in a layout: the buffers, and what views of them show.
struct Operands {
  std::vector<Layout> layouts;
  std::vector<std::vector<double>> buffers;
  Arrays values;  ///< what the views show, contiguous
  DType dtype;
  bool injective = true;

  Operands(const OperatorCase& c, int kind, DType type) : dtype(type) {
    for (const NDArray& x : make_inputs(c, dtype)) {
      layouts.push_back(layout_of(kind, x.shape()));
      injective = injective && layouts.back().injective;
      buffers.push_back(in_layout(layouts.back(), values_of(x)));
      std::vector<double> shown;
      each_place(layouts.back(), [&](std::size_t place) { shown.push_back(buffers.back()[place]); });
      values.push_back(from(shown, x.shape()).to(dtype));
    }
  }

  Arrays contiguous(const OperatorCase& c) const {
    Arrays leaves;
    for (const NDArray& x : values) leaves.push_back(leaf(x));
    return run(c, leaves, [&](std::size_t i) { return leaves[i]; });
  }

  Arrays viewed(const OperatorCase& c) const {
    Arrays leaves;
    for (const std::vector<double>& buffer : buffers)
      leaves.push_back(leaf(from(buffer, {static_cast<std::int64_t>(buffer.size())}).to(dtype)));
    return run(c, leaves, [&](std::size_t i) {
      return leaves[i].strided(layouts[i].shape, layouts[i].strides, layouts[i].offset);
    });
  }

  /// What run() gives for the buffers where its result i for contiguous leaves has these elements: gradients of
  /// elements that share a place are summed.
  std::vector<double> of_buffers(std::size_t i, const std::vector<double>& elements) const {
    if (i == 0) return elements;
    std::vector<double> sums(buffers[i - 1].size(), 0.0);
    auto next = elements.begin();
    each_place(layouts[i - 1], [&](std::size_t place) { sums[place] += *next++; });
    return sums;
  }

  /// What errors in run()'s results are relative to: the largest sum of the magnitudes that the layout adds up. An
  /// element of `results` counts with its size; with how far it moves where operands move by their size (one that
  /// jumps, as of sort or floor, counts as one that stays); and, where elements of an operand share a place, with what
  /// it is for operands without equal elements, since an operator's own terms may cancel where all are equal.
  std::vector<double> scales(const OperatorCase& c, const Arrays& results) const {
    constexpr double kStep = 0x1p-20;
    const auto moved = [&](std::uint64_t seed) {
      RandomStream stream(seed);
      Arrays leaves;
      for (const NDArray& x : values)
        leaves.push_back(leaf(x.to(DType::f64) * (1 + kStep * uniform(x.shape(), stream, -1, 1, DType::f64))));
      return run(c, leaves, [&](std::size_t i) { return leaves[i]; });
    };
    const KernelRankLimit reference_only(0);
    const Arrays first = moved(1), second = moved(2), third = moved(3);
    Arrays unequal;
    for (const NDArray& x : make_inputs(c, DType::f64)) unequal.push_back(leaf(x));
    const Arrays generic = run(c, unequal, [&](std::size_t i) { return unequal[i]; });
    std::vector<double> found;
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<double> sizes = values_of(results[i]);
      const std::vector<double> a = values_of(first[i]), b = values_of(second[i]), d = values_of(third[i]);
      const double usual = injective ? 0 : largest_of(values_of(generic[i]));
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        const double off = std::max(std::abs(a[k] - b[k]), std::abs(a[k] - d[k])) / kStep;
        sizes[k] = std::abs(sizes[k]) + (off < 1e4 ? off : 0) + usual;
      }
      found.push_back(largest_of(of_buffers(i, sizes)));
    }
    return found;
  }

 private:
  NDArray leaf(const NDArray& x) const {
    const NDArray copy = x.to(test::device()).copy();
    return is_floating(x.dtype()) ? copy.with_grad() : copy;
  }
};

class Layouts : public ::testing::TestWithParam<OperatorCase> {};

TEST_P(Layouts, GiveTheValuesAndGradientsOfContiguousCopies) {
  const OperatorCase& c = GetParam();
  for (int kind = 0; kind < kLayoutCount; ++kind) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const bool half = size_of(dtype) == 2;
      if (half && c.by_lapack) continue;
      const std::string what = c.name + ", " + kLayouts[kind] + ", " + std::string(name_of(dtype));
      SCOPED_TRACE(what);
      const Operands operands(c, kind, dtype);
      Arrays plain, of_views;
      {
        const KernelRankLimit reference_only(0);
        plain = operands.contiguous(c);
        of_views = operands.viewed(c);
      }
      const Arrays fast = operands.viewed(c);
      const std::vector<double> scales = operands.scales(c, plain);
      const double bound = dtype == DType::f32   ? c.tolerance
                           : dtype == DType::f64 ? 1e-12
                           : dtype == DType::f16 ? 4 * 0x1p-11
                                                 : 4 * 0x1p-8;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const std::vector<double> sums = operands.of_buffers(i, values_of(plain[i]));
        const auto count = static_cast<std::int64_t>(sums.size());
        const std::vector<double> wanted = values_of(from(sums, {count}).to(dtype));  // infinite beyond its range
        const std::string which = i == 0 ? "result" : "gradient of input " + std::to_string(i - 1);
        expect_near(values_of(of_views[i]), wanted, bound, scales[i], which + " by the reference");
        expect_near(values_of(fast[i]), wanted, bound, scales[i], which);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Integers and bool: to the bit where the result is of such a dtype; what takes floating operands alone says so in
// every layout.
TEST_P(Layouts, GiveTheIntegersOfContiguousCopies) {
  OperatorCase c = GetParam();
  c.gradient = false;
  for (int kind = 0; kind < kLayoutCount; ++kind) {
    for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64, DType::boolean}) {
      const std::string what = c.name + ", " + kLayouts[kind] + ", " + std::string(name_of(dtype));
      SCOPED_TRACE(what);
      const Operands operands(c, kind, dtype);
      Arrays plain;
      try {
        const KernelRankLimit reference_only(0);
        plain = operands.contiguous(c);
      } catch (const ArrayError&) {
        EXPECT_THROW(operands.viewed(c), ArrayError);
        continue;
      }
      const NDArray fast = operands.viewed(c)[0];
      ASSERT_EQ(fast.dtype(), plain[0].dtype());
      const std::vector<double> wanted = values_of(plain[0]);
      expect_near(values_of(fast), wanted, is_floating(fast.dtype()) ? c.tolerance : 0, largest_of(wanted), "result");
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
