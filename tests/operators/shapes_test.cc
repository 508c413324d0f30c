// Indexing by arrays, and functions on shapes, against values written out by hand or made by plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Whole = std::vector<std::int64_t>;

Whole values(const NDArray& x) { return x.to(DType::i64).to_vector<std::int64_t>(); }
NDArray counted(const Dims& shape, DType dtype = DType::i64) {
  return arange(0, shape.count()).reshape(shape).to(dtype);
}

TEST(Indexing, NewAxesAndEllipsis) {
  const NDArray x = counted({2, 3, 4});
  EXPECT_EQ(x(newaxis, ellipsis, 1).shape(), (Dims{1, 2, 3}));
  EXPECT_EQ(x(0, newaxis, ellipsis, newaxis).shape(), (Dims{1, 3, 4, 1}));
  EXPECT_EQ(x(ellipsis).shape(), x.shape());
  EXPECT_EQ(x(all, all, all, ellipsis).shape(), x.shape());
  EXPECT_THAT(values(x(1, ellipsis, -1)), ElementsAre(15, 19, 23));
  x(ellipsis, 0) = 7;
  EXPECT_THAT(values(x(1, all, 0)), ElementsAre(7, 7, 7));
  EXPECT_THAT(message<std::exception>([&] { x(ellipsis, ellipsis); }), HasSubstr("more than one ellipsis"));
  EXPECT_THAT(message<std::exception>([&] { x(0, 0, 0, ellipsis, 0); }), HasSubstr("(2, 3, 4): 4 indices"));
}

/// x(rows) of any dtype, for index arrays of any dtype.
TEST(Indexing, ByArraysOfEveryDType) {
  for (int t = 0; t < kDTypeCount; ++t) {
    for (const DType index : {DType::i8, DType::u8, DType::i32, DType::i64}) {
      const DType dtype = static_cast<DType>(t);
      const NDArray x = (counted({4, 3}) - 1 > 3).to(dtype), rows = numbers({3, 0, 3}, {3}).to(index);
      const NDArray y = x(rows);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_THAT(values(y), ElementsAre(1, 1, 1, 0, 0, 0, 1, 1, 1));
      x(rows) = 0;
      EXPECT_EQ(values(sum(x.to(DType::i64))), Whole{1 + 3}) << name_of(dtype);
    }
  }
}

TEST(Indexing, PlacesOfIndexArraysAreNumPys) {
  const NDArray x = counted({2, 3, 4, 5}), a = numbers({1, 0}, {2}), b = numbers({2, 0, -1}, {3, 1});
  EXPECT_EQ(x(a).shape(), (Dims{2, 3, 4, 5}));
  EXPECT_EQ(x(all, b).shape(), (Dims{2, 3, 1, 4, 5}));
  EXPECT_EQ(x(all, a, b).shape(), (Dims{2, 3, 2, 5}));
  EXPECT_EQ(x(all, a, 1, b).shape(), (Dims{2, 3, 2}));
  EXPECT_EQ(x(a, all, all, 1).shape(), (Dims{2, 3, 4}));
  EXPECT_EQ(x(ellipsis, newaxis, a).shape(), (Dims{2, 3, 4, 1, 2}));
  EXPECT_EQ(x(1, numbers({2}, {})).shape(), (Dims{4, 5}));
  ASSERT_EQ(values(x(all, a, b)).size(), 60U);
  EXPECT_EQ(x(0, all, 1).shape(), (Dims{3, 5}));
}

TEST(Indexing, RefusesInOneLine) {
  const NDArray x = counted({2, 3, 4}), a = numbers({1, 0}, {2}), b = numbers({2, 0, -1}, {3});
  EXPECT_THAT(message<std::exception>([&] { x(a, all, a).get(); }), HasSubstr("[index] shapes_test.cc:"));
  EXPECT_THAT(message<std::exception>([&] { x(a, all, a).get(); }), HasSubstr("side by side"));
  EXPECT_THAT(message<std::exception>([&] { x(0, all, a).get(); }),
              HasSubstr("a position must stand beside the index arrays"));
  EXPECT_THAT(message<std::exception>([&] { x(a, b).get(); }),
              HasSubstr("indices of shapes (2,) and (3,) do not broadcast"));
  EXPECT_THAT(message<std::exception>([&] { x(a.to(DType::f32)).get(); }), HasSubstr("integers or bool, not f32"));
  EXPECT_THAT(message<std::exception>([&] { x(b > 0).get(); }), HasSubstr("a mask of (3,) from axis 0"));
  EXPECT_THAT(message<std::exception>([&] { x(a, a, a, a).get(); }), HasSubstr("indices for 4 axes"));
  EXPECT_THAT(message<std::exception>([&] { x(a) = 0.5; }), HasSubstr("the number 0.5 beside i64"));
  EXPECT_THAT(message<std::exception>([&] { x(a) = ones({5}); }), HasSubstr("[index]"));
  EXPECT_EQ(values(x), values(counted({2, 3, 4})));
}

