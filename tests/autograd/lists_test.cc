// Calls with lists of one array in braces, which must mean the list and not something else that braces can make.
#include <gtest/gtest.h>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

Floats floats(const NDArray& x) { return x.to_vector<float>(); }

TEST(Lists, GradOfOneArray) {
  TestEngine test(2);
  const NDArray x = from({1.0F, 2.0F}, {2}).with_grad(), l = sum(x * x);
  const std::vector<NDArray> first = grad(l, {x}, {.create_graph = true});
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(floats(first[0]), (Floats{2, 4}));
  EXPECT_EQ(floats(grad(sum(first[0] * first[0]), {x})[0]), (Floats{8, 16}));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Lists, GradOfOneRootWithItsGradient) {
  TestEngine test(2);
  const NDArray x = from({1.0F, 2.0F}, {2}).with_grad(), y = x * x;
  const std::vector<NDArray> got = grad({y}, {from({10.0F, 100.0F}, {2})}, {x});
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(floats(got[0]), (Floats{20, 400}));
}

TEST(Lists, BackwardOfOneRoot) {
  TestEngine test(2);
  const NDArray x = from({1.0F, 2.0F}, {2}).with_grad();
  const NDArray l = x * x, y = from({10.0F, 100.0F}, {2});
  backward({l}, {y});
  EXPECT_EQ(floats(x.grad()), (Floats{20, 400}));
  const NDArray loss = sum(x * 3);
  backward({loss}, {NDArray()});  // an empty handle counts as 1
  EXPECT_EQ(floats(x.grad()), (Floats{23, 403}));
}

TEST(Lists, AShapeMayBeOneNumber) {
  TestEngine test(1);
  EXPECT_EQ(zeros(3).shape(), (Dims{3}));
  EXPECT_EQ(floats(zeros(3)), (Floats{0, 0, 0}));
  EXPECT_EQ(floats(full(2, 1.5)), (Floats{1.5, 1.5}));
}

}  // namespace
}  // namespace sluice::testing
