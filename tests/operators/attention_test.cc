// Attention against softmax over scores that are there as a whole, its ends, its memory and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

void expect_near(const NDArray& got, const NDArray& wanted, double tolerance) {
  ASSERT_EQ(got.shape(), wanted.shape());
  const std::vector<double> a = values_of(got), b = values_of(wanted);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

NDArray by_softmax(const NDArray& q, const NDArray& k, const NDArray& v, const AttentionOptions& o) {
  NDArray scores =
      matmul(q, k, {.transpose_b = true}) * (o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.size(-1))));
  const std::int64_t n = q.size(-2), m = k.size(-2);
  if (o.causal) scores = where(arange(m) <= arange(n).unsqueeze(1) + (m - n), scores, -INFINITY);
  if (o.mask.defined()) scores = o.mask.dtype() == DType::boolean ? where(o.mask, scores, -INFINITY) : scores + o.mask;
  return matmul(softmax(scores), v);
}

// Sizes around the blocks' borders, forward and backward.
TEST(Attention, IsSoftmaxOfScores) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f32 ? 2e-5 : 1e-12;
    for (const auto& [n, m] : {std::pair(1, 200), std::pair(33, 64), std::pair(65, 129), std::pair(32, 65)}) {
      for (const bool causal : {false, true}) {
        const AttentionOptions options{.causal = causal, .mask = drawn({n, m}, 4, dtype)};
        const auto run = [&](auto f) {
          Arrays x{drawn({2, 2, n, 5}, 1, dtype).with_grad(), drawn({2, 2, m, 5}, 2, dtype).with_grad(),
                   drawn({2, 2, m, 3}, 3, dtype).with_grad()};
          const NDArray y = f(x[0], x[1], x[2], options);
          sum(y * drawn(y.shape(), 9, dtype)).backward();
          return Arrays{y.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
        };
        const Arrays got = run([](auto&&... x) { return attention(x...); }), wanted = run(by_softmax);
        for (std::size_t i = 0; i < 4; ++i) expect_near(got[i], wanted[i], tolerance);
      }
    }
  }
}

TEST(Attention, GroupsServeHeadsThatFollowEachOther) {
  const NDArray q = drawn({6, 3, 2}, 1), k = drawn({2, 4, 2}, 2), v = drawn({2, 4, 2}, 3), y = attention(q, k, v);
  for (int head = 0; head < 6; ++head) expect_near(y(head), by_softmax(q(head), k(head / 3), v(head / 3), {}), 1e-12);
}

TEST(Attention, AQueryThatSeesNothingGivesZeros) {
  NDArray q = drawn({2, 2}, 1).with_grad(), k = drawn({3, 2}, 2).with_grad(), v = drawn({3, 2}, 3).with_grad();
  const NDArray y = attention(q, k, v, {.mask = from({true, true, false, false, false, false}, {2, 3})});
  EXPECT_EQ(values_of(y(1)), (std::vector<double>{0, 0}));
  expect_near(y(slice(0, 1)), by_softmax(q(slice(0, 1)), k(slice(0, 2)), v(slice(0, 2)), {}), 1e-12);
  sum(square(y)).backward();
  EXPECT_EQ(values_of(q.grad()(1)), (std::vector<double>{0, 0}));
  EXPECT_EQ(values_of(k.grad()(2)), (std::vector<double>{0, 0}));
  for (const NDArray& x : {q, k, v}) {
    for (const double g : values_of(x.grad())) EXPECT_TRUE(std::isfinite(g));
  }
  // More queries than keys: the first see none.
  EXPECT_EQ(values_of(attention(drawn({3, 2}, 4), k(slice(0, 1)), v(slice(0, 1)), {.causal = true})(0)),
            (std::vector<double>{0, 0}));
  EXPECT_EQ(values_of(attention(q, zeros({0, 2}, DType::f64), zeros({0, 2}, DType::f64))), std::vector<double>(4, 0));
  EXPECT_EQ(attention(zeros({0, 2}), zeros({3, 2}), zeros({3, 4})).shape(), (Dims{0, 4}));
}

TEST(Attention, LargeScoresDoNotOverflowAndNanStays) {
  const NDArray q = full({1, 1}, 1e4), k = from({1e4F, -1e4F}, {2, 1}), v = from({3.0F, 5.0F}, {2, 1});
  EXPECT_EQ(attention(q, k, v).item<float>(), 3);
  EXPECT_TRUE(std::isnan(attention(full({1, 1}, NAN), k, v).item<float>()));
}

TEST(Attention, ErrorsAreOneLine) {
  const NDArray q = zeros({2, 4, 3, 2}), k = zeros({2, 2, 5, 2});
  EXPECT_THAT(message([&] {
                attention(q, k, zeros({2, 2, 4, 2}));
              }),
              ::testing::MatchesRegex("\\[attention\\] attention_test.cc:[0-9]+: .*keys and values differ in number"));
  EXPECT_THAT(message([&] { attention(q, zeros({2, 3, 5, 2}), zeros({2, 3, 5, 2})); }), HasSubstr("multiple"));
  EXPECT_THAT(message([&] { attention(q, zeros({2, 2, 5, 3}), k); }), HasSubstr("differ in size"));
  EXPECT_THAT(message([&] { attention(q, k, zeros({2, 5, 2})); }), HasSubstr("needs three arrays of 2 to 4 axes"));
  EXPECT_THAT(message([&] {
                attention(q, k, k, {.mask = zeros({3, 4})});
              }),
              HasSubstr("does not broadcast to (2, 4, 3, 5)"));
  EXPECT_THAT(message([&] {
                attention(q, k, k, {.mask = zeros({3, 5}).with_grad()});
              }),
              HasSubstr("a mask gets no gradient"));
  EXPECT_THAT(message([&] {
                attention(q, k, k, {.mask = zeros({3, 5}, DType::i32)});
              }),
              HasSubstr("bools or floating"));
  EXPECT_THAT(message([&] { attention(q, k.to(DType::f64), k); }), HasSubstr("do not mix"));
}

}  // namespace
}  // namespace sluice::testing