TEST(Indexing, ANumberOutOfRangePoisonsTheResult) {
  const NDArray x = counted({4, 3}, DType::f32);
  for (const std::int64_t bad : {std::int64_t{4}, std::int64_t{-5}}) {
    const NDArray y = x(numbers({0, bad, 1}, {3}));
    EXPECT_THAT(message<std::exception>([&] { y.wait(); }),
                HasSubstr(": the index " + std::to_string(bad) + " (element 1) is not in [-4, 4)"));
    const NDArray w = x.copy();
    w(numbers({0, bad}, {2})) = 1;
    EXPECT_THAT(message<std::exception>([&] { w.wait(); }), HasSubstr("shapes_test.cc"));
    w.fill(2);  // heals it
    EXPECT_EQ(w.to_vector<float>()[11], 2);
  }
  const NDArray none = zeros({0, 3});
  const NDArray nothing = none(numbers({}, {0}));
  EXPECT_EQ(nothing.shape(), (Dims{0, 3}));
  EXPECT_THAT(message<std::exception>([&] { none(numbers({0}, {1})).get().wait(); }),
              HasSubstr("the index 0 (element 0) is not in [0, 0)"));
}

TEST(Indexing, WritesKeepTheLastAndAddAll) {
  const NDArray x = zeros({3}, DType::i64), rows = numbers({2, 0, 2, 2}, {4});
  x(rows) = numbers({1, 2, 3, 4}, {4});
  EXPECT_THAT(values(x), ElementsAre(2, 0, 4));
  x(rows) += numbers({1, 2, 3, 4}, {4});
  EXPECT_THAT(values(x), ElementsAre(4, 0, 12));
  x(rows) -= 1;
  EXPECT_THAT(values(x), ElementsAre(3, 0, 9));
  x(rows) *= 2;
  EXPECT_THAT(values(x), ElementsAre(6, 0, 18));
  x(x > 5) = 1;
  EXPECT_THAT(values(x), ElementsAre(1, 0, 1));
  x(x > 0) = numbers({8, 9}, {2});
  EXPECT_THAT(values(x), ElementsAre(8, 0, 9));
  x(rows(slice(0, 2))) = x(numbers({1, 2}, {2}));
  EXPECT_THAT(values(x), ElementsAre(9, 0, 0));
  // To a part of a larger array, whose axes are turned.
  const NDArray y = zeros({4, 3}, DType::i64);
  y.transpose()(slice(0, 3, 2), numbers({3, -3}, {2})) = numbers({1, 2, 3, 4}, {2, 2});
  EXPECT_THAT(values(y), ElementsAre(0, 0, 0, 2, 0, 4, 0, 0, 0, 1, 0, 3));
}

/// On any number of threads, and by any kernels.
TEST(Indexing, ManyWritersGiveTheBitsOfPlainLoops) {
  constexpr std::int64_t kRows = 50, kWriters = 3000, kWidth = 40;
  RandomStream stream(3);
  const NDArray rows = randint({kWriters}, stream, -kRows, kRows), y = uniform({kWriters, kWidth}, stream);
  const NDArray start = uniform({kRows, kWidth}, stream);
  const Whole r = rows.to_vector<std::int64_t>();
  const std::vector<float> from_y = y.to_vector<float>();
  std::vector<float> put = start.to_vector<float>();
  std::vector<double> totals(put.begin(), put.end());  // many writers are added in double
  for (std::size_t i = 0; i < r.size(); ++i) {
    const auto row = static_cast<std::size_t>(r[i] < 0 ? r[i] + kRows : r[i]);
    for (std::size_t j = 0; j < kWidth; ++j) {
      put[row * kWidth + j] = from_y[i * kWidth + j];
      totals[row * kWidth + j] += static_cast<double>(from_y[i * kWidth + j]);
    }
  }
  const std::vector<float> added(totals.begin(), totals.end());
  const NDArray a = start.copy(), b = start.copy();
  a(rows) = y;
  b(rows) += y;
  EXPECT_EQ(a.to_vector<float>(), put);
  EXPECT_EQ(b.to_vector<float>(), added);
  const NDArray recorded = start.copy().with_grad() * 1;
  recorded(rows) += y;
  EXPECT_EQ(recorded.to_vector<float>(), added);
}

