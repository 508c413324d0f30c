// Reductions, scans and sorts against plain loops of the test's own: dtypes, shapes, NaN, infinities, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using Longs = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

NDArray doubles(const Doubles& values) { return from(values, {static_cast<std::int64_t>(values.size())}); }
Longs longs_of(const NDArray& x) { return x.to_vector<std::int64_t>(); }

/// Calls check() by the usual kernels and by the reference's.
template <class F>
void on_both(F check) {
  {
    SCOPED_TRACE("the usual kernels");
    check();
  }
  SCOPED_TRACE("the reference's kernels");
  by_reference([&] {
    check();
    return 0;
  });
}

TEST(Reductions, SumsAndProductsOfSmallIntegersAreI64) {
  on_both([] {
    for (const DType dtype : {DType::i8, DType::u8}) {
      const NDArray x = full({20}, 3, dtype);
      EXPECT_EQ(prod(x).dtype(), DType::i64);
      EXPECT_EQ(prod(x).item<std::int64_t>(), 3486784401);
      EXPECT_EQ(longs_of(cumsum(full({3}, 100, dtype))), (Longs{100, 200, 300}));
      EXPECT_EQ(longs_of(cumprod(full({3}, 100, dtype))), (Longs{100, 10000, 1000000}));
    }
    EXPECT_EQ(prod(ones({3}, DType::boolean)).item<std::int64_t>(), 1);
    EXPECT_EQ(prod(zeros({0})).item<float>(), 1);
  });
}

TEST(Reductions, AnyAndAllAreBool) {
  on_both([] {
    const NDArray x = from<float>({0, 0, 1, 2, 0, 0}, {3, 2});
    EXPECT_EQ(any(x).dtype(), DType::boolean);
    EXPECT_EQ(all(x, 1, {.keep = true}).shape(), (Dims{3, 1}));
    EXPECT_EQ(any(x, 1).to_vector<bool>(), (std::vector<bool>{false, true, false}));
    EXPECT_EQ(all(x, 1).to_vector<bool>(), (std::vector<bool>{false, true, false}));
    EXPECT_TRUE(all(x, {0, 1}).to_vector<bool>() == std::vector<bool>{false});
    EXPECT_TRUE(all(x == x).item<bool>());
    EXPECT_FALSE(any(x != x).item<bool>());
    EXPECT_FALSE(any(zeros({0, 3})).item<bool>());
    EXPECT_TRUE(all(zeros({0, 3})).item<bool>());
    EXPECT_EQ(all(zeros({0, 3}), 0).to_vector<bool>(), (std::vector<bool>{true, true, true}));
    EXPECT_TRUE(any(full({}, kNan)).item<bool>());
    EXPECT_EQ(any(x, {}).to_vector<bool>(), (x != 0).to_vector<bool>());
    // Many elements, of which one differs.
    NDArray many = ones({300, 301}, DType::boolean);
    many(299, 300) = false;
    EXPECT_FALSE(all(many).item<bool>());
    EXPECT_EQ(count_nonzero(many).item<std::int64_t>(), 300 * 301 - 1);
    EXPECT_EQ(longs_of(count_nonzero(x, 0)), (Longs{1, 1}));
  });
}

TEST(Reductions, PlacesOfExtremes) {
  on_both([] {
    const NDArray x = from<std::uint8_t>({3, 0, 7, 0, 7, 1}, {2, 3});
    EXPECT_EQ(longs_of(argmin(x)), (Longs{1, 0}));
    EXPECT_EQ(longs_of(argmax(x)), (Longs{2, 1}));
    EXPECT_EQ(longs_of(argmin(x, 0)), (Longs{1, 0, 1}));
    EXPECT_EQ(argmin(x, all).item<std::int64_t>(), 1);
    EXPECT_EQ(argmax(x, all).item<std::int64_t>(), 2);
    EXPECT_EQ(argmax(x, all, {.keep = true}).shape(), (Dims{1, 1}));
    EXPECT_EQ(argmin(from<std::int8_t>({-128, 127}, {2})).item<std::int64_t>(), 0);
    EXPECT_EQ(argmin(doubles({1, kNan, 0, kNan})).item<std::int64_t>(), 1);
    EXPECT_EQ(argmax(doubles({1, kNan, 5, kNan})).item<std::int64_t>(), 1);
  });
  EXPECT_THAT(message([] { argmin(zeros({0})); }), HasSubstr("[argmin]"));
}

