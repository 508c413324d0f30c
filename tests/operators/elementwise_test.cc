// Elementwise operators where formulas on ordinary numbers do not look (ops_table_elementwise.h): the smallest and the
// largest numbers, infinities and NaN, integers, bits, and wrong calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

NDArray numbers(const std::vector<double>& values, DType dtype = DType::f64) {
  return from(values, {static_cast<std::int64_t>(values.size())}).to(dtype);
}
NDArray whole(const std::vector<std::int64_t>& values, DType dtype) {
  return from(values, {static_cast<std::int64_t>(values.size())}).to(dtype);
}

/// As `wanted`: NaN for NaN, zeros by their sign.
void expect_same(const NDArray& got, const std::vector<double>& wanted, const std::string& what) {
  const std::vector<double> values = values_of(got);
  ASSERT_EQ(values.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool both_nan = std::isnan(values[i]) && std::isnan(wanted[i]);
    EXPECT_TRUE(both_nan || (values[i] == wanted[i] && std::signbit(values[i]) == std::signbit(wanted[i])))
        << what << ", element " << i << ": " << values[i] << ", not " << wanted[i];
  }
}

/// Calls f for the CPU's kernels and for the reference's.
template <class F>
void on_both(F f) {
  for (const int rank : {0, Operator::kAnyRank}) {
    SCOPED_TRACE(rank == 0 ? "reference" : "cpu");
    const KernelRankLimit limit(rank);
    f();
  }
}

// ---- small results

/// Numbers of which f32 exp gives what is normal, subnormal and 0, in steps that meet all paths of vector loops.
NDArray far_below_zero() { return arange(-110.0, -80.0, 0.0007); }

void expect_within(const NDArray& got, double (*formula)(double), const NDArray& x) {
  const std::vector<double> y = values_of(got), values = values_of(x);
  constexpr double step = 0x1p-149;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double wanted = formula(values[i]);
    // Of a subnormal number half a step; of others the rounding of the formula.
    ASSERT_LE(std::abs(y[i] - wanted), 0.51 * step + 4e-7 * wanted) << values[i] << " gives " << y[i];
  }
}

TEST(Elementwise, SmallResultsOfExpAndSigmoidAreSubnormal) {
  on_both([] {
    const NDArray x = far_below_zero();
    ASSERT_EQ(x.dtype(), DType::f32);
    expect_within(
        exp(x), [](double v) { return std::exp(v); }, x);
    expect_within(
        sigmoid(x), [](double v) { return std::exp(v) / (1 + std::exp(v)); }, x);
    expect_within(
        exp(x(reversed())), [](double v) { return std::exp(v); }, x(reversed()));
    expect_within(
        softplus(x), [](double v) { return std::log1p(std::exp(v)); }, x);
    expect_same(exp(numbers({-1e30, -kInfinity, -104, 1e30, kInfinity, kNan}, DType::f32)),
                {0, 0, 0, kInfinity, kInfinity, kNan}, "exp");
    expect_same(sigmoid(numbers({-1e30, -kInfinity, -104, 1e30, kInfinity, kNan}, DType::f32)), {0, 0, 0, 1, 1, kNan},
                "sigmoid");
  });
  const NDArray x = numbers({-90, -92}, DType::bf16);
  EXPECT_THAT(values_of(sigmoid(x)), ElementsAre(::testing::Gt(0), ::testing::Gt(0)));
}

TEST(Elementwise, SmallNumbersKeepTheirDigits) {
  on_both([] {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const NDArray x = numbers({1e-10, -1e-10}, dtype);
      for (const NDArray& y : {expm1(x), log1p(x), sinh(x), asinh(x), atanh(x), tan(x), erfinv(x) / erfinv(x) * x}) {
        for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(values_of(y)[i] / values_of(x)[i], 1, 1e-6);
      }
    }
  });
}

