// cost_of(): against formulas of the test's own.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sluice/ndarray/operation_record.h"
#include "sluice/operators/attention.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/decomposition_conventions.h"
#include "sluice/operators/lines.h"
#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

using Specs = std::vector<Spec>;

/// Before a test adds rows of its own.
const std::vector<const Operator*> rows_of_the_library = Registry::instance().all();

Cost cost(const char* row, const std::vector<Dims>& shapes, const Attributes& attributes = {}) {
  Specs specs;
  for (const Dims& shape : shapes) specs.push_back({shape, DType::f32, cpu(0)});
  return cost_of(Registry::instance().get(row), specs, attributes);
}

/// Of what a thread pushed.
Cost cost_of_all(const RecordScope& scope) {
  Cost sum;
  for (const OperationRecord& record : scope.records()) {
    if (!record.row) continue;
    Specs specs;
    for (const OperandRecord& x : record.input_operands()) specs.push_back({x.shape, x.dtype, x.device});
    const Cost one = cost_of(static_cast<const Operator&>(*record.row), specs, record.attributes, cpu(0));
    sum.flops += one.flops;
    sum.bytes += one.bytes;
  }
  return sum;
}

TEST(Costs, EveryRowOfTheLibraryHasOne) {
  EXPECT_GT(rows_of_the_library.size(), 150U);
  for (const Operator* row : rows_of_the_library) {
    EXPECT_TRUE(row->cost) << row->name;
  }
}

TEST(Costs, OfProducts) {
  const Cost plain = cost("matmul", {{3, 4}, {4, 5}}, MatmulAttributes{});
  EXPECT_EQ(plain.flops, 2 * 3 * 4 * 5);
  EXPECT_EQ(plain.bytes, 4 * (3 * 4 + 4 * 5 + 3 * 5));
  EXPECT_EQ(cost("matmul", {{4, 3}, {5, 4}}, MatmulAttributes{.transpose_a = true, .transpose_b = true}).flops,
            2 * 3 * 4 * 5);
  EXPECT_EQ(cost("batch_matmul", {{7, 1, 3, 4}, {2, 4, 5}}, MatmulAttributes{}).flops, 7 * 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(cost("linear", {{3, 4}, {5, 4}, {5}}, LinearAttributes{}).flops, 2 * 3 * 4 * 5 + 3 * 5);
  // 2^31 times 2^31: no integer overflows.
  const std::int64_t large = std::int64_t{1} << 31;
  EXPECT_EQ(cost("matmul", {{1, large}, {large, 1 << 20}}, MatmulAttributes{}).flops, 0x1p52);
}

TEST(Costs, OfConvolutions) {
  // Images of (2, 3, 9, 8) by (5, 3, 3, 2), stride 2, padding 1: results of (2, 5, 5, 5).
  ConvAttributes a;
  a.stride = 2;
  a.padding = 1;
  const double terms = 2.0 * 2 * 5 * 5 * 5 * 3 * 3 * 2;
  EXPECT_EQ(cost("conv2d", {{2, 3, 9, 8}, {5, 3, 3, 2}}, a).flops, terms);
  EXPECT_EQ(cost("conv2d_relu", {{2, 3, 9, 8}, {5, 3, 3, 2}, {5}}, a).flops, terms + 2 * 5 * 5 * 5);
  ConvAttributes of_x = a, of_w = a;
  of_x.wanted = {2, 3, 9, 8};
  of_w.wanted = {5, 3, 3, 2};
  EXPECT_EQ(cost("conv2d_input_grad", {{2, 5, 5, 5}, {5, 3, 3, 2}}, of_x).flops, terms);
  EXPECT_EQ(cost("conv2d_weight_grad", {{2, 3, 9, 8}, {2, 5, 5, 5}}, of_w).flops, terms);
}

TEST(Costs, OfAttentionCountThePairsThatSeeEachOther) {
  constexpr int kHeads = 6, kSize = 16, kValue = 24;
  for (const auto& [n, m] : {std::pair(7, 7), std::pair(3, 7), std::pair(7, 3)}) {
    for (const bool causal : {false, true}) {
      double pairs = 0;
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < m; ++j) pairs += !causal || j <= i + m - n ? 1 : 0;
      }
      pairs *= 2 * kHeads;
      const AttentionAttributes a{.scale = 0.25, .causal = causal};
      const Dims q{2, kHeads, n, kSize}, k{2, 2, m, kSize}, v{2, 2, m, kValue}, y{2, kHeads, n, kValue};
      EXPECT_EQ(cost("attention", {q, k, v}, a).flops, pairs * (2 * kSize + 2 * kValue + 5)) << n << " " << m;
      EXPECT_EQ(cost("attention_grad", {q, k, v, y, {2, kHeads, n}, y}, a).flops, pairs * (6 * kSize + 4 * kValue + 5));
    }
  }
}