TEST(Reductions, LogsumexpIsSafe) {
  on_both([] {
    EXPECT_DOUBLE_EQ(logsumexp(doubles({1000, 1000})).item<double>(), 1000 + std::log(2));
    EXPECT_DOUBLE_EQ(logsumexp(doubles({-1000, -1001})).item<double>(), -1000 + std::log1p(std::exp(-1)));
    EXPECT_EQ(logsumexp(doubles({-kInfinity, -kInfinity})).item<double>(), -kInfinity);
    EXPECT_EQ(logsumexp(doubles({kInfinity, 3})).item<double>(), kInfinity);
    EXPECT_TRUE(std::isnan(logsumexp(doubles({1, kNan, kInfinity})).item<double>()));
    EXPECT_EQ(logsumexp(zeros({0})).item<float>(), -std::numeric_limits<float>::infinity());
    const NDArray x = doubles({-kInfinity, 800, 800}).with_grad();
    logsumexp(x).backward();
    EXPECT_THAT(x.grad().to_vector<double>(), ::testing::Pointwise(::testing::DoubleNear(1e-12), Doubles{0, .5, .5}));
    const NDArray none = doubles({-kInfinity, -kInfinity}).with_grad();
    logsumexp(none).backward();
    EXPECT_EQ(none.grad().to_vector<double>(), (Doubles{0, 0}));
  });
  EXPECT_THAT(message([] { logsumexp(arange(3)); }), HasSubstr("i64"));
}

TEST(Reductions, ProductsHaveGradientsWhereElementsAreZero) {
  on_both([] {
    const NDArray one = doubles({2, 0, 3, 5}).with_grad();
    prod(one).backward();
    EXPECT_EQ(one.grad().to_vector<double>(), (Doubles{0, 30, 0, 0}));
    const NDArray two = doubles({2, 0, 3, 0}).with_grad();
    const NDArray first = grad(prod(two), {two}, {.create_graph = true})[0];
    EXPECT_EQ(first.to_vector<double>(), (Doubles{0, 0, 0, 0}));
    // d2/dx1 dx3 = 2 * 3
    EXPECT_EQ(grad(sum(first * doubles({0, 1, 0, 0})), {two})[0].to_vector<double>(), (Doubles{0, 0, 0, 6}));
    const NDArray scan = doubles({2, 0, 3, 0}).with_grad();
    sum(cumprod(scan)).backward();  // x0 + x0 x1 + x0 x1 x2 + x0 x1 x2 x3
    EXPECT_EQ(scan.grad().to_vector<double>(), (Doubles{1, 2 + 6, 0, 0}));
  });
}