TEST(Elementwise, ErfinvIsTheInverseUpToTheEnds) {
  on_both([] {
    std::vector<double> near_one;
    for (double rest = 0.5; rest > 1e-16; rest /= 3) near_one.push_back(1 - rest);
    const std::vector<double> x = values_of(erfinv(numbers(near_one)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double rest = 1 - near_one[i];
      EXPECT_NEAR(std::erfc(x[i]) / rest, 1, 1e-13) << near_one[i];
    }
    for (const double y : {0x1p-1060, 1e-300, 1e-5, 0.05, 0.1, 0.10001, 0.49999, 0.5}) {
      EXPECT_NEAR(std::erf(erfinv(numbers({y})).item<double>()) / y, 1, 1e-13) << y;
    }
    expect_same(erfinv(numbers({1, -1, 1.5, kNan, 0, -0.0})), {kInfinity, -kInfinity, kNan, kNan, 0, -0.0}, "erfinv");
  });
}

// ---- special values

TEST(Elementwise, SpecialValuesOfUnaryOperators) {
  on_both([] {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const NDArray x = numbers({-kInfinity, -0.0, 0, kInfinity, kNan}, dtype);
      expect_same(sign(x), {-1, -0.0, 0, 1, kNan}, "sign");
      expect_same(floor(x), {-kInfinity, -0.0, 0, kInfinity, kNan}, "floor");
      expect_same(round(x), {-kInfinity, -0.0, 0, kInfinity, kNan}, "round");
      expect_same(silu(x), {-0.0, -0.0, 0, kInfinity, kNan}, "silu");
      expect_same(gelu_tanh(x), {-0.0, -0.0, 0, kInfinity, kNan}, "gelu_tanh");
      expect_same(hardswish(x), {0, -0.0, 0, kInfinity, kNan}, "hardswish");
      expect_same(relu6(x), {0, -0.0, 0, 6, kNan}, "relu6");
      expect_same(softplus(x(slice_from(3))), {kInfinity, kNan}, "softplus");
      expect_same(leaky_relu(x), {-kInfinity, -0.0, 0, kInfinity, kNan}, "leaky_relu");
      expect_same(elu(x), {-1, -0.0, 0, kInfinity, kNan}, "elu");
      expect_same(clip(x, {.low = -1, .high = 1}), {-1, -0.0, 0, 1, kNan}, "clip");
      expect_same(exp2(x), {0, 1, 1, kInfinity, kNan}, "exp2");
      EXPECT_THAT(isnan(x).to_vector<bool>(), ElementsAre(false, false, false, false, true));
      EXPECT_THAT(isinf(x).to_vector<bool>(), ElementsAre(true, false, false, true, false));
      EXPECT_THAT(isfinite(x).to_vector<bool>(), ElementsAre(false, true, true, false, false));
      EXPECT_THAT(logical_not(x).to_vector<bool>(), ElementsAre(false, true, true, false, false));
    }
    expect_same(round(numbers({0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994, 4503599627370497.0})),
                {0, 2, 2, -0.0, -2, -2, 0, 4503599627370497.0}, "round");
    expect_same(trunc(numbers({2.9, -2.9, -0.9})), {2, -2, -0.0}, "trunc");
    expect_same(ceil(numbers({2.1, -2.9, -0.9})), {3, -2, -0.0}, "ceil");
  });
}

