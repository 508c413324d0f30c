// Which kernel a call gets: by rank, by dtypes, by what the kernel takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "sluice/operators/attributes.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A kernel that fills its output, of f32, with a number.
template <int number>
void gives(ArrayContext& c) {
  for (std::int64_t i = 0; i < c.output().count(); ++i) c.output().as<float>()[i] = number;
}

/// A row of two inputs with any dtypes; the result is f32 and has the first one's shape.
const Operator& mixed_row(const char* name, int key = 0) {
  return add_operator(name, [key](Operator& op) {
    op.min_inputs = op.max_inputs = 2;
    op.key = key;
    op.infer = [](Signature& s) { s.output(s.shape(0), DType::f32); };
  });
}

float result(const Operator& row, const NDArray& a, const NDArray& b, const Attributes& attributes = AxisAttributes{}) {
  return apply(row, {&a, &b}, attributes)(0).item<float>();
}

constexpr Backend kLow{.name = "low", .rank = 1}, kMiddle{.name = "middle", .rank = 2},
    kHigh{.name = "high", .rank = 3};
constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

Kernel kernel(KernelFunction run, bool (*takes)(const Signature&) = nullptr) {
  Kernel made = kDense;
  made.run = run;
  made.takes = takes;
  return made;
}

TEST(KernelChoice, TheHighestRankThatTakesTheCall) {
  const Operator& row = mixed_row("test_choice");
  const NDArray two = zeros({2}), three = zeros({3}), four = zeros({4});
  row.add_kernel(kMiddle, {DType::f32}, kernel(gives<2>, [](const Signature& call) { return call.shape(0)[0] != 2; }));
  EXPECT_EQ(result(row, three, two), 2);
  EXPECT_THROW(result(row, two, two), ArrayError);
  row.add_kernel(kLow, {DType::f32}, kernel(gives<1>));
  EXPECT_EQ(result(row, two, two), 1);
  EXPECT_EQ(result(row, three, two), 2);
  // It looks at attributes, and at the output.
  row.add_kernel(kHigh, {DType::f32}, kernel(gives<3>, [](const Signature& call) {
                   return call.attributes<AxisAttributes>().axis == 7 && call.outputs()[0].shape[0] == 4;
                 }));
  EXPECT_EQ(result(row, four, two), 2);
  EXPECT_EQ(result(row, four, two, AxisAttributes{.axis = 7}), 3);
  EXPECT_EQ(result(row, three, two, AxisAttributes{.axis = 7}), 2);
  const KernelRankLimit limit(1);
  EXPECT_EQ(result(row, four, two, AxisAttributes{.axis = 7}), 1);
  // Who asks for a dtype alone gets a kernel that takes every call of it.
  EXPECT_EQ(row.kernel(DeviceKind::cpu, DType::f32)->run, gives<1>);
  std::vector<std::string> names;
  for (const Kernel* k : row.kernels(DeviceKind::cpu, DType::f32)) names.emplace_back(k->backend.name);
  EXPECT_THAT(names, ElementsAre("high", "middle", "low"));
}

TEST(KernelChoice, OfEqualRanksTheLastThatWasAdded) {
  const Operator& row = mixed_row("test_equal_ranks");
  const NDArray x = zeros({2});
  row.add_kernel(kLow, {DType::f32}, kernel(gives<1>));
  row.add_kernel(kLow, {DType::f32}, kernel(gives<2>));
  EXPECT_EQ(result(row, x, x), 2);
  row.add_kernel(kLow, {DType::f32}, kernel(gives<3>, [](const Signature& call) { return call.shape(0)[0] == 9; }));
  EXPECT_EQ(result(row, x, x), 2);
}

TEST(KernelChoice, AKernelMixesDtypes) {
  const Operator& row = mixed_row("test_mixed_dtypes");
  const NDArray f32 = zeros({2}), f16 = f32.to(DType::f16), i8 = f32.to(DType::i8);
  row.add_kernel(kMiddle, {DType::f32, DType::f16}, kernel(gives<1>));
  row.add_kernel(kMiddle, {DType::f16, DType::i8, DType::f32}, kernel(gives<2>));
  EXPECT_EQ(result(row, f32, f16), 1);
  EXPECT_EQ(result(row, f16, i8), 2);
  EXPECT_THROW(result(row, f32, f32), ArrayError);
  EXPECT_THROW(result(row, f16, f16), ArrayError);
  row.add_kernel(kLow, {DType::f32}, kernel(gives<3>));
  EXPECT_EQ(result(row, f32, f32), 3);
  EXPECT_EQ(result(row, f32, f16), 1);
  // An output that the row does not have.
  row.add_kernel(kHigh, {DType::f32, DType::f16, DType::f32, DType::f32}, kernel(gives<4>));
  EXPECT_EQ(result(row, f32, f16), 1);
}