TEST(Statistics, AreThoseOfTheFormulas) {
  const NDArray x = doubles({1, 2, 4, 9});
  EXPECT_DOUBLE_EQ(variance(x).item<double>(), (9 + 4 + 0 + 25) / 3.0);
  EXPECT_DOUBLE_EQ(variance(x, all, {.correction = 0}).item<double>(), 38 / 4.0);
  EXPECT_DOUBLE_EQ(stddev(x).item<double>(), std::sqrt(38 / 3.0));
  EXPECT_TRUE(std::isnan(variance(doubles({3})).item<double>()));
  EXPECT_EQ(variance(doubles({3}), all, {.correction = 0}).item<double>(), 0);
  EXPECT_EQ(variance(zeros({2, 3, 4}), {0, -1}, {.keep = true}).shape(), (Dims{1, 3, 1}));
  EXPECT_EQ(norm(doubles({3, -4})).item<double>(), 5);
  EXPECT_EQ(norm(doubles({3, -4}), 0, {.ord = 1}).item<double>(), 7);
  EXPECT_EQ(norm(doubles({3, -4}), 0, {.ord = kInfinity, .keep = true}).to_vector<double>(), (Doubles{4}));
  EXPECT_NEAR(norm(doubles({3, -4}), 0, {.ord = 3}).item<double>(), std::cbrt(27 + 64), 1e-12);
  EXPECT_EQ(norm(full({4}, 300, DType::f16)).item<float>(), 600);  // the squares are no f16
  EXPECT_EQ(median(doubles({9, 1, 4})).item<double>(), 4);
  EXPECT_EQ(median(doubles({9, 1, 4, 2})).item<double>(), 3);
  EXPECT_EQ(quantile(doubles({9, 1, 4, 2}), 0).item<double>(), 1);
  EXPECT_EQ(quantile(doubles({9, 1, 4, 2}), 1).item<double>(), 9);
  EXPECT_DOUBLE_EQ(quantile(doubles({9, 1, 4, 2}), 0.5 / 3).item<double>(), 1.5);
  EXPECT_TRUE(std::isnan(quantile(doubles({9, kNan, 1}), 0).item<double>()));
  EXPECT_EQ(quantile(doubles({1, kInfinity, kInfinity}), 0.5).item<double>(), kInfinity);
  EXPECT_EQ(median(zeros({2, 3, 4}), {0, 2}, {.keep = true}).shape(), (Dims{1, 3, 1}));
  EXPECT_EQ(median(zeros({2, 3, 4}), 1).shape(), (Dims{2, 4}));
  // Of no spread, and of nothing but zeros, the gradients are 0 and not NaN.
  for (const auto& f : {std::function([](const NDArray& a) { return stddev(a); }),
                        std::function([](const NDArray& a) { return norm(a); }),
                        std::function([](const NDArray& a) { return norm(a, all, {.ord = 3}); })}) {
    const NDArray zero = zeros({3}).with_grad();
    const NDArray y = f(zero);
    y.backward();
    EXPECT_EQ(y.item<float>(), 0);
    EXPECT_EQ(zero.grad().to_vector<float>(), (std::vector<float>{0, 0, 0}));
  }
  for (const auto& f : {std::function([](const NDArray& a) { return mean(a); }),
                        std::function([](const NDArray& a) { return variance(a); }),
                        std::function([](const NDArray& a) { return stddev(a); }),
                        std::function([](const NDArray& a) { return norm(a); }),
                        std::function([](const NDArray& a) { return median(a); })}) {
    EXPECT_THAT(message([&] { f(arange(3)); }), HasSubstr("needs a floating dtype, not i64"));
  }
  EXPECT_THAT(message([&] { quantile(x, 1.5); }), HasSubstr("q is 1.5"));
  EXPECT_THAT(message([&] { norm(x, all, {.ord = 0}); }), HasSubstr("ord is 0"));
  EXPECT_THAT(message([&] { median(zeros({0})); }), HasSubstr("nothing to choose from"));
}

TEST(Scans, LongLinesEqualALoop) {
  // More than one piece of a line, along each axis, also of views.
  on_both([] {
    RandomStream stream(3);
    for (const Dims& shape : {Dims{9001}, Dims{2, 9001}, Dims{9001, 2}}) {
      const NDArray whole = uniform(shape, stream, -1, 1, DType::f64);
      const int axis = shape.rank() == 1 || shape[0] == 2 ? -1 : 0;
      const NDArray x = whole.transpose().transpose(), best = whole.to(DType::i64);
      const NDArray sums = cumsum(x, axis), backwards = cumsum(x, axis, {.reverse = true});
      const NDArray logs = logcumsumexp(x, axis);
      const auto [values, places] = cummax(x, axis);
      const auto line = [&](const NDArray& y) {
        return (shape.rank() == 1 ? y : axis == 0 ? y(all, 1) : y(1)).contiguous();
      };
      const Doubles in = line(x).to_vector<double>(), got = line(sums).to_vector<double>(),
                    back = line(backwards).to_vector<double>(), log = line(logs).to_vector<double>(),
                    largest = line(values).to_vector<double>();
      const Longs place = longs_of(line(places));
      double total = 0, exponentials = 0, most = -kInfinity;
      std::int64_t at = 0;
      const double all_of_it = std::accumulate(in.begin(), in.end(), 0.0);
      for (std::size_t i = 0; i < in.size(); ++i) {
        EXPECT_NEAR(back[i], all_of_it - total, 1e-9);
        total += in[i];
        exponentials += std::exp(in[i]);
        if (in[i] > most) at = static_cast<std::int64_t>(i);
        most = std::max(most, in[i]);
        ASSERT_NEAR(got[i], total, 1e-9) << i;
        ASSERT_NEAR(log[i], std::log(exponentials), 1e-9) << i;
        ASSERT_EQ(largest[i], most) << i;
        ASSERT_EQ(place[i], at) << i;
      }
    }
  });
}