TEST(Elementwise, GradientsAreFiniteAtTheEnds) {
  const auto gradient = [](auto f, double at) {
    const NDArray x = numbers({at}).with_grad();
    sum(f(x)).backward();
    return x.grad().item<double>();
  };
  const auto both_ways = [&](NDArray (*f)(const Operand&), double low, double high) {
    EXPECT_EQ(gradient(f, -kInfinity), low);
    EXPECT_EQ(gradient(f, kInfinity), high);
    EXPECT_TRUE(std::isnan(gradient(f, kNan)));
  };
  both_ways(silu, 0, 1);
  both_ways(softplus, 0, 1);
  both_ways(asinh, 0, 0);
  both_ways(atan, 0, 0);
  EXPECT_EQ(gradient(hardswish, -kInfinity), 0);
  EXPECT_EQ(gradient(hardswish, kInfinity), 1);
  EXPECT_EQ(gradient(relu6, 6), 0);
  EXPECT_EQ(gradient([](const NDArray& x) { return elu(x, 2); }, 1e4), 1);
  EXPECT_EQ(gradient([](const NDArray& x) { return clip(x, {.low = 0, .high = 1}); }, 1), 1);
  EXPECT_EQ(gradient([](const NDArray& x) { return clip(x, {.low = 0, .high = 1}); }, 1.5), 0);
  EXPECT_NEAR(gradient(asinh, 1e200), 1e-200, 1e-212);
  for (const double zero : {0.0, -0.0}) {
    EXPECT_EQ(gradient([&](const NDArray& x) { return hypot(x, zero); }, 0), 0);
    EXPECT_EQ(gradient([&](const NDArray& x) { return atan2(x, zero); }, 0), 0);
  }
  EXPECT_NEAR(gradient([](const NDArray& x) { return atan2(x, 1e200); }, 1e200), 0.5e-200, 1e-212);
  EXPECT_NEAR(gradient([](const NDArray& x) { return hypot(x, 4e200); }, 3e200), 0.6, 1e-12);
  EXPECT_EQ(gradient([](const NDArray& x) { return logaddexp(x, kInfinity); }, kInfinity), 0.5);
  EXPECT_EQ(gradient([](const NDArray& x) { return logaddexp(x, -kInfinity); }, 3), 1);
  EXPECT_TRUE(std::isnan(gradient([](const NDArray& x) { return logaddexp(x, kNan); }, 3)));
}

TEST(Elementwise, SpecialValuesOfLogaddexpAndHypot) {
  on_both([] {
    const NDArray a = numbers({kInfinity, -kInfinity, -kInfinity, 1e300, kNan, -1e300, 1000});
    expect_same(logaddexp(a, a(reversed()).copy()(reversed())),
                {kInfinity, -kInfinity, -kInfinity, 1e300, kNan, -1e300, 1000 + std::log(2.0)}, "logaddexp");
    expect_same(logaddexp(a, -kInfinity), {kInfinity, -kInfinity, -kInfinity, 1e300, kNan, -1e300, 1000}, "to nothing");
    EXPECT_NEAR(hypot(numbers({3e300}), 4e300).item<double>(), 5e300, 1e285);
    EXPECT_NEAR(hypot(numbers({3e30}, DType::f32), 4e30).item<float>(), 5e30, 1e24);
  });
}

// ---- division

TEST(Elementwise, DivisionRoundedDownIsThatOfPython) {
  struct Row {
    double a, b, quotient, rest, truncated_rest;
  };
  const std::vector<Row> rows{
      {7, 3, 2, 1, 1},
      {-7, 3, -3, 2, -1},
      {7, -3, -3, -2, 1},
      {-7, -3, 2, -1, -1},
      {6, 3, 2, 0, 0},
      {-6, 3, -2, 0, -0.0},
      {6, -3, -2, -0.0, 0},
      {0, 3, 0, 0, 0},
      {0, -3, -0.0, -0.0, 0},
      {1, 0.1, 9, 0.09999999999999995, 0.09999999999999995},  // 1 / 0.1 is 10 when rounded
      {5e-324, 3, 0, 5e-324, 5e-324},
      {-5e-324, 3, -1, 3, -5e-324},
      {1, kInfinity, 0, 1, 1},
      {-1, kInfinity, -1, kInfinity, -1},
      {1, -kInfinity, -1, -kInfinity, 1},
      {1, 0, kInfinity, kNan, kNan},
      {-1, 0, -kInfinity, kNan, kNan},
      {0, 0, kNan, kNan, kNan},
      {kInfinity, 3, kInfinity, kNan, kNan},
      {kNan, 3, kNan, kNan, kNan},
      {3, kNan, kNan, kNan, kNan},
  };
  std::vector<double> a, b, quotient, rest, truncated;
  for (const Row& row : rows) {
    a.push_back(row.a);
    b.push_back(row.b);
    quotient.push_back(row.quotient);
    rest.push_back(row.rest);
    truncated.push_back(row.truncated_rest);
  }
  on_both([&] {
    expect_same(floor_div(numbers(a), numbers(b)), quotient, "floor_div");
    expect_same(remainder(numbers(a), numbers(b)), rest, "remainder");
    expect_same(fmod(numbers(a), numbers(b)), truncated, "fmod");
  });
}

