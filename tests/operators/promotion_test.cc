// Arrays of several dtypes in one operator, and numbers beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <type_traits>

#include "operators_test_support.h"
#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16,   DType::i8,
                          DType::u8,  DType::i32, DType::i64, DType::boolean};
/// What two dtypes give, by the rows and columns above; "-" where they do not mix.
constexpr const char* kTable[9][9] = {
    {"f32", "f64", "f32", "f32", "f32", "f32", "f32", "f32", "f32"},
    {"f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64"},
    {"f32", "f64", "f16", "-", "f16", "f16", "f16", "f16", "f16"},
    {"f32", "f64", "-", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"},
    {"f32", "f64", "f16", "bf16", "i8", "i32", "i32", "i64", "i8"},
    {"f32", "f64", "f16", "bf16", "i32", "u8", "i32", "i64", "u8"},
    {"f32", "f64", "f16", "bf16", "i32", "i32", "i32", "i64", "i32"},
    {"f32", "f64", "f16", "bf16", "i64", "i64", "i64", "i64", "i64"},
    {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "bool"},
};

NDArray numbers(DType dtype) { return from<std::int64_t>({1, 0, 3}, {3}).to(dtype); }

TEST(Promotion, IsTheTable) {
  static_assert(kDTypeCount == 9, "a new dtype belongs into this table");
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 9; ++j) {
      const std::optional<DType> common = promote(kAll[i], kAll[j]);
      EXPECT_EQ(common ? name_of(*common) : "-", kTable[i][j]) << name_of(kAll[i]) << " and " << name_of(kAll[j]);
    }
  }
}

TEST(Promotion, HoldsForOperators) {
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 9; ++j) {
      SCOPED_TRACE(std::string(name_of(kAll[i])) + " and " + std::string(name_of(kAll[j])));
      const NDArray a = numbers(kAll[i]), b = numbers(kAll[j]);
      const std::string wanted = kTable[i][j];
      if (wanted == "-") {
        for (const auto& text :
             {message([&] { a + b; }), message([&] { less(a, b); }), message([&] { where(a > 0, a, b); }), message([&] {
                concat({a, b});
              })}) {
          EXPECT_THAT(text, HasSubstr("no dtype holds both")) << text;
        }
        continue;
      }
      EXPECT_EQ(name_of(where(numbers(DType::boolean), a, b).dtype()), wanted);
      EXPECT_EQ(name_of(concat({a, b}).dtype()), wanted);
      EXPECT_EQ(name_of(stack({a, b}).dtype()), wanted);
      EXPECT_EQ((a == b).dtype(), DType::boolean);
      const std::vector<bool> same(3, true);
      // 3 as bool is 1.
      const bool one_bool = (kAll[i] == DType::boolean) != (kAll[j] == DType::boolean);
      EXPECT_EQ((a == b).to_vector<bool>(), (std::vector<bool>{true, true, !one_bool}));
      if (wanted == "bool") {
        EXPECT_THAT(message([&] { a + b; }), HasSubstr("no arithmetic in bool"));
        continue;
      }
      const NDArray sum = a + b;
      EXPECT_EQ(name_of(sum.dtype()), wanted);
      EXPECT_EQ(sum.to(DType::f64).to_vector<double>(), (a.to(DType::f64) + b.to(DType::f64)).to_vector<double>());
    }
  }
}

TEST(Promotion, AWriteNeverWidens) {
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 9; ++j) {
      SCOPED_TRACE(std::string(name_of(kAll[j])) + " into " + std::string(name_of(kAll[i])));
      NDArray x = zeros({3}, kAll[i]);
      const NDArray y = numbers(kAll[j]);
      if (kTable[i][j] == name_of(kAll[i])) {
        x.assign(y);
        EXPECT_EQ(x.to(DType::i64).to_vector<std::int64_t>(), y.to(DType::i64).to_vector<std::int64_t>());
        if (kAll[i] == DType::boolean) continue;
        x += y;
        EXPECT_EQ(x.dtype(), kAll[i]);
        EXPECT_EQ(x.to(DType::i64).to_vector<std::int64_t>(), (y.to(DType::i64) * 2).to_vector<std::int64_t>());
      } else {
        EXPECT_THAT(message([&] { x.assign(y); }), HasSubstr("widen"));
        EXPECT_THAT(message([&] { x += y; }), HasSubstr("widen"));
      }
    }
  }
}

TEST(Promotion, GradientsHaveTheInputsDtypes) {
  const NDArray a = ones({3}).with_grad(), b = full({3}, 2.0, DType::f64).with_grad();
  sum(a * b).backward();
  EXPECT_EQ(a.grad().dtype(), DType::f32);
  EXPECT_EQ(b.grad().dtype(), DType::f64);
  EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{1, 1, 1}));
}