TEST(Scans, OfAllDtypes) {
  on_both([] {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64}) {
      const NDArray x = from<std::int64_t>({3, 1, 2}, {3}).to(dtype);
      EXPECT_EQ(cumsum(x).dtype(), dtype);
      EXPECT_EQ(values_of(cumsum(x)), (Doubles{3, 4, 6}));
      EXPECT_EQ(values_of(cumsum(x, 0, {.reverse = true})), (Doubles{6, 3, 2}));
      EXPECT_EQ(values_of(cumprod(x)), (Doubles{3, 3, 6}));
      EXPECT_EQ(values_of(cummax(x).values), (Doubles{3, 3, 3}));
      EXPECT_EQ(values_of(cummin(x).values), (Doubles{3, 1, 1}));
      EXPECT_EQ(longs_of(cummin(x).indices), (Longs{0, 1, 1}));
      EXPECT_EQ(values_of(diff(x)), (Doubles{-2, 1}));
      EXPECT_EQ(values_of(linear_scan(x, x)), (Doubles{3, 4, 10}));
    }
    EXPECT_EQ(longs_of(cumsum(ones({3}, DType::boolean))), (Longs{1, 2, 3}));
    // Integers wrap; what is kept in f64 has the precision of f64.
    EXPECT_EQ(cumsum(full({2}, 2147483647, DType::i32)).to_vector<std::int32_t>(),
              (std::vector<std::int32_t>{2147483647, -2}));
    EXPECT_EQ(cumsum(from<float>({16777216, 1, 1}, {3})).to_vector<float>(),
              (std::vector<float>{16777216, 16777216, 16777218}));
    EXPECT_EQ(cumprod(doubles({0, 1e200, 1e200})).to_vector<double>(), (Doubles{0, 0, 0}));
    EXPECT_EQ(longs_of(cummax(from<std::int32_t>({1, 3, 3, 2}, {4})).indices), (Longs{0, 1, 1, 1}));
    const Doubles nan = cummax(doubles({1, kNan, 5})).values.to_vector<double>();
    EXPECT_TRUE(nan[0] == 1 && std::isnan(nan[1]) && std::isnan(nan[2]));
    EXPECT_EQ(logcumsumexp(doubles({-kInfinity, 1000, 1000})).to_vector<double>(),
              (Doubles{-kInfinity, 1000, 1000 + std::log(2)}));
  });
}

TEST(Scans, OfShapesAtTheEdge) {
  on_both([] {
    EXPECT_EQ(cumsum(zeros({0})).shape(), Dims{0});
    EXPECT_EQ(cumprod(zeros({3, 0}), 0).shape(), (Dims{3, 0}));
    EXPECT_EQ(cummax(zeros({0, 3}), 0).values.shape(), (Dims{0, 3}));
    EXPECT_EQ(cumsum(full({}, 3)).item<float>(), 3);
    EXPECT_EQ(diff(zeros({1})).shape(), Dims{0});
    EXPECT_EQ(diff(zeros({0})).shape(), Dims{0});
    EXPECT_EQ(diff(zeros({4, 5}), 2, 0).shape(), (Dims{2, 5}));
    EXPECT_EQ(diff(zeros({3}), 0).shape(), Dims{3});
    EXPECT_EQ(diff(from<bool>({true, false, false}, {3})).to_vector<bool>(), (std::vector<bool>{true, false}));
    const NDArray deep = arange(256).reshape({2, 2, 2, 2, 2, 2, 2, 2});
    EXPECT_EQ(longs_of(cumsum(deep, 3).flatten()), longs_of(cumsum(deep.reshape({8, 2, 16}), 1).flatten()));
    EXPECT_EQ(longs_of(sort(deep, 2, {.descending = true}).flatten()),
              longs_of(sort(deep.reshape({4, 2, 32}), 1, {.descending = true}).flatten()));
    const NDArray empty = zeros({3, 0}).with_grad();
    sum(cumprod(empty, 0)).backward();
    EXPECT_EQ(empty.grad().shape(), (Dims{3, 0}));
  });
  EXPECT_THAT(message([] { cumsum(zeros({2, 3}), 2); }), HasSubstr("[cumsum]"));
  EXPECT_THAT(message([] { cumsum(zeros({2, 3}), 2); }), HasSubstr("(2, 3): no axis 2"));
  EXPECT_THAT(message([] { cumsum(NDArray()); }), HasSubstr("[cumsum]"));
  EXPECT_THAT(message([] { linear_scan(zeros({2}), zeros({3})); }), HasSubstr("shapes differ"));
  EXPECT_THAT(message([] { diff(full({}, 1)); }), HasSubstr("a scalar has no axis"));
}