TEST(Elementwise, DivisionOfIntegersFitsTogether) {
  on_both([] {
    for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64}) {
      const bool negative = dtype != DType::u8;
      std::vector<std::int64_t> list;
      for (std::int64_t i = negative ? -12 : 0; i <= 12; ++i) list.push_back(i);
      if (dtype == DType::i64) list.push_back(std::numeric_limits<std::int64_t>::min());
      if (dtype == DType::i8) list.push_back(-128);
      const auto n = static_cast<std::int64_t>(list.size());
      const NDArray x = whole(list, dtype), a = x.reshape({n, 1}), b = x.reshape({1, n});
      const NDArray q = floor_div(a, b), r = remainder(a, b), t = fmod(a, b);
      EXPECT_EQ(q.dtype(), dtype);
      const NDArray by_zero = (b == 0) & ones({n, n}, DType::boolean);
      EXPECT_TRUE(array_equal(where(by_zero, a, q * b + r), a + zeros({n, n}, dtype))) << name_of(dtype);
      EXPECT_TRUE(array_equal(where(by_zero, a, a / b * b + t), a + zeros({n, n}, dtype))) << name_of(dtype);
      EXPECT_EQ(sum(where(by_zero, q, 0)).item<std::int64_t>(), 0);
      // The rest is 0, or has the sign of its model, and is smaller than b.
      EXPECT_TRUE(array_equal((r == 0) | ((r < 0) == (b < 0)), ones({n, n}, DType::boolean)));
      EXPECT_TRUE(array_equal((t == 0) | ((t < 0) == (a < 0)), ones({n, n}, DType::boolean)));
      EXPECT_THAT(values_of(floor_div(x(slice(0, 3)), 5)), negative ? ElementsAre(-3, -3, -2) : ElementsAre(0, 0, 0));
    }
  });
}

/// By products that wrap; the negative powers of numbers other than 1 and -1 are below 1.
TEST(Elementwise, PowersOfIntegers) {
  for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64}) {
    for (int base = dtype == DType::u8 ? 0 : -5; base < 6; ++base) {
      NDArray product = full({}, 1, dtype);
      for (int exponent = 0; exponent < 30; ++exponent, product *= base) {
        EXPECT_TRUE(array_equal(pow(full({}, base, dtype), exponent), product)) << base << " to " << exponent;
        EXPECT_TRUE(array_equal(pow(base, full({}, exponent, dtype)), product)) << base << " to " << exponent;
      }
      if (dtype == DType::u8) continue;
      for (const int exponent : {-1, -2, -3}) {
        const int wanted = base == 1 || base == -1 ? (exponent == -2 ? 1 : base) : 0;
        EXPECT_TRUE(array_equal(pow(full({}, base, dtype), exponent), full({}, wanted, dtype)));
      }
    }
  }
  EXPECT_EQ(pow(from<std::int64_t>({2, 3}, {2}), from<std::int64_t>({62, 39}, {2})).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{4611686018427387904, 4052555153018976267}));
}

TEST(Elementwise, RoundingKeepsIntegers) {
  on_both([] {
    for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64}) {
      const NDArray x = whole({0, 1, 100}, dtype);
      for (const NDArray& y : {floor(x), ceil(x), trunc(x), round(x), relu6(x) + x - relu6(x)}) {
        EXPECT_EQ(y.dtype(), dtype);
        EXPECT_TRUE(array_equal(x, y));
      }
      EXPECT_THAT(values_of(sign(x)), ElementsAre(0, 1, 1));
      EXPECT_THAT(values_of(relu6(x)), ElementsAre(0, 1, 6));
    }
    const std::int64_t large = (1LL << 60) + 1;
    EXPECT_EQ(round(whole({large}, DType::i64)).item<std::int64_t>(), large);
  });
}

