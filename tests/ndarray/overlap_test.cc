// Which outputs overlap themselves or each other: decided by elements, not by stretches of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ndarray_test_support.h"
#include "sluice/ndarray/overlaps.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

/// The elements that a window names, each as often as it does.
std::multiset<std::int64_t> named(const NDArray& x) {
  std::multiset<std::int64_t> places;
  std::vector<std::int64_t> index(static_cast<std::size_t>(x.rank()), 0);
  for (std::int64_t left = x.count(); left > 0; --left) {
    std::int64_t at = x.offset();
    for (int i = 0; i < x.rank(); ++i) at += index[static_cast<std::size_t>(i)] * x.strides()[i];
    places.insert(at);
    for (int i = x.rank() - 1; i >= 0; --i) {
      if (++index[static_cast<std::size_t>(i)] < x.shape()[i]) break;
      index[static_cast<std::size_t>(i)] = 0;
    }
  }
  return places;
}

bool repeats(const std::multiset<std::int64_t>& places) {
  return std::any_of(places.begin(), places.end(), [&](std::int64_t p) { return places.count(p) > 1; });
}

TEST(Overlap, ColumnsOfOneArrayAreOutputsOfOneOperation) {
  TestEngine test(2);
  const NDArray x = zeros({3, 20});
  std::vector<NDArray> columns;
  for (int i = 0; i < 20; ++i) columns.push_back(x(all, i));
  push_value(std::span<const NDArray>(columns).first(2), 1, 1);
  push_value(columns, 1, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(x(all, i).to_vector<float>(), Floats(3, static_cast<float>(i + 1)));
  }
  const auto nothing = [](ArrayContext&) {};
  EXPECT_NO_THROW(push_op(nothing, {}, {x(all, slice(0, 7)), x(all, slice(7, 20))}));
  EXPECT_THROW(push_op(nothing, {}, {x(all, slice(0, 8)), x(all, slice(7, 20))}), ArrayError);
  columns.push_back(x(1, slice(4, 5)));
  EXPECT_THROW(push_op(nothing, {}, columns), ArrayError);
}

TEST(Overlap, WindowsThatInterleaveDoNotOverlapThemselves) {
  TestEngine test(2);
  const NDArray x = zeros({80});
  x.strided({2, 3}, {6, 5}, 57).fill(1);
  EXPECT_EQ(sum(x).item<float>(), 6);
  EXPECT_THROW(x.strided({2, 3}, {6, 3}, 57).fill(1), ArrayError);
  EXPECT_THROW(x.strided({6, 7}, {6, 5}, 0).fill(1), ArrayError);  // 5 * 6 = 6 * 5
}

TEST(Overlap, IsDecidedAsElementByElement) {
  TestEngine test(1);
  const unsigned seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const NDArray x = zeros({400});
  const std::int64_t sizes[] = {150, 250};
  const Partitioned parts = partitioned(sizes, {}, DType::f32, test::device(0));
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  const auto window = [&](const NDArray& of) {
    for (;;) {
      Dims shape, strides;
      const auto rank = 1 + below(3);
      for (int i = 0; i < rank; ++i) {
        shape.push_back(1 + below(4));
        strides.push_back(below(40) - 15);
      }
      try {
        return of.strided(shape, strides, below(400));
      } catch (const ArrayError&) {  // leaves the array
      }
    }
  };
  int overlapping = 0;
  for (int i = 0; i < 20'000; ++i) {
    const NDArray& array = i % 2 ? x : i % 4 ? parts.whole : parts.parts[1];
    const NDArray a = window(array), b = window(array);
    const auto places = named(a), others = named(b);
    ASSERT_EQ(overlaps_itself(a), repeats(places)) << to_string(a.shape()) << to_string(a.strides());
    const bool meet = std::any_of(places.begin(), places.end(), [&](std::int64_t p) { return others.count(p) != 0; });
    const NDArray both[] = {a, b};
    ASSERT_EQ(any_overlap(both), meet) << to_string(a.shape()) << to_string(a.strides()) << a.offset() << " and "
                                       << to_string(b.shape()) << to_string(b.strides()) << b.offset();
    overlapping += meet;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_LT(overlapping, 19'000);
}

TEST(Softmax, AlongAnyAxisIsContiguous) {
  TestEngine test(2);
  const NDArray x = arange(0, 24, 1, DType::f32).reshape({2, 3, 4}).with_grad();
  for (int axis = 0; axis < 3; ++axis) {
    for (const NDArray& y : {softmax(x, axis), log_softmax(x, axis)}) {
      EXPECT_TRUE(y.is_contiguous()) << axis;
      EXPECT_TRUE(y.requires_grad());
    }
    const Floats ones_everywhere(static_cast<std::size_t>(24 / x.shape()[axis]), 1.0F);
    EXPECT_THAT(sum(softmax(x, axis), {axis}).to_vector<float>(),
                ::testing::Pointwise(::testing::FloatNear(1e-6F), ones_everywhere));
  }
}

}  // namespace
}  // namespace sluice::testing