TEST(Sorts, EqualAStableSort) {
  on_both([] {
    RandomStream stream(8);
    for (int t = 0; t < kDTypeCount; ++t) {
      const DType dtype = static_cast<DType>(t);
      const NDArray x = uniform({3, 130, 2}, stream, 0, 20, DType::f64).to(DType::i64).to(dtype);
      for (const bool descending : {false, true}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + (descending ? " descending" : ""));
        const auto [values, indices] = sort_with_indices(x, 1, {.descending = descending});
        EXPECT_EQ(values.dtype(), dtype);
        const auto [best, places] = topk(x, 7, 1, {.largest = descending});
        for (int i = 0; i < 3; ++i) {
          const Doubles line = values_of(x(i, all, 1)), sorted = values_of(values(i, all, 1));
          Longs order(line.size());
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            const double p = line[static_cast<std::size_t>(a)], q = line[static_cast<std::size_t>(b)];
            return descending ? p > q : p < q;
          });
          EXPECT_EQ(longs_of(indices(i, all, 1)), order);
          for (std::size_t k = 0; k < line.size(); ++k) {
            ASSERT_EQ(sorted[k], line[static_cast<std::size_t>(order[k])]);
          }
          order.resize(7);
          EXPECT_EQ(longs_of(places(i, all, 1)), order);
          EXPECT_EQ(values_of(best(i, all, 1)), Doubles(sorted.begin(), sorted.begin() + 7));
        }
      }
    }
  });
}

TEST(Sorts, NanComesLast) {
  on_both([] {
    const NDArray x = doubles({kNan, 2, -kInfinity, kNan, kInfinity, 1});
    EXPECT_EQ(longs_of(argsort(x)), (Longs{2, 5, 1, 4, 0, 3}));
    EXPECT_EQ(longs_of(argsort(x, 0, {.descending = true})), (Longs{4, 1, 5, 2, 0, 3}));
    EXPECT_EQ(longs_of(topk(x, 2).indices), (Longs{4, 1}));
    EXPECT_EQ(longs_of(searchsorted(sort(x), doubles({-kInfinity, 1.5, kInfinity, kNan}))), (Longs{0, 2, 3, 4}));
    EXPECT_EQ(longs_of(searchsorted(sort(x), doubles({kInfinity, kNan}), {.right = true})), (Longs{4, 6}));
  });
}

TEST(Sorts, OfShapesAtTheEdge) {
  on_both([] {
    EXPECT_EQ(sort(zeros({0})).shape(), Dims{0});
    EXPECT_EQ(argsort(zeros({3, 0}), 0).shape(), (Dims{3, 0}));
    EXPECT_EQ(sort(full({}, 3)).item<float>(), 3);
    EXPECT_EQ(topk(zeros({3}), 0).values.shape(), Dims{0});
    EXPECT_EQ(searchsorted(zeros({0}), full({}, 1)).item<std::int64_t>(), 0);
    EXPECT_EQ(searchsorted(zeros({3}), zeros({0, 2})).shape(), (Dims{0, 2}));
    EXPECT_EQ(longs_of(searchsorted(from<std::int64_t>({1, 3}, {2}), from<double>({2.5, 3}, {2}))), (Longs{1, 1}));
    EXPECT_EQ(take_along_axis(zeros({3}), zeros({0}, DType::i64)).shape(), Dims{0});
    EXPECT_EQ(take_along_axis(full({}, 3), zeros({}, DType::i64)).item<float>(), 3);
    // Sizes along the axis do not broadcast.
    EXPECT_EQ(take_along_axis(zeros({2, 3}), zeros({2, 1}, DType::i64)).shape(), (Dims{2, 1}));
    EXPECT_EQ(take_along_axis(zeros({1, 3}), zeros({2, 1}, DType::i64)).shape(), (Dims{2, 1}));
    EXPECT_EQ(take_along_axis(zeros({4, 0}), zeros({2, 0}, DType::u8), 0).shape(), (Dims{2, 0}));
  });
  EXPECT_THAT(message([] { topk(zeros({2, 3}), 4); }), HasSubstr("(2, 3): 4 of 3 elements"));
  EXPECT_THAT(message([] { searchsorted(zeros({2, 3}), zeros({3, 3})); }), HasSubstr("sizes differ"));
  EXPECT_THAT(message([] { take_along_axis(zeros({3}), zeros({3})); }), HasSubstr("an index is i64, i32 or u8"));
  EXPECT_THAT(message([] { take_along_axis(zeros({3}), zeros({3, 1}, DType::i64)); }), HasSubstr("ranks differ"));
  on_both([] {
    try {
      take_along_axis(zeros({3}), full({1}, 3, DType::i64)).wait();
      FAIL() << "an index that is not there was taken";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("index 3 "));
    }
  });
}