TEST(Promotion, ANumberTakesTheArraysDtype) {
  for (DType dtype : kAll) {
    if (dtype == DType::boolean) continue;
    EXPECT_EQ((numbers(dtype) * 2).dtype(), dtype);
    EXPECT_EQ((1 - numbers(dtype)).dtype(), dtype);
    EXPECT_EQ((numbers(dtype) >= 1).to_vector<bool>(), (std::vector<bool>{true, false, true}));
  }
  EXPECT_EQ((numbers(DType::boolean) == true).to_vector<bool>(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(maximum(0, from<float>({-1, 2}, {2})).to_vector<float>(), (std::vector<float>{0, 2}));
  EXPECT_EQ(pow(2, from<float>({1, 3}, {2})).to_vector<float>(), (std::vector<float>{2, 8}));
  EXPECT_EQ(where(numbers(DType::boolean), from<float>({1.5, 2, 3}, {3}), 0).to_vector<float>(),
            (std::vector<float>{1.5F, 0, 3}));
}

TEST(Promotion, ANumberThatTheDtypeCannotHoldThrows) {
  const NDArray small = numbers(DType::i32), large = numbers(DType::i64);
  NDArray x = numbers(DType::i32);
  EXPECT_THAT(message([&] { small * 0.5; }), HasSubstr("the number 0.5 beside i32; use to(dtype)"));
  EXPECT_THAT(message([&] { less(small, 2.0); }), HasSubstr("the number 2.0 beside i32"));
  EXPECT_THAT(message([&] { small + 3000000000; }), HasSubstr("the number 3000000000 beside i32"));
  EXPECT_THAT(message([&] { large* std::numeric_limits<std::uint64_t>::max(); }),
              HasSubstr("the number 18446744073709551615 beside i64"));
  EXPECT_THAT(message([&] { numbers(DType::u8) - 256; }), HasSubstr("the number 256 beside u8"));
  EXPECT_THAT(message([&] { x += 0.5; }), HasSubstr("the number 0.5 beside i32"));
  EXPECT_THAT(message([&] { x.fill(.5); }), HasSubstr("the number 0.5 is none of i32"));
  EXPECT_THAT(message([&] { x.fill(3e9); }), HasSubstr("is none of i32"));
  EXPECT_THAT(message([&] { full({}, 1e10, DType::i32); }), HasSubstr("is none of i32"));
  EXPECT_THAT(message([&] { full({}, 2, DType::boolean); }), HasSubstr("the number 2 is none of bool"));
  EXPECT_THAT(message([&] { where(numbers(DType::boolean), small, 0.5); }), HasSubstr("the number 0.5 beside i32"));
  EXPECT_THAT(message([&] { full({}, 1e300, DType::f64).item<float>(); }), HasSubstr("does not fit"));
  EXPECT_EQ((ones({1}, DType::f64) * std::numeric_limits<std::uint64_t>::max()).item<double>(), 18446744073709551615.0);
}

TEST(Promotion, RangesOfRealNumbersAreReal) {
  EXPECT_EQ(arange(0, 1, .25).to_vector<float>(), (std::vector<float>{0, .25F, .5F, .75F}));
  EXPECT_EQ(arange(3).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(arange(1, 4).dtype(), DType::i64);
  EXPECT_THAT(message([] { arange(0, 1, .25, DType::i64); }), HasSubstr("the number 0.25 is none of i64"));
}

TEST(Promotion, SumsOfSmallIntegersAreI64) {
  for (DType dtype : {DType::i8, DType::u8, DType::boolean}) {
    const NDArray x = ones({1000}, dtype);
    EXPECT_EQ(sum(x).dtype(), DType::i64);
    EXPECT_EQ(sum(x).item<std::int64_t>(), 1000);
  }
  EXPECT_EQ(max(full({3}, 200, DType::u8)).item<std::uint8_t>(), 200);
}

TEST(Promotion, ZerosHaveSigns) {
  const NDArray zero = zeros({1}), negative = -zero;
  EXPECT_TRUE(std::signbit(negative.item<float>()));
  EXPECT_FALSE(std::signbit(abs(negative).item<float>()));
}

// An array is no condition, and && and || are not offered.
template <class T>
concept Condition = requires(T x) {
  x ? 1 : 0;
};
template <class T>
concept Conjunction = requires(T x) {
  x&& x;
};
static_assert(!Condition<NDArray> && !Conjunction<NDArray>);
static_assert(!std::is_constructible_v<bool, NDArray>);

TEST(Axes, AreOneSeveralAllOrNone) {
  const NDArray x = arange(24).reshape({2, 3, 4}).to(DType::f32);
  EXPECT_EQ(sum(x).shape(), Dims());
  EXPECT_EQ(sum(x, all).shape(), Dims());
  EXPECT_EQ(sum(x, 0).shape(), (Dims{3, 4}));
  EXPECT_EQ(sum(x, -1, {.keep = true}).shape(), (Dims{2, 3, 1}));
  EXPECT_EQ(sum(x, {0, 2}).to_vector<float>(), (std::vector<float>{60, 92, 124}));
  EXPECT_EQ(sum(x, {}).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(max(x, {}).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(mean(x, {}).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(sum(full({}, 3), 0).item<float>(), 3);
  const NDArray leaf = x.detach().with_grad();
  sum(square(sum(leaf, {}))).backward();
  EXPECT_EQ(leaf.grad().to_vector<float>(), (x * 2).to_vector<float>());
}

}  // namespace
}  // namespace sluice::testing
