// Functions that wait, because values decide the shape of their results, and their forms with a size, which do not.
#include "sluice/operators/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <latch>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "operators_test_support.h"

namespace sluice::testing {
namespace {

using Integers = std::vector<std::int64_t>;

/// Elements of which about half are 0.
NDArray with_zeros(const Dims& shape, std::uint64_t seed, DType dtype) {
  RandomStream stream(seed);
  const NDArray numbers = randint(shape, stream, -1, 2);
  if (dtype == DType::boolean) return numbers > 0;
  return (dtype == DType::u8 ? abs(numbers) : numbers).to(dtype);
}

/// The first `size` of `all` (rows of `row` numbers), and `fill` behind them.
template <class T>
std::vector<T> padded(std::vector<T> all, std::int64_t size, T fill, std::int64_t row = 1) {
  all.resize(static_cast<std::size_t>(size * row), fill);
  return all;
}

/// What the tests below are about, on arrays of many shapes: also views, in which the elements do not lie in a row.
std::vector<NDArray> samples(DType dtype) {
  return {with_zeros({7}, 1, dtype),
          with_zeros({5, 6}, 2, dtype),
          with_zeros({4, 6, 3}, 3, dtype).transpose()(all, slice(5, 0, -2)),
          with_zeros({3, 1}, 4, dtype).broadcast_to({3, 4}),
          with_zeros({}, 5, dtype),
          with_zeros({0, 3}, 6, dtype),
          zeros({4}, dtype)};
}

TEST(Waiting, ASizeCutsOrFillsWhatNonzeroFinds) {
  for (const DType dtype : {DType::f32, DType::f16, DType::i64, DType::u8, DType::boolean}) {
    for (const NDArray& x : samples(dtype)) {
      const NDArray all_of_them = nonzero(x);
      for (const std::int64_t size : {0, 1, 4, 100}) {
        const NDArray some = nonzero(x, {.size = size, .fill = -1});
        EXPECT_EQ(some.shape(), (Dims{size, x.rank()})) << name_of(dtype);
        EXPECT_EQ(some.to_vector<std::int64_t>(),
                  padded<std::int64_t>(all_of_them.to_vector<std::int64_t>(), size, -1, x.rank()))
            << name_of(dtype) << " " << to_string(x.shape());
      }
    }
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(nonzero(from({0.0, nan, -0.0, 1e-300}, {4}), {.size = 3}).to_vector<std::int64_t>(), (Integers{1, 3, 0}));
}

TEST(Waiting, ASizeCutsOrFillsWhatMaskedSelectFinds) {
  for (const NDArray& mask : samples(DType::boolean)) {
    const NDArray x = drawn(mask.shape(), 9, DType::f32);
    const NDArray all_of_them = masked_select(x, mask);
    for (const std::int64_t size : {0, 1, 4, 100}) {
      const NDArray some = masked_select(x, mask, {.size = size, .fill = 0.5});
      EXPECT_EQ(some.to_vector<float>(), padded(all_of_them.to_vector<float>(), size, 0.5F)) << to_string(mask.shape());
    }
  }
  // Both broadcast.
  const NDArray mask = from<bool>({true, false, true}, {3});
  EXPECT_EQ(masked_select(arange(0, 2).reshape({2, 1}), mask, {.size = 5, .fill = 9}).to_vector<std::int64_t>(),
            (Integers{0, 0, 1, 1, 9}));
}

TEST(Waiting, ASizeCutsOrFillsWhatUniqueFinds) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::i8, DType::boolean}) {
    for (const NDArray& x : samples(dtype)) {
      const Unique whole = unique(x);
      const std::int64_t n = whole.values.count();
      for (const std::int64_t size : {0, 1, 2, 6}) {
        const Unique some = unique(x, {.size = size, .fill = 1});
        const auto values = [&](const NDArray& y) { return y.to(DType::f64).to_vector<double>(); };
        EXPECT_EQ(values(some.values), padded(values(whole.values), size, 1.0)) << name_of(dtype);
        EXPECT_EQ(some.counts.to_vector<std::int64_t>(),
                  padded<std::int64_t>(whole.counts.to_vector<std::int64_t>(), size, 0));
        EXPECT_EQ(some.inverse.shape(), x.shape());
        EXPECT_EQ(some.inverse.to_vector<std::int64_t>(), whole.inverse.to_vector<std::int64_t>());
        if (n > 0 && size > n) {
          EXPECT_EQ(values(unique(x, {.size = size}).values),
                    padded(values(whole.values), size, values(whole.values)[0]));
        }
      }
    }
  }
}