TEST(Sorts, Counts) {
  on_both([] {
    const NDArray x = from<std::int64_t>({3, 1, 3, 0}, {2, 2});
    EXPECT_EQ(longs_of(bincount(x)), (Longs{1, 1, 0, 2}));
    EXPECT_EQ(longs_of(bincount(x.to(DType::u8), 6)), (Longs{1, 1, 0, 2, 0, 0}));
    EXPECT_EQ(bincount(zeros({0}, DType::i32)).shape(), Dims{0});
    EXPECT_EQ(longs_of(bincount(zeros({0}, DType::i32), 2)), (Longs{0, 0}));
    EXPECT_THROW(bincount(x, 3).wait(), Error);
    EXPECT_THROW(bincount(from<std::int64_t>({-1, 2}, {2})).wait(), Error);
    const Histogram h = histogram(doubles({0, 0.5, 1, 1.5, 2, 2.5, -1, kNan}), 2, 0, 2);
    EXPECT_EQ(longs_of(h.counts), (Longs{2, 3}));
    EXPECT_EQ(h.edges.to_vector<double>(), (Doubles{0, 1, 2}));
  });
  EXPECT_THAT(message([] { bincount(zeros({3})); }), HasSubstr("an index is i64, i32 or u8, not f32"));
  EXPECT_THAT(message([] { histogram(zeros({3}), 0, 0, 1); }), HasSubstr("0 bins"));
}

TEST(Sorts, UniqueElements) {
  on_both([] {
    const NDArray x = doubles({3, kNan, 1, 3, kNan, -0.0, 0}).reshape({1, 7});
    const Unique found = unique(x);
    const Doubles values = found.values.to_vector<double>();
    ASSERT_EQ(values.size(), 4U);
    EXPECT_EQ(Doubles(values.begin(), values.begin() + 3), (Doubles{0, 1, 3}));
    EXPECT_TRUE(std::isnan(values[3]));
    EXPECT_EQ(longs_of(found.counts), (Longs{2, 1, 2, 2}));
    EXPECT_EQ(found.inverse.shape(), x.shape());
    EXPECT_EQ(longs_of(found.inverse), (Longs{2, 3, 1, 2, 3, 0, 0}));
    for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::i64, DType::f16, DType::boolean}) {
      const Unique of = unique(from<std::int64_t>({1, 0, 1}, {3}).to(dtype));
      EXPECT_EQ(of.values.dtype(), dtype);
      EXPECT_EQ(values_of(of.values), (Doubles{0, 1}));
      EXPECT_EQ(longs_of(of.counts), (Longs{1, 2}));
    }
    EXPECT_EQ(unique(zeros({0, 2})).values.shape(), Dims{0});
    EXPECT_EQ(unique(full({}, 7)).values.to_vector<float>(), (std::vector<float>{7}));
  });
}

TEST(Lines, BitsDoNotDependOnThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    {
      RandomStream stream(4);
      const NDArray x = uniform({3, 20011}, stream, -3, 3);
      for (const NDArray& y : {cumsum(x), cumsum(x, 0), cumprod(x), logcumsumexp(x), cummax(x).values, sort(x),
                               logsumexp(x), logsumexp(x, 1), prod(x, 0), variance(x, 1), quantile(x, 0.7, 1)}) {
        bytes.push_back(y.to_bytes());
      }
      const NDArray leaf = x.with_grad();
      sum(square(cumsum(leaf, 1))).backward();
      bytes.push_back(leaf.grad().to_bytes());
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  EXPECT_TRUE(one == results(2));
  EXPECT_TRUE(one == results(4));
}

}  // namespace
}  // namespace sluice::testing