// ---- bits

TEST(Elementwise, BitsOfEveryDtype) {
  on_both([] {
    const std::vector<std::int64_t> x{0, 1, 2, 3, 5, 100, 127}, y{1, 1, 3, 4, 6, 27, 64};
    for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64}) {
      const NDArray a = whole(x, dtype), b = whole(y, dtype);
      std::vector<std::int64_t> both, any, one;
      for (std::size_t i = 0; i < x.size(); ++i) {
        both.push_back(x[i] & y[i]);
        any.push_back(x[i] | y[i]);
        one.push_back(x[i] ^ y[i]);
      }
      EXPECT_TRUE(array_equal(a & b, whole(both, dtype)));
      EXPECT_TRUE(array_equal(a | b, whole(any, dtype)));
      EXPECT_TRUE(array_equal(a ^ b, whole(one, dtype)));
      EXPECT_TRUE(array_equal(a(reversed()) & 3, whole(x, dtype)(reversed()) & full({7}, 3, dtype)));
      EXPECT_TRUE(array_equal(~~a, a));
      EXPECT_TRUE(array_equal(~a + 1, neg(a)));  // two's complement
      EXPECT_EQ((a & b).dtype(), dtype);
      NDArray changed = a.copy();
      changed &= b;
      changed |= 8;
      changed ^= b;
      EXPECT_TRUE(array_equal(changed, ((a & b) | 8) ^ b));
    }
    const NDArray t = from<bool>({true, true, false, false}, {4}), f = from<bool>({true, false, true, false}, {4});
    EXPECT_THAT((t & f).to_vector<bool>(), ElementsAre(true, false, false, false));
    EXPECT_THAT((t | f).to_vector<bool>(), ElementsAre(true, true, true, false));
    EXPECT_THAT((t ^ f).to_vector<bool>(), ElementsAre(false, true, true, false));
    EXPECT_THAT((~t).to_vector<bool>(), ElementsAre(false, false, true, true));
    EXPECT_THAT((t & true).to_vector<bool>(), ElementsAre(true, true, false, false));
    EXPECT_THAT((false | t).to_vector<bool>(), ElementsAre(true, true, false, false));
    EXPECT_THAT(logical_and(t, f).to_vector<bool>(), ElementsAre(true, false, false, false));
    EXPECT_THAT(logical_not(f).to_vector<bool>(), ElementsAre(false, true, false, true));
    EXPECT_THAT(logical_xor(whole({0, 2, 0, 7}, DType::i32), t).to_vector<bool>(),
                ElementsAre(true, false, false, true));
    EXPECT_EQ((t & whole({3, 2, 1, 0}, DType::u8)).dtype(), DType::u8);
    EXPECT_THAT(values_of(t & whole({3, 2, 1, 0}, DType::u8)), ElementsAre(1, 0, 0, 0));
    EXPECT_EQ((whole({1}, DType::i8) | whole({1}, DType::u8)).dtype(), DType::i32);
    EXPECT_THAT(isnan(t).to_vector<bool>(), ElementsAre(false, false, false, false));
    EXPECT_THAT(isfinite(whole({3, -3}, DType::i8)).to_vector<bool>(), ElementsAre(true, true));
  });
}

// Bool arrays are no conditions, and have no && and ||.
template <class A>
constexpr bool has_and = requires(A a) {
  a&& a;
};
template <class A>
constexpr bool has_or = requires(A a) {
  a || a;
};
template <class A>
constexpr bool has_rest = requires(A a) {
  a % a;
};
static_assert(!has_and<NDArray> && !has_or<NDArray> && !has_rest<NDArray>);

// ---- shapes

