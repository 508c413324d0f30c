// What has no rounding, or only one: integers, comparisons, casts. Bit for bit as the reference has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops_table.h"
#include "sluice/operators/attributes.h"

namespace sluice::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
using Limits = std::numeric_limits<std::int64_t>;

TEST(ExactRows, OfIntegersEqualTheReference) {
  const auto run = [](DType dtype) {
    const NDArray a = arange(-10, 25, 1, dtype).reshape({5, 7}), b = arange(3, 10, 1, dtype);
    Arrays all_results{a + b,
                       a - b,
                       a * b,
                       a / b,
                       maximum(a, b),
                       minimum(a, b),
                       neg(a),
                       abs(a),
                       square(a),
                       relu(a),
                       a + 3,
                       3 - a,
                       a * 3,
                       a / 2,
                       pow(a, b),
                       pow(a, 5),
                       pow(3, a),
                       equal(a, b),
                       not_equal(a, b),
                       less(a, b),
                       less_equal(a, b),
                       greater(a, b),
                       greater_equal(a, b),
                       less(a, 4),
                       sum(a, {0}),
                       sum(a),
                       sum(a, {1}),
                       max(a, {1}),
                       argmax(a, 1),
                       argmax(a, 0),
                       where(less(a, b), a, b),
                       matmul(a, a, {.transpose_b = true}),
                       a.to(DType::u8),
                       a.to(DType::boolean),
                       a.to(DType::f16),
                       a.to(DType::bf16),
                       a.to(DType::f64),
                       one_hot(arange(0, 4), 5, dtype),
                       a.transpose().copy(),
                       ones({3}, dtype),
                       full({2}, 7, dtype)};
    return all_results;
  };
  for (DType dtype : {DType::i32, DType::i64}) {
    const Arrays fast = run(dtype), plain = by_reference([&] { return run(dtype); });
    for (std::size_t i = 0; i < fast.size(); ++i) {
      EXPECT_EQ(fast[i].dtype(), plain[i].dtype());
      EXPECT_EQ(fast[i].to_bytes(), plain[i].to_bytes()) << name_of(dtype) << ", " << i;
    }
  }
}

// Also those rows that have no function of their own.
TEST(ExactRows, ComparisonsWithANumberAreThoseWithAnArrayOfIt) {
  for (DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64}) {
    const NDArray x = arange(-3, 9, 1, dtype), two = full({}, 2, dtype);
    for (const std::string name : {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}) {
      const std::vector<bool> expected = apply(Registry::instance().get(name), {&x, &two}).to_vector<bool>();
      const auto with_number = [&](const NDArray& array) {
        return apply(Registry::instance().get(name + "_scalar"), {&array}, ScalarAttributes{2}).to_vector<bool>();
      };
      EXPECT_EQ(with_number(x), expected) << name << " " << name_of(dtype);
      EXPECT_EQ(by_reference([&] { return with_number(arange(-3, 9, 1, dtype)); }), expected)
          << name << " " << name_of(dtype);
    }
  }
}

/// Zeros, the smallest and the largest numbers, and what is no number, of each floating dtype.
NDArray special_values(DType dtype) {
  return from(std::vector<double>{kNan, kInfinity,     -kInfinity, 0,       -0.0, 5e-324, -5e-324, 1e-45,
                                  6e-8, 2e-39,         1,          -1,      1.5,  -2.5,   65504,   65520,
                                  3e38, -3.4028235e38, 1.7e308,    0.333333},
              {20})
      .to(dtype);
}

TEST(ExactRows, ComparisonsOfSpecialValuesEqualTheReference) {
  const auto run = [](DType dtype) {
    const NDArray x = special_values(dtype), a = x.reshape({20, 1}), b = x.reshape({1, 20});
    Arrays results{equal(a, b),         not_equal(a, b),       less(a, b), less_equal(a, b), greater(a, b),
                   greater_equal(a, b), less(b, a(reversed()))};
    for (const double number : {0.0, -0.0, 1.5, kNan, kInfinity}) {
      for (const NDArray& y : {equal(x, number), not_equal(x, number), less(x, number), greater_equal(x, number)}) {
        results.push_back(y);
      }
    }
    results.push_back(where(less(a, b), a, b));
    return results;
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const Arrays fast = run(dtype), plain = by_reference([&] { return run(dtype); });
    for (std::size_t i = 0; i < fast.size(); ++i) {
      EXPECT_EQ(fast[i].dtype(), plain[i].dtype());
      EXPECT_EQ(fast[i].to_bytes(), plain[i].to_bytes()) << name_of(dtype) << ", " << i;
    }
  }
}

/// Numbers of a dtype that a static_cast to another keeps in range; the others have no meaning there.
std::vector<double> in_range(DType from, DType to) {
  std::vector<double> kept;
  if (!is_floating(from)) {
    for (const double x :
         {0, 1, -1, 2, 100, 127, 128, -128, 200, 255, 256, 32767, 65535, 65536, 16777217, 2147483647}) {
      kept.push_back(x);
    }
    return kept;
  }
  double low = -kInfinity, high = kInfinity;
  if (is_integer(to)) {
    with_type(to, [&]<class T>() {
      if constexpr (std::is_integral_v<T>) {
        low = static_cast<double>(std::numeric_limits<T>::lowest()) - 1;
        high = static_cast<double>(std::numeric_limits<T>::max()) + 1;
      }
    });
  }
  for (const double x : values_of(special_values(from))) {
    if (!is_integer(to) || (x > low && x < high)) kept.push_back(x);
  }
  return kept;
}

TEST(ExactRows, CastsBetweenAllDtypesEqualTheReference) {
  for (int f = 0; f < kDTypeCount; ++f) {
    for (int t = 0; t < kDTypeCount; ++t) {
      const DType of = static_cast<DType>(f), to = static_cast<DType>(t);
      const auto run = [&] {
        const std::vector<double> values = by_reference([&] { return in_range(of, to); });
        const auto count = static_cast<std::int64_t>(values.size());
        // Integers between 2^53 and 2^63 too, which no f64 is.
        const NDArray x =
            is_floating(of)
                ? from(values, {count}).to(of)
                : concat(Arrays{from(values, {count}).to(DType::i64),
                                from(std::vector<std::int64_t>{Limits::max(), Limits::min(), (1LL << 53) + 1,
                                                               (1LL << 62) + 1, -(1LL << 40) - 3},
                                     {5})})
                      .to(of);
        Arrays results{x.to(to), x(reversed()).to(to), x(slice_from(1)).to(to)};
        // And back, where that is within the range of integers: a number outside becomes another on each processor.
        if (!is_integer(of) || is_integer(to)) results.push_back(x.to(to).to(of));
        // The bits of a NaN are not the same on each either.
        for (NDArray& y : results) {
          if (is_floating(y.dtype())) y = where(equal(y, y), y, 0);
        }
        return results;
      };
      const Arrays fast = run(), plain = by_reference(run);
      for (std::size_t i = 0; i < fast.size(); ++i) {
        const std::string what =
            std::string(name_of(of)) + " to " + std::string(name_of(to)) + ", " + std::to_string(i);
        EXPECT_EQ(fast[i].dtype(), plain[i].dtype()) << what;
        EXPECT_EQ(fast[i].to_bytes(), plain[i].to_bytes()) << what;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