TEST(KernelChoice, DtypesMixWhereTheOutputIsTheKey) {
  const Operator& row = mixed_row("test_mixed_by_output", -1);
  const NDArray f32 = zeros({2}), f16 = f32.to(DType::f16);
  row.add_kernel(kMiddle, {DType::f16, DType::f32, DType::f32}, kernel(gives<1>));
  row.add_kernel(kLow, {DType::f32}, kernel(gives<2>));
  EXPECT_EQ(result(row, f16, f32), 1);
  EXPECT_EQ(result(row, f32, f16), 2);
}

TEST(KernelChoice, SimulatedDevicesHaveTheCpusKernelsOfRankZero) {
  const Operator& row = mixed_row("test_simulated");
  row.add_kernel(kLow, {DType::f32}, kernel(gives<1>));
  for (const DeviceKind kind : {DeviceKind::sim, DeviceKind::null, DeviceKind::gpu}) {
    EXPECT_EQ(row.kernel(kind, DType::f32), nullptr);
  }
  row.add_kernel({.name = "plain"}, {DType::f32}, kernel(gives<2>));
  EXPECT_EQ(row.kernel(DeviceKind::sim, DType::f32)->run, gives<2>);
  EXPECT_EQ(row.kernel(DeviceKind::null, DType::f32)->run, gives<2>);
  EXPECT_EQ(row.kernel(DeviceKind::gpu, DType::f32), nullptr);
  row.add_kernel({.name = "own", .device = DeviceKind::sim, .rank = 5}, {DType::f32}, kernel(gives<3>));
  EXPECT_EQ(row.kernel(DeviceKind::sim, DType::f32)->run, gives<3>);
  EXPECT_EQ(row.kernel(DeviceKind::sim, DType::f32, 4)->run, gives<2>);
  EXPECT_EQ(row.kernel(DeviceKind::null, DType::f32)->run, gives<2>);
}

// Declared scratch counts as memory of the op: at the hard cap, four times max_bytes, a push throws.
TEST(KernelChoice, DeclaredScratchCountsAgainstTheCapOfBytes) {
  const Operator& row = mixed_row("test_scratch");
  Kernel greedy = kernel(gives<1>);
  greedy.scratch = [](const Signature& call) { return static_cast<std::size_t>(call.shape(0)[0]) * 1000; };
  row.add_kernel(kLow, {DType::f32}, greedy);
  test::DefaultEngine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = 2, .max_bytes = 5000});
  const NDArray x = zeros({10}), y = empty({10});
  y.wait();
  const Borrow held = engine.engine().borrow(update(x));
  std::string said;
  engine.engine()
      .push(
          [&] {  // from an op: it does not wait at the cap
            const auto push = [&] { apply(row, {&x, &x}, AxisAttributes{}, {.into = std::span(&y, 1)}); };
            push();  // 10,040 bytes
            push();
            try {
              push();
            } catch (const CapError& e) {
              said = e.what();
            }
          },
          {})
      .wait();
  EXPECT_THAT(said, HasSubstr("bytes"));
}

TEST(KernelChoice, WhatCannotBeAKernelIsRefused) {
  const Operator& row = mixed_row("test_refused", 1);
  const auto said = [&](std::vector<DType> dtypes, const Kernel& k) -> std::string {
    try {
      row.add_kernel(kLow, dtypes, k);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "nothing";
  };
  EXPECT_EQ(said({DType::f32}, {}), "[test_refused] a kernel of low: no function");
  EXPECT_EQ(said({}, kernel(gives<1>)), "[test_refused] a kernel of low: no dtype for its key");
  EXPECT_EQ(said({DType::f32, DType::f16}, kernel(gives<1>)), "nothing");
}

TEST(DTypes, TheTableSaysWhatThereIs) {
  EXPECT_EQ(kDTypeCount, 9);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_TRUE(is_floating(DType::f16) && is_integer(DType::u8) && !is_integer(DType::boolean));
  EXPECT_EQ(info_of(DType::f16).compute, DType::f32);
  EXPECT_TRUE(has_arithmetic(DType::i8) && !has_sums(DType::i8) && !has_arithmetic(DType::boolean));
  EXPECT_TRUE(computes_in_itself(DType::i64) && !computes_in_itself(DType::bf16));
  static_assert(std::is_same_v<compute_of<BFloat16>, float> && std::is_same_v<compute_of<double>, double>);
  static_assert(dtype_of<Float16> == DType::f16 && std::is_same_v<element_of<DType::u8>, std::uint8_t>);
  const std::vector<Float16> halves{Float16(1.5F), Float16(-2.0F)};
  EXPECT_EQ(from(halves, {2}).to(DType::f32).to_vector<float>(), (std::vector<float>{1.5F, -2.0F}));
}

TEST(DTypes, EveryFloat16GoesToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Float16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(x);
    const std::uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const double wanted = exponent == 31  ? std::numeric_limits<double>::infinity()
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    EXPECT_EQ(static_cast<double>(value), sign * wanted) << bits;
    EXPECT_EQ(Float16(value).bits, bits) << bits;
  }
}

}  // namespace
}  // namespace sluice