TEST(Elementwise, ShapesOfAllKinds) {
  on_both([] {
    const auto check = [](const NDArray& x) {
      const NDArray plain = x.copy();
      EXPECT_TRUE(array_equal(floor(x), floor(plain)));
      EXPECT_TRUE(array_equal(leaky_relu(x, 0.3), leaky_relu(plain, 0.3)));
      EXPECT_TRUE(array_equal(isfinite(x), isfinite(plain)));
      EXPECT_TRUE(array_equal((x > 0) & (x < 1), (plain > 0) & (plain < 1)));
      EXPECT_TRUE(array_equal(remainder(x, 0.3), remainder(plain, 0.3)));
      EXPECT_TRUE(array_equal(atan2(x, plain), atan2(plain, plain)));
      EXPECT_TRUE(array_equal(clip(x, {.low = 0}), maximum(plain, 0)));
      EXPECT_TRUE(allclose(lerp(x, plain, 0.3), plain));
      const NDArray g = x.copy().with_grad();
      sum(silu(g) + elu(g) + fmod(g, 0.7) + hypot(g, 2)).backward();
      EXPECT_EQ(g.grad().shape(), x.shape());
    };
    RandomStream stream(3);
    check(uniform({}, stream, -2, 2));
    check(uniform({0}, stream, -2, 2));
    check(uniform({3, 0, 2}, stream, -2, 2));
    check(uniform({2, 1, 3, 1, 2, 1, 2, 2}, stream, -2, 2));
    check(uniform({2, 1, 3, 1, 2, 1, 2, 2}, stream, -2, 2).transpose());
    check(uniform({5, 7}, stream, -2, 2)(reversed(), slice(0, 7, 3)));
    check(uniform({1, 7}, stream, -2, 2).broadcast_to({4, 7}));
    check(uniform({100003}, stream, -2, 2));
  });
}

// ---- functions made of operators

TEST(Elementwise, Closeness) {
  const NDArray a = numbers({1, kInfinity, -kInfinity, kNan, 0, 1}),
                b = numbers({1.000001, kInfinity, kInfinity, kNan, 1e-9, kInfinity});
  EXPECT_THAT(isclose(a, b).to_vector<bool>(), ElementsAre(true, true, false, false, true, false));
  EXPECT_THAT(isclose(b, a).to_vector<bool>(), ElementsAre(true, true, false, false, true, false));
  EXPECT_THAT(isclose(a, b, {.rtol = 0, .atol = 0, .equal_nan = true}).to_vector<bool>(),
              ElementsAre(false, true, false, true, false, false));
  EXPECT_TRUE(allclose(ones({2, 3}), ones({3}).to(DType::f64)));
  EXPECT_FALSE(allclose(ones({3}), numbers({1, 1, 1.1})));
  EXPECT_TRUE(allclose(ones({3}), numbers({1, 1, 1.1}), {.rtol = 0.1}));
  EXPECT_TRUE(allclose(ones({0, 3}), zeros({3})));
  EXPECT_FALSE(allclose(numbers({kNan}), numbers({kNan})));
  EXPECT_TRUE(allclose(numbers({kNan}), numbers({kNan}), {.equal_nan = true}));
  // The difference of u8 does not wrap, and integers beyond 2^53 are equal by themselves.
  EXPECT_FALSE(allclose(whole({0}, DType::u8), whole({255}, DType::u8), {.atol = 2}));
  EXPECT_TRUE(allclose(whole({254}, DType::u8), whole({255}, DType::u8), {.atol = 2}));
  const NDArray large = whole({(1LL << 60) + 1}, DType::i64);
  EXPECT_TRUE(array_equal(large, large.copy()));
  EXPECT_FALSE(array_equal(large, large - 1));
  EXPECT_TRUE(array_equal(from<bool>({true, false}, {2}), whole({1, 0}, DType::u8)));
  EXPECT_FALSE(array_equal(ones({3}), ones({1, 3})));
  EXPECT_TRUE(array_equal(ones({0}), zeros({0})));
  EXPECT_FALSE(array_equal(numbers({kNan}), numbers({kNan})));
  EXPECT_TRUE(array_equal(numbers({kNan, 1}), numbers({kNan, 1}), {.equal_nan = true}));
  const NDArray leaf = ones({3}).with_grad();
  EXPECT_TRUE(allclose(leaf * 2, full({3}, 2.0)));
  EXPECT_THAT(message([] { isclose(ones({2}), ones({3})); }), HasSubstr("shapes do not broadcast"));
  EXPECT_THAT(message([] { isclose(ones({2}), ones({2}), {.rtol = -1}); }), HasSubstr("[isclose] elementwise_test.cc"));
  EXPECT_THAT(message([] { allclose(ones({2}).to(DType::f16), ones({2}).to(DType::bf16)); }),
              HasSubstr("no dtype holds both"));
}