/// With a size nothing waits: the values come when the calls have returned.
TEST(Waiting, FormsWithASizeReturnBeforeTheirInputsAreThere) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray values = from({3.0F, 0.0F, 3.0F, -1.0F}, {4}), x = zeros({4});
  values.wait();
  std::latch told(1);
  engine.engine().push([&told] { told.wait(); }, {update(x)});
  x.assign(values);
  const NDArray places = nonzero(x, {.size = 5, .fill = -1}), chosen = masked_select(x, x > 0, {.size = 3});
  const Unique different = unique(x, {.size = 3});
  const NDArray numbers = bincount(x.to(DType::i64) + 1, 5), y = x.copy();
  y(y > 0) *= 2;
  y(y < 0) /= -1.0F;
  y(y < 0) = 7;
  told.count_down();
  EXPECT_EQ(places.to_vector<std::int64_t>(), (Integers{0, 2, 3, -1, -1}));
  EXPECT_EQ(chosen.to_vector<float>(), (std::vector<float>{3, 3, 0}));
  EXPECT_EQ(different.values.to_vector<float>(), (std::vector<float>{-1, 0, 3}));
  EXPECT_EQ(numbers.to_vector<std::int64_t>(), (Integers{1, 1, 0, 0, 2}));
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{6, 0, 6, 1}));
}

TEST(Waiting, WaitsThrowThePoisonAndFormsWithASizePassItOn) {
  const NDArray x = zeros({4});
  push_op([](ArrayContext&) { throw std::runtime_error("no such frame"); }, {}, {x}, {.name = "decode"});
  const auto root_of = [](auto f) { return message<Error>(f).substr(0, 8); };
  EXPECT_EQ(root_of([&] { nonzero(x); }), "[decode]");
  EXPECT_EQ(root_of([&] { masked_select(ones({4}), x > 0); }), "[decode]");
  EXPECT_EQ(root_of([&] { NDArray y = ones({4})(x > 0); }), "[decode]");
  EXPECT_EQ(root_of([&] { unique(x); }), "[decode]");
  EXPECT_EQ(root_of([&] { bincount(x.to(DType::i64)); }), "[decode]");
  EXPECT_EQ(root_of([&] { nonzero(x, {.size = 2}).wait(); }), "[decode]");
  EXPECT_EQ(root_of([&] { unique(x, {.size = 2}).values.wait(); }), "[decode]");
}

/// In a capture the forms without a size are refused by name. (Arrays cannot be captured yet at all, but these never.)
TEST(Waiting, CapturesRefuseIt) {
  const NDArray x = ones({4}), mask = ones({4}, DType::boolean), whole = ones({4}, DType::i64);
  const auto refused = [&](auto f) {
    const std::string text = message([&] { default_engine().capture(f); });
    EXPECT_EQ(text.find('\n'), text.npos);
    const std::size_t at = text.find(": ");
    return text.substr(0, text.find(']') + 1) + text.substr(std::min(at, text.size()));
  };
  const std::string why = ": waits for values that decide the shape of its result, which a capture must not; ";
  EXPECT_EQ(refused([&] { nonzero(x); }), "[nonzero]" + why + "give a size: nonzero(x, {.size = n})");
  EXPECT_EQ(refused([&] { masked_select(x, mask); }),
            "[masked_select]" + why + "give a size: masked_select(x, mask, {.size = n})");
  EXPECT_EQ(refused([&] { NDArray y = x(mask); }), "[index]" + why + "use masked_select(x, mask, {.size = n})");
  EXPECT_EQ(refused([&] { unique(x); }), "[unique]" + why + "give a size: unique(x, {.size = n})");
  EXPECT_EQ(refused([&] { bincount(whole); }), "[bincount]" + why + "give a size: bincount(x, n)");
}

}  // namespace
}  // namespace sluice::testing
