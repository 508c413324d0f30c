// Every floating row in f16 and bf16, by the reference and by the CPU's own kernels, against the same row in f64 on the
// same values.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ops_table.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/lines.h"

namespace sluice::testing {
namespace {

/// An input: uniform numbers, or whole numbers below `below` with a dtype of their own.
struct Input {
  Dims shape;
  double low = -2, high = 2;
  std::int64_t below = 0;
  DType dtype = DType::i64;
  bool whole = false;  ///< the numbers are whole, so that some are equal
  bool wide = false;   ///< f32 beside inputs of 16 bits
  bool in_f64 = false;
};

/// How a row is called by itself.
struct RowCase {
  std::vector<Input> inputs = {};
  std::function<Attributes(DType)> attributes = [](DType) { return Attributes(); };
  /// How far an element may be from that in f64, in roundings (2^-11 of the number for f16, 2^-8 for bf16). Kernels
  /// compute in f32 and round once, so it is 1; 0 for rows that only move elements, or answer with bool and integers.
  double bound = 1;
  std::vector<Input> updated = {};  ///< outputs that exist before, and are read too
  /// The values wanted, where the row in f64 is not the same function of its inputs.
  std::function<std::vector<double>()> wanted = {};
};

template <class A>
std::function<Attributes(DType)> always(A value) {
  return [value](DType) { return Attributes(value); };
}

/// f16 and bf16 numbers are the f32 draw, rounded; a draw in f64 is another.
template <class Draw>
std::function<std::vector<double>()> draws(Draw draw) {
  return [draw] {
    std::vector<double> values;
    for (std::uint64_t i = 0; i < 35; ++i)
      values.push_back(-1 + 3 * static_cast<double>(draw(ElementKey({7, 8, 9}), i)));
    return values;
  };
}
std::function<Attributes(DType)> random_attributes(double b) {
  return [b](DType dtype) { return Attributes(RandomAttributes{7, 8, 9, 0, -1, b, {5, 7}, dtype}); };
}

std::map<std::string, RowCase> cases() {
  const Input s{{5, 7}}, rows{.shape = {3}, .below = 5}, labels{.shape = {5}, .below = 7};
  const Input image{{2, 3, 6, 5}}, kernel{{4, 3, 3, 3}}, result{{2, 4, 4, 3}}, bias{{4}};
  const auto conv = [](bool relu, Dims wanted) { return always(ConvAttributes{1, 0, relu, wanted}); };
  const auto pool = [](Dims wanted) { return always(PoolAttributes{3, 2, 1, wanted}); };
  const auto reduce = [](double scale) { return always(ReduceAttributes{0b10, false, scale}); };
  const auto linear = [](bool relu) { return always(LinearAttributes{relu}); };
  const auto momentum = always(SgdAttributes{0.1, 0.9, 0.01});
  const Input second{{5, 7}, 0, 1};  // of Adam's moments
  const Input whole{.shape = {5, 7}, .low = -4, .high = 4, .whole = true}, infinite{{5, 7}, 1e300, 2e300},
      no_number{{5, 7}, std::nan(""), 1};
  const RowCase of_whole{.inputs = {whole, whole}, .bound = 0};
  const auto line = [](std::int64_t size) { return always(LineAttributes{1, false, size}); };
  const Input places{.shape = {5, 7}, .below = 4};
  return {
      {"add_along_axis", {.inputs = {s, places}, .attributes = line(4)}},
      {"argmin", {.inputs = {s}, .attributes = reduce(1), .bound = 0}},
      {"cummax", {.inputs = {s}, .attributes = line(0), .bound = 0}},
      {"cummin", {.inputs = {s}, .attributes = line(0), .bound = 0}},
      {"cumprod", {.inputs = {s}, .attributes = line(0)}},
      {"cumsum", {.inputs = {s}, .attributes = line(0)}},
      {"linear_scan", {.inputs = {s, s}, .attributes = line(0)}},
      {"logcumsumexp", {.inputs = {s}, .attributes = line(0)}},
      {"searchsorted", {.inputs = {{{1}}, s}, .attributes = line(0), .bound = 0}},
      {"sort", {.inputs = {s}, .attributes = line(5), .bound = 0}},
      {"take_along_axis", {.inputs = {s, places}, .attributes = line(0), .bound = 0}},
      {"accumulate", {.inputs = {s, s}, .updated = {s}}},
      {"adam_step", {.inputs = {s}, .attributes = always(AdamStep{.step = 3}), .updated = {s, s, second}}},
      {"add_n", {.inputs = {s, s, s}}},
      {"add_rows", {.inputs = {{{3, 7}}, rows}, .attributes = always(WindowAttributes{{5, 7}, {}, 0})}},
      {"argmax", {.inputs = {s}, .attributes = reduce(1), .bound = 0}},
      {"attention",
       {.inputs = {{{1, 4, 3, 2}}, {{1, 2, 5, 2}}, {{1, 2, 5, 3}}, {{1, 1, 3, 1}}},
        .attributes = always(AttentionAttributes{0.7, true})}},
      {"attention_grad",
       {.inputs = {{{1, 4, 3, 2}},
                   {{1, 2, 5, 2}},
                   {{1, 2, 5, 3}},
                   {{1, 4, 3, 3}},
                   {.shape = {1, 4, 3}, .low = 2, .high = 4, .wide = true},
                   {{1, 4, 3, 3}}},
        .attributes = always(AttentionAttributes{0.7, true})}},
      {"batch_matmul", {.inputs = {{{2, 3, 4}}, {{4, 5}}}, .attributes = always(MatmulAttributes{})}},
      {"cast", {.inputs = {s}, .attributes = always(DTypeAttributes{DType::f64}), .bound = 0}},
      {"commit", {.inputs = {s}, .bound = 0, .updated = {s}}},
      {"class_parts", {.inputs = {s, labels}, .attributes = always(ClassPartsAttributes{7, 3, 0, 3})}},
      {"class_parts_grad",
       {.inputs = {{{5, 7}},
                   labels,
                   {.shape = {3, 5, 3}, .low = 2, .high = 3, .in_f64 = true},
                   {.shape = {3, 5, 3}, .in_f64 = true}},
        .attributes = always(ClassPartsAttributes{7, 3, 0, 3})}},
      {"concat", {.inputs = {s, {{2, 7}}}, .attributes = always(AxisAttributes{}), .bound = 0}},
      {"conv2d", {.inputs = {image, kernel, bias}, .attributes = conv(false, {})}},
      {"conv2d_bias_grad", {.inputs = {result}}},
      {"conv2d_input_grad", {.inputs = {result, kernel}, .attributes = conv(false, {2, 3, 6, 5})}},
      {"conv2d_relu", {.inputs = {image, kernel, bias}, .attributes = conv(true, {})}},
      {"conv2d_weight_grad", {.inputs = {image, result}, .attributes = conv(false, {4, 3, 3, 3})}},
      {"copy", {.inputs = {s}, .bound = 0}},
      {"cross_entropy", {.inputs = {s, labels}, .attributes = always(LossAttributes{0.2})}},
      {"cross_entropy_grad",
       {.inputs = {{{5, 7}, 0, 1}, labels, {{}, 0.5, 2}}, .attributes = always(LossAttributes{0.2})}},
      {"dropout", {.inputs = {s}, .attributes = always(DropoutAttributes{7, 8, 9, 3, 0.4})}},
      {"fill",
       {.attributes =
            [](DType t) {
              return Attributes(FillAttributes{0.3, 0.7, {5, 7}, t});
            }}},
      {"first_max", {.inputs = {s}, .attributes = reduce(1), .bound = 0}},
      {"isinf", {.inputs = {infinite}, .bound = 0}},
      {"isnan", {.inputs = {no_number}, .bound = 0}},
      {"linear", {.inputs = {{{4, 6}}, {{3, 6}}, {{3}}}, .attributes = linear(false)}},
      {"linear_relu", {.inputs = {{{4, 6}}, {{3, 6}}, {{3}}}, .attributes = linear(true)}},
      {"log_softmax", {.inputs = {s}}},
      {"logical_and", of_whole},
      {"logical_not", {.inputs = {whole}, .bound = 0}},
      {"logical_or", of_whole},
      {"logical_xor", of_whole},
      {"logical_xor_scalar", {.inputs = {whole}, .attributes = always(ScalarAttributes{1}), .bound = 0}},
      {"matmul", {.inputs = {{{3, 4}}, {{4, 5}}}, .attributes = always(MatmulAttributes{})}},
      {"max_pool2d", {.inputs = {{{2, 1, 7, 5}}}, .attributes = pool({}), .bound = 0}},
      {"max_pool2d_grad",
       {.inputs = {{{2, 1, 4, 3}}, {.shape = {2, 1, 4, 3}, .below = 9, .dtype = DType::i32}},
        .attributes = pool({2, 1, 7, 5})}},
      {"normal",
       {.attributes = random_attributes(3), .wanted = draws([](auto key, auto i) { return normal_f32(key, i); })}},
      {"normalize_rows",
       {.inputs = {{{5, 2, 3}}, {{2, 3}}, {{2, 3}}}, .attributes = always(NormalizeAttributes{2, 1e-5, true})}},
      {"normalize_rows_grad",
       {.inputs = {s, {.shape = {5, 4}, .low = 0.2, .high = 1, .wide = true}, s, {{7}}},
        .attributes = always(NormalizeAttributes{1, 1e-5, true})}},
      {"normalize_rows_weight_grad",
       {.inputs = {s, {.shape = {5, 4}, .low = 0.2, .high = 1, .wide = true}, s},
        .attributes = always(NormalizeAttributes{1, 1e-5, true})}},
      {"one_hot",
       {.inputs = {labels},
        .attributes =
            [](DType t) {
              return Attributes(AxisAttributes{0, 7, t});
            },
        .bound = 0}},
      {"put_rows", {.inputs = {rows, {{3, 7}}, {{5, 7}}}, .attributes = always(PutAttributes{{5, 7}, true})}},
      {"scatter", {.inputs = {{{3, 4}}}, .attributes = always(WindowAttributes{{5, 7}, {2, 1}, 1})}},
      {"sgd_momentum_step", {.inputs = {s}, .attributes = momentum, .updated = {s, s}}},
      {"sgd_step", {.inputs = {s}, .attributes = momentum, .updated = {s}}},
      {"softmax", {.inputs = {s}}},
      {"take_rows", {.inputs = {s, rows}, .attributes = always(RowsAttributes()), .bound = 0}},
      {"transfer", {.inputs = {s}, .attributes = always(TransferAttributes{cpu(0), cpu(0)}), .bound = 0}},
      {"unfold2d",
       {.inputs = {{{2, 1, 4, 3}}},
        .attributes = always(UnfoldAttributes{{2, 3}, {1, 1}, {1, 1}, {2, 1}, {}}),
        .bound = 0}},
      {"unfold2d_grad",
       {.inputs = {{{2, 1, 2, 3, 4, 3}}},
        .attributes = always(UnfoldAttributes{{2, 3}, {1, 1}, {1, 1}, {2, 1}, {2, 1, 4, 3}})}},
      {"uniform",
       {.attributes = random_attributes(2), .wanted = draws([](auto key, auto i) { return uniform01_f32(key, i); })}},
      {"where", {.inputs = {{.shape = {5, 7}, .below = 2, .dtype = DType::boolean}, s, {{7}}}, .bound = 0}},
  };
}

/// The case of an elementwise row or a reduction, whose inputs have the range of its case in ops_table.cc.
std::optional<RowCase> case_by_table(const Operator& row) {
  for (const OperatorCase& c : operator_cases()) {
    if (c.fold && c.name == row.name) {
      const auto attributes = always(ReduceAttributes{0b10, false, std::string_view(row.name) == "sum" ? 0.3 : 1});
      return RowCase{.inputs = {{{5, 7}, c.low, c.high}}, .attributes = attributes};
    }
  }
  if (!row.elementwise || row.max_inputs > 2) return {};
  std::string base = row.name;
  const auto strip = [&](const std::string& end) {
    if (!base.ends_with(end)) return false;
    base.resize(base.size() - end.size());
    return true;
  };
  const bool grad = strip("_grad"), scalar = strip("_scalar");
  Input x{.shape = {5, 7}, .low = -4, .high = 4, .whole = true};  // comparisons have no case there
  for (const OperatorCase& c : operator_cases()) {
    if (c.name == base) x = {{5, 7}, c.low, c.high};
  }
  RowCase found;
  if (grad) found.inputs.push_back({{5, 7}});
  found.inputs.push_back(x);
  if (!grad && row.max_inputs == 2)
    found.inputs.push_back({.shape = {7}, .low = x.low, .high = x.high, .whole = x.whole});
  bool with_number = false;  // as a parameter
  functors::WithNumber::each([&]<class F>() { with_number = with_number || std::string_view(row.name) == F::name; });
  if (scalar || with_number) found.attributes = always(ScalarAttributes{x.whole ? 1 : 0.75});
  return found;
}

NDArray made(const Input& in, RandomStream& stream, DType dtype) {
  if (std::isnan(in.low)) return full(in.shape, in.low, dtype);
  if (in.below == 0) {
    const NDArray x = uniform(in.shape, stream, in.low, in.high, DType::f64);
    return (in.whole ? x.to(DType::i64) : x).to(dtype);
  }
  const std::int64_t n = in.shape.count();
  return (uniform({n}, stream, 0, static_cast<double>(in.below), DType::f64).to(DType::i64))
      .reshape(in.shape)
      .to(in.dtype);
}

/// The row's outputs in `dtype`, on numbers that `half` can represent.
Arrays run(const Operator& row, const RowCase& c, DType half, DType dtype, int rank = 0) {
  RandomStream stream(11);
  const auto rounded = [&](const Input& in) {
    const NDArray x = made(in, stream, half);
    return in.below != 0 ? x : in.in_f64 ? x.to(DType::f64) : in.wide && dtype == half ? x.to(DType::f32) : x.to(dtype);
  };
  Arrays inputs, updated;
  for (const Input& in : c.inputs) inputs.push_back(rounded(in));
  for (const Input& in : c.updated) updated.push_back(rounded(in));
  std::vector<const NDArray*> pointers;
  for (const NDArray& x : inputs) pointers.push_back(&x);
  const KernelRankLimit up_to(rank);
  return apply_all(row, pointers, c.attributes(dtype), {.into = updated, .updates = Updates::all(), .on = cpu(0)});
}

/// By kernels up to a rank, against those of the reference in f64.
void check(const Operator& row, const RowCase& c, DType half, int rank) {
  const double rounding = half == DType::f16 ? 0x1p-11 : 0x1p-8, least = half == DType::f16 ? 0x1p-25 : 0;
  const Arrays got = run(row, c, half, half, rank);
  const Arrays exact = run(row, c, half, DType::f64);
  ASSERT_EQ(got.size(), exact.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    ASSERT_EQ(got[k].shape(), exact[k].shape());
    const std::vector<double> y = values_of(got[k]), wanted = c.wanted ? c.wanted() : values_of(exact[k]);
    double largest = 0;
    for (double v : wanted) largest = std::max(largest, std::abs(v));
    ASSERT_GT(largest, 0) << "nothing to compare in output " << k;
    for (std::size_t i = 0; i < y.size(); ++i) {
      // A rounding of the number; what f32 loses of the largest; a step of the smallest numbers.
      const double allowed = c.bound * (rounding * std::abs(wanted[i]) + 0x1p-18 * largest + least);
      ASSERT_LE(std::abs(y[i] - wanted[i]), allowed)
          << "output " << k << ", element " << i << ": " << y[i] << ", not " << wanted[i];
    }
  }
}

/// Rows that say in their errors that they take f32 and f64, or f64, alone.
const std::set<std::string>& without_half() {
  static const std::set<std::string> names{
      "batch_norm", "batch_norm_grad", "bernoulli", "cholesky", "det",   "eigh", "gru", "gru_grad", "inv",
      "lstm",       "lstm_grad",       "qr",        "slogdet",  "solve", "svd"};
  return names;
}

TEST(HalfRows, EveryFloatingRowIsWithinItsBound) {
  const std::map<std::string, RowCase> all = cases();
  int checked = 0;
  for (const Operator* row : Registry::instance().all()) {
    if (std::string_view(row->name).starts_with("test_")) continue;
    if (!row->kernel(DeviceKind::cpu, DType::f64, 0)) continue;
    if (without_half().contains(row->name)) {
      EXPECT_FALSE(row->kernel(DeviceKind::cpu, DType::f16)) << row->name;
      continue;
    }
    const auto listed = all.find(row->name);
    const std::optional<RowCase> c = listed != all.end() ? listed->second : case_by_table(*row);
    ASSERT_TRUE(c) << row->name << " has no case here";
    for (const DType half : {DType::f16, DType::bf16}) {
      SCOPED_TRACE(std::string(row->name) + ", " + std::string(name_of(half)));
      const Kernel* kernel = row->kernel(DeviceKind::cpu, half, 0);
      ASSERT_TRUE(kernel) << "the reference has no kernel";
      EXPECT_STREQ(kernel->backend.name, "reference");
      check(*row, *c, half, 0);
      if (row->kernel(DeviceKind::cpu, half) != kernel) {
        SCOPED_TRACE("the CPU's own kernel");
        check(*row, *c, half, Operator::kAnyRank);
      }
      ++checked;
    }
  }
  for (const auto& [name, c] : all) EXPECT_TRUE(Registry::instance().find(name)) << name;
  EXPECT_GT(checked, 150);
}

// Through the tape, on whatever kernels the CPU has: a layer and its gradients in f16 and bf16.
TEST(HalfRows, GradientsFlowInSixteenBits) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const auto gradients = [&](DType dtype) {
      RandomStream stream(4);
      Arrays inputs;
      for (const Dims& shape : {Dims{4, 6}, Dims{3, 6}, Dims{3}}) {
        inputs.push_back(uniform(shape, stream, -1, 1, DType::f64).to(half).to(dtype).with_grad());
      }
      const NDArray y = tanh(linear(inputs[0], inputs[1], inputs[2]));
      mean(square(y)).backward();
      Arrays found;
      for (const NDArray& x : inputs) found.push_back(x.grad());
      return found;
    };
    const Arrays got = gradients(half), exact = gradients(DType::f64);
    for (std::size_t k = 0; k < got.size(); ++k) {
      EXPECT_EQ(got[k].dtype(), half);
      const std::vector<double> y = values_of(got[k]), wanted = values_of(exact[k]);
      double largest = 0;
      for (double v : wanted) largest = std::max(largest, std::abs(v));
      for (std::size_t i = 0; i < y.size(); ++i) {
        EXPECT_NEAR(y[i], wanted[i], largest * (half == DType::f16 ? 0x1p-8 : 0x1p-5)) << name_of(half) << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