TEST(Indexing, OverwrittenElementsHaveNoGradient) {
  const NDArray x = ones({3}).with_grad(), y = ones({3}).with_grad();
  const NDArray z = x * 2, kept = z * z;
  z(numbers({2, 0, 2}, {3})) = y * 3;
  sum(z * z + kept).backward();
  EXPECT_THAT(x.grad().to_vector<float>(), ElementsAre(8, 16, 8));   // of kept; and of z in its middle
  EXPECT_THAT(y.grad().to_vector<float>(), ElementsAre(0, 18, 18));  // the first was overwritten by the last
  EXPECT_THAT(message<std::exception>([&] { x(numbers({0}, {1})) = 1; }), HasSubstr("NoGrad"));
  const NoGrad scope;
  x(numbers({0}, {1})) = 5;
  EXPECT_EQ(x.to_vector<float>()[0], 5);
}

TEST(IndexFunctions, OfIntegers) {
  const NDArray x = counted({2, 3});
  EXPECT_THAT(values(gather(x, 1, numbers({2, 0, -1, 1}, {2, 2}))), ElementsAre(2, 0, 5, 4));
  EXPECT_THAT(values(take(x, numbers({5, -6}, {2}))), ElementsAre(5, 0));
  EXPECT_THAT(values(index_select(x, -1, numbers({2, 2}, {2}))), ElementsAre(2, 2, 5, 5));
  EXPECT_THAT(values(index_add(x, 1, numbers({0, 0}, {2}), ones({2, 2}, DType::i64))), ElementsAre(2, 1, 2, 5, 4, 5));
  EXPECT_THAT(values(scatter(x, 1, numbers({0, 0}, {1, 2}), numbers({8, 9}, {1, 2}))), ElementsAre(9, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(scatter_add(x, 0, numbers({1, 1, 0}, {1, 3}), x)), ElementsAre(0, 1, 4, 3, 5, 5));
  EXPECT_THAT(values(masked_fill(x, x > 3, 0)), ElementsAre(0, 1, 2, 3, 0, 0));
  EXPECT_THAT(values(masked_select(x, numbers({0, 1, 1}, {3}).to(DType::boolean))), ElementsAre(1, 2, 4, 5));
  const NDArray places = nonzero(x(all, slice(0, 2)));
  EXPECT_EQ(places.shape(), (Dims{3, 2}));
  EXPECT_THAT(values(places), ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_EQ(nonzero(zeros({0, 4})).shape(), (Dims{0, 2}));
  EXPECT_EQ(nonzero(ones({})).shape(), (Dims{1, 0}));
  EXPECT_EQ(gather(zeros({0, 3}), 1, zeros({0, 2}, DType::i64)).shape(), (Dims{0, 2}));
  EXPECT_THAT(message<std::exception>([&] { gather(x, 1, counted({3, 1})); }), HasSubstr("[gather] shapes_test.cc:"));
  EXPECT_THAT(message<std::exception>([&] { gather(x, 2, x); }), HasSubstr("no axis 2"));
  EXPECT_THAT(message<std::exception>([&] { scatter(x, 1, x, ones({1}, DType::i64)); }), HasSubstr("a source of (1,)"));
  EXPECT_THAT(message<std::exception>([&] { take(x, ones({2})); }), HasSubstr("integers, not f32"));
}

TEST(Shapes, AreThoseOfPlainLoops) {
  const NDArray x = counted({2, 3});
  EXPECT_THAT(values(x.flip(-1)), ElementsAre(2, 1, 0, 5, 4, 3));
  EXPECT_THAT(values(x.flip()), ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_THAT(values(roll(x, 1, 1)), ElementsAre(2, 0, 1, 5, 3, 4));
  EXPECT_THAT(values(roll(x, -5, 1)), ElementsAre(2, 0, 1, 5, 3, 4));
  EXPECT_THAT(values(tile(numbers({1, 2}, {2}), {2, 2})), ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
  EXPECT_THAT(values(repeat(numbers({1, 2}, {2}), 2)), ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(values(pad(numbers({1, 2, 3}, {3}), {{2, 1}}, {PadMode::reflect})), ElementsAre(3, 2, 1, 2, 3, 2));
  EXPECT_THAT(values(pad(numbers({1, 2, 3}, {3}), {{2, 1}}, {PadMode::edge})), ElementsAre(1, 1, 1, 2, 3, 3));
  EXPECT_THAT(values(pad(numbers({1, 2, 3}, {3}), {{2, 1}}, {.value = 9})), ElementsAre(9, 9, 1, 2, 3, 9));
  EXPECT_THAT(values(x.diagonal()), ElementsAre(0, 4));
  EXPECT_THAT(values(x.diagonal(1)), ElementsAre(1, 5));
  EXPECT_THAT(values(x.diagonal(-1)), ElementsAre(3));
  EXPECT_EQ(x.diagonal(7).shape(), (Dims{0}));
  EXPECT_THAT(values(tril(x)), ElementsAre(0, 0, 0, 3, 4, 0));
  EXPECT_THAT(values(triu(x, 1)), ElementsAre(0, 1, 2, 0, 0, 5));
  EXPECT_THAT(values(arange(5).unfold(0, 3, 2)), ElementsAre(0, 1, 2, 2, 3, 4));
  EXPECT_EQ(ones({1, 3, 1}).squeeze().shape(), (Dims{3}));
  EXPECT_EQ(counted({2, 3, 4}).movedim(0, -1).shape(), (Dims{3, 4, 2}));
  EXPECT_EQ(counted({2, 3, 4}).swapaxes(0, -1).shape(), (Dims{4, 3, 2}));
  const std::vector<NDArray> parts = split(arange(7), 3), grids = meshgrid({arange(2), arange(3)});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_THAT(values(parts[2]), ElementsAre(6));
  EXPECT_EQ(chunk(arange(7), 4).size(), 4U);
  EXPECT_EQ(chunk(arange(5), 4).size(), 3U);  // of 2, 2 and 1
  EXPECT_THAT(values(grids[0]), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(values(grids[1]), ElementsAre(0, 1, 2, 0, 1, 2));
  x.diagonal().fill(9);  // views write through
  EXPECT_THAT(values(x), ElementsAre(9, 1, 2, 3, 9, 5));
  EXPECT_THAT(message<std::exception>([&] { split(x, {1, 1}, 1); }), HasSubstr("[split] shapes_test.cc:"));
  EXPECT_THAT(message<std::exception>([&] { pad(x, {{0, 0}, {3, 0}}, {PadMode::reflect}); }), HasSubstr("too short"));
  EXPECT_THAT(message<std::exception>([&] { pad(x, {{0, 0}}); }), HasSubstr("1 pairs"));
  EXPECT_THAT(message<std::exception>([&] { x.unfold(0, 3, 1); }), HasSubstr("windows of 3"));
  EXPECT_THAT(message<std::exception>([&] { tril(arange(3)); }), HasSubstr("no matrix"));
}

TEST(Shapes, OfRankEightAndOfNoElements) {
  const Dims eight{1, 2, 1, 2, 1, 2, 1, 2};
  const NDArray x = counted(eight);
  EXPECT_EQ(tile(x, {1, 1, 1, 1, 1, 1, 1, 3}).shape(), (Dims{1, 2, 1, 2, 1, 2, 1, 6}));
  EXPECT_EQ(repeat(x, 2, 0).shape(), (Dims{2, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_THAT(values(x(ellipsis, numbers({1}, {1}))), ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
  EXPECT_THAT(message<std::exception>([&] { x(numbers({0}, {1, 1})).get(); }), HasSubstr("more than 8 axes"));
  EXPECT_THAT(message<std::exception>([&] { x(newaxis); }), HasSubstr("more than 8 axes"));
  EXPECT_EQ(values(roll(x, 1, -1).flip(-1)), values(x));
  const NDArray none = zeros({0, 3});
  EXPECT_EQ(tile(none, {2, 2}).shape(), (Dims{0, 6}));
  EXPECT_EQ(repeat(none, 0, 1).shape(), (Dims{0, 0}));
  EXPECT_EQ(none.flip().shape(), none.shape());
  EXPECT_EQ(roll(none, 3, 0).shape(), none.shape());
  EXPECT_EQ(pad(none, {{1, 1}, {0, 0}}).shape(), (Dims{2, 3}));
  EXPECT_EQ(tril(none).shape(), none.shape());
  EXPECT_EQ(split(none, 2).size(), 1U);
}

TEST(Creation, OfShapesAndOfOthersLikeness) {
  EXPECT_EQ(zeros(3).shape(), (Dims{3}));
  EXPECT_EQ(zeros({}).shape(), Dims());
  EXPECT_EQ(zeros_like(ones({2}), DType::i8).dtype(), DType::i8);
  EXPECT_THAT(values(ones_like(zeros({2}), DType::boolean)), ElementsAre(1, 1));
  EXPECT_THAT(values(full_like(zeros({2}, DType::i32), 7)), ElementsAre(7, 7));
  EXPECT_EQ(empty_like(zeros({2}), DType::f16).dtype(), DType::f16);
  EXPECT_THAT(message<std::exception>([] { full_like(zeros({2}, DType::u8), 256); }), HasSubstr("[full_like]"));
  EXPECT_THAT(linspace(0, 1, 5).to_vector<float>(), ElementsAre(0, 0.25, 0.5, 0.75, 1));
  EXPECT_EQ(linspace(0.1, 0.7, 8, DType::f64).to_vector<double>().back(), 0.7);
  EXPECT_THAT(linspace(3, 5, 1).to_vector<float>(), ElementsAre(3));
  EXPECT_EQ(linspace(3, 5, 0).shape(), (Dims{0}));
  EXPECT_THAT(values(eye(2)), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(values(eye(2, 3, DType::i8)), ElementsAre(1, 0, 0, 0, 1, 0));
  EXPECT_EQ(eye(0).shape(), (Dims{0, 0}));
}

TEST(Creation, RandomIntegersAreThoseOfPhilox) {
  for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64}) {
    const auto run = [&] {
      RandomStream stream(5, 6);
      return randint({1000}, stream, 3, 100, dtype);
    };
    const Whole got = values(run());
    const ElementKey key(RandomKey{5, 6, 0});
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], uniform_int(key, i, 3, 100));
    EXPECT_EQ(by_reference([&] { return values(run()); }), got);
  }
  RandomStream stream(5);
  EXPECT_THAT(message<std::exception>([&] { randint({2}, stream, 0, 257, DType::u8); }),
              HasSubstr("[randint] shapes_test.cc:"));
  EXPECT_THAT(message<std::exception>([&] { randint({2}, stream, 2, 2); }), HasSubstr("[2, 2)"));
}

TEST(Creation, RandomChoicesHaveTheirProbabilities) {
  RandomStream stream(8);
  constexpr std::int64_t kDraws = 20000;
  EXPECT_NEAR(mean(bernoulli(kDraws, stream, 0.3).to(DType::f64)).item<double>(), 0.3, 0.02);
  EXPECT_THAT(values(bernoulli(from({0.0, 1.0}, {2}), stream)), ElementsAre(0, 1));
  EXPECT_THAT(message<std::exception>([&] { bernoulli(2, stream, 1.5); }), HasSubstr("[bernoulli]"));
  const std::vector<double> wanted{0.1, 0.6, 0.3};
  const NDArray picks = categorical(log(from(wanted, {3})).broadcast_to({kDraws, 3}), stream);
  for (std::int64_t k = 0; k < 3; ++k) {
    const double share = mean((picks == k).to(DType::f64)).item<double>();
    EXPECT_NEAR(share, wanted[static_cast<std::size_t>(k)], 0.02) << k;
  }
  Whole order = randperm(1000, stream).to_vector<std::int64_t>();
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, arange(1000).to_vector<std::int64_t>());
  RandomStream again(8, 1), other(8, 1);
  EXPECT_EQ(randperm(50, again).to_vector<std::int64_t>(), randperm(50, other).to_vector<std::int64_t>());
}

}  // namespace
}  // namespace sluice::testing