TEST(Costs, OfElementsAndMoves) {
  EXPECT_EQ(cost("add", {{5, 1}, {3}}).flops, 15);
  EXPECT_EQ(cost("add", {{5, 1}, {3}}).bytes, 4 * (5 + 3 + 15));
  EXPECT_EQ(cost("sum", {{5, 3}}, ReduceAttributes{.axes = 1}).flops, 15);
  EXPECT_EQ(cost("copy", {{5, 3}}).flops, 0);
  EXPECT_EQ(cost("copy", {{5, 3}}).bytes, 120);
  EXPECT_EQ(cost("cholesky", {{2, 6, 6}}, DecompositionAttributes{}).flops, 2 * 6 * 6 * 6 / 3);
  // A table of a million rows is not read for three of them.
  const Specs rows{{{1000000, 8}, DType::f32, cpu(0)}, {{3}, DType::i64, cpu(0)}};
  EXPECT_EQ(cost_of(Registry::instance().get("take_rows"), rows).bytes, 2 * 3 * 8 * 4 + 3 * 8);
  for (const char* name : {"matmul", "sum", "sort", "cholesky", "svd"}) {
    EXPECT_THROW(cost(name, {}), ArrayError) << name;
  }
  EXPECT_EQ(cost("sort", {{0, 4}}, LineAttributes{.axis = 0}).flops, 0);
  EXPECT_EQ(cost("svd", {{3, 0, 4}}, DecompositionAttributes{}).flops, 0);
}

/// Backward of a chain of layers is twice its forward, but for the input's gradient, which nobody asks for.
TEST(Costs, OfATrainingStep) {
  constexpr int kRows = 32, kWidth = 24, kLayers = 3;
  std::vector<NDArray> weights;
  for (int i = 0; i < kLayers; ++i) weights.push_back(full({kWidth, kWidth}, 0.01).with_grad());
  const NDArray x = ones({kRows, kWidth});
  const double product = 2.0 * kRows * kWidth * kWidth, elements = kRows * kWidth;
  const RecordScope scope;
  NDArray y = x;
  for (const NDArray& w : weights) y = matmul(y, w);
  EXPECT_EQ(cost_of_all(scope).flops, kLayers * product);
  sum(y).backward();
  const double all = (3 * kLayers - 1) * product;
  const double got = cost_of_all(scope).flops;
  EXPECT_GE(got, all);
  EXPECT_LE(got, all + 4 * elements);  // the sum, and its gradient
}

TEST(Costs, OfAProgramsOwnRow) {
  const Operator& row = add_operator("test_costs_cube", [](Operator& op) {
    op.elementwise = true;
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
  });
  EXPECT_EQ(cost_of(row, Specs{{{4, 5}, DType::f64, cpu(0)}}).flops, 20);
  const Operator& other = add_operator("test_costs_moves", [](Operator& op) {
    op.infer = [](Signature& s) { s.output({}, s.dtype()); };
    op.cost = [](const Signature& s) { return Cost{7, static_cast<double>(s.inputs())}; };
  });
  EXPECT_EQ(cost_of(other, Specs{{{4, 5}, DType::f64, cpu(0)}}).flops, 7);
}

}  // namespace
}  // namespace sluice::testing