TEST(Elementwise, MixturesAreExactAtTheirEnds) {
  RandomStream stream(5);
  const NDArray a = uniform({1000}, stream, -2, 2), b = uniform({1000}, stream, -1e6, 1e6);
  EXPECT_TRUE(array_equal(lerp(a, b, 0), a));
  EXPECT_TRUE(array_equal(lerp(a, b, 1), b));
  EXPECT_TRUE(array_equal(lerp(a, b, zeros({1000})), a));
  EXPECT_TRUE(array_equal(lerp(a, b, ones({})), b));
  EXPECT_TRUE(
      array_equal(clip(whole({-5, 0, 300}, DType::i32), {.low = -1, .high = 7}), whole({-1, 0, 7}, DType::i32)));
  EXPECT_TRUE(array_equal(clip(numbers({1, 2, 3}), {.low = 5, .high = 2}), numbers({2, 2, 2})));
  EXPECT_TRUE(array_equal(addcmul(whole({1}, DType::i64), whole({2}, DType::i64), whole({3}, DType::i64), {.value = 4}),
                          whole({25}, DType::i64)));
}

TEST(Elementwise, WrongCallsSayWhatIsWrongInOneLine) {
  const NDArray x = ones({2, 3}), n = whole({1, 2, 3}, DType::i32), t = ones({3}, DType::boolean);
  const auto expect_line = [](const std::string& text, const std::string& wanted) {
    EXPECT_THAT(text, HasSubstr(wanted));
    EXPECT_THAT(text, HasSubstr("elementwise_test.cc:"));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  expect_line(message([&] { x& n; }), "[bitwise_and]");
  expect_line(message([&] { x& n; }), "needs bool or integers, not f32");
  expect_line(message([&] { ~x; }), "[bitwise_not]");
  expect_line(message([&] { x | 1; }), "needs bool or integers, not f32");
  expect_line(message([&] { n | 0.5; }), "the number 0.5 beside i32");
  expect_line(message([&] { t ^ 2; }), "the number 2 beside bool");
  expect_line(message([&] {
                NDArray y = t.copy();
                y |= n;
              }),
              "widen");
  expect_line(message([&] { floor(t); }), "no arithmetic in bool");
  expect_line(message([&] { log1p(n); }), "needs a floating dtype, not i32");
  expect_line(message([&] { leaky_relu(n); }), "needs a floating dtype, not i32");
  expect_line(message([&] { remainder(n, 0.5); }), "the number 0.5 beside i32");
  expect_line(message([&] { clip(x, {}); }), "[clip]");
  expect_line(message([&] { clip(n, {.low = 0.5}); }), "the number 0.5 beside i32");
  expect_line(message([&] { clip(n.to(DType::u8), {.low = -1}); }), "the number -1 beside u8");
  expect_line(message([&] { clip(t, {.low = 0}); }), "no arithmetic in bool");
  expect_line(message([&] { softplus(x, {.beta = 0}); }), "[softplus]");
  expect_line(message([&] { glu(x); }), "axis -1 has 3 elements");
  expect_line(message([&] { glu(x, 2); }), "[glu]");
  expect_line(message([&] { glu(n(slice(0, 2))); }), "needs a floating dtype, not i32");
  expect_line(message([&] { lerp(x, ones({4}), 0.5); }), "shapes do not broadcast");
  expect_line(message([&] { isnan(NDArray()); }), "an empty handle");
  expect_line(message([&] { clip(NDArray(), {.low = 1}); }), "an empty handle");
}

}  // namespace
}  // namespace sluice::testing
