// Decompositions of matrices: that they multiply back to what was decomposed, their conventions, and what they do with
// empty, singular and infinite matrices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

NDArray random(const Dims& shape, std::uint64_t seed = 3) {
  RandomStream stream(seed);
  return uniform(shape, stream, -1, 1, DType::f64);
}
NDArray turned(const NDArray& x) { return x.swapaxes(-2, -1); }

void expect_near(const NDArray& a, const NDArray& b, double bound, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const std::vector<double> x = values_of(a), y = values_of(b);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], bound) << what << ", element " << i;
}
void expect_orthogonal(const NDArray& q, double bound, const std::string& what) {
  const NDArray products = matmul(turned(q), q);
  expect_near(products, eye(q.size(-1), q.dtype()).broadcast_to(products.shape()), bound, what);
}

/// Runs f by the kernels of the CPU and by those of the reference, in f64 and f32: f(dtype, error allowed).
template <class F>
void in_each_way(const F& f) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double bound = dtype == DType::f64 ? 1e-12 : 1e-4;
    f(dtype, bound);
    by_reference([&] {
      f(dtype, bound);
      return 0;
    });
  }
}

const std::vector<Dims>& shapes() {
  static const std::vector<Dims> list{{1, 1},    {3, 3},    {5, 2},    {2, 5},    {40, 40},
                                      {40, 7},   {7, 40},   {0, 0},    {3, 0},    {0, 3},
                                      {2, 4, 3}, {0, 3, 3}, {2, 0, 3}, {2, 3, 0}, {1, 2, 1, 3, 4}};
  return list;
}

TEST(Decompositions, QrMultipliesBack) {
  in_each_way([](DType dtype, double bound) {
    for (const Dims& shape : shapes()) {
      for (const bool complete : {false, true}) {
        const std::string what = to_string(shape) + (complete ? ", complete" : "");
        const NDArray x = random(shape).to(dtype);
        const auto [q, r] = qr(x, {.complete = complete});
        const std::int64_t m = x.size(-2), n = x.size(-1), k = complete ? m : std::min(m, n);
        EXPECT_EQ(q.size(-1), k) << what;
        EXPECT_EQ(r.size(-2), k) << what;
        expect_near(matmul(q, r), x, bound, what);
        expect_orthogonal(q, bound, what);
        expect_near(triu(r), r, 0, what);
        if (std::min(m, n) > 0) {
          EXPECT_TRUE(sluice::all(r.diagonal(0, -2, -1) >= 0).item<bool>()) << what;
        }
      }
    }
  });
}

TEST(Decompositions, SvdMultipliesBack) {
  in_each_way([](DType dtype, double bound) {
    for (const Dims& shape : shapes()) {
      for (const bool full : {false, true}) {
        const std::string what = to_string(shape) + (full ? ", full" : "");
        const NDArray x = random(shape).to(dtype);
        const auto [u, s, vt] = svd(x, {.full = full});
        const std::int64_t m = x.size(-2), n = x.size(-1), k = std::min(m, n);
        EXPECT_EQ(u.size(-1), full ? m : k) << what;
        EXPECT_EQ(vt.size(-2), full ? n : k) << what;
        const NDArray thin_u = u.narrow(u.rank() - 1, 0, k), thin_vt = vt.narrow(vt.rank() - 2, 0, k);
        expect_near(matmul(thin_u * s.unsqueeze(-2), thin_vt), x, bound, what);
        expect_orthogonal(u, bound, what);
        expect_orthogonal(turned(vt), bound, what);
        expect_near(sort(s, -1, {.descending = true}), s, 0, what);
        if (s.count() > 0) {
          EXPECT_GE(min(s).to(DType::f64).item<double>(), 0) << what;
        }
      }
    }
  });
}

// Columns that depend on each other, and none but zeros: the missing vectors are found all the same.
TEST(Decompositions, SvdOfALowRankHasAllItsVectors) {
  in_each_way([](DType dtype, double bound) {
    for (const NDArray& x : {zeros({4, 3}, dtype), ones({4, 3}, dtype), ones({3, 4}, dtype)}) {
      const auto [u, s, vt] = svd(x, {.full = true});
      expect_orthogonal(u, bound, "u");
      expect_orthogonal(turned(vt), bound, "vt");
      expect_near(matmul(u.narrow(1, 0, 3) * s, vt.narrow(0, 0, 3)), x, bound, "product");
    }
  });
}

TEST(Decompositions, SymmetricOnesMultiplyBack) {
  in_each_way([](DType dtype, double bound) {
    for (const Dims& shape : {Dims{1, 1}, Dims{4, 4}, Dims{100, 100}, Dims{0, 0}, Dims{3, 5, 5}, Dims{0, 2, 2}}) {
      const std::string what = to_string(shape);
      const NDArray noise = random(shape), product = matmul(noise, turned(noise));
      const NDArray x = (product + eye(shape.back(), DType::f64)).to(dtype);
      // The upper triangle is not read.
      const NDArray lower = tril(x) + triu(full_like(x, 77), 1);
      const NDArray l = cholesky(lower);
      expect_near(matmul(l, turned(l)), x, bound * 30, what);
      expect_near(tril(l), l, 0, what);
      const auto [values, vectors] = eigh(lower);
      expect_near(matmul(vectors * values.unsqueeze(-2), turned(vectors)), x, bound * 30, what);
      expect_orthogonal(vectors, bound, what);
      expect_near(sort(values), values, 0, what);
    }
  });
}

TEST(Decompositions, SolutionsSolve) {
  in_each_way([](DType dtype, double bound) {
    for (const std::int64_t n : {0, 1, 2, 7, 100}) {
      const std::string what = std::to_string(n);
      const NDArray a = (random({2, n, n}) + 3 * eye(n, DType::f64)).to(dtype);
      const NDArray b = random({n, 3}, 8).to(dtype);
      expect_near(matmul(a, solve(a, b)), b.broadcast_to({2, n, 3}), bound * 10, what);
      expect_near(matmul(a, solve(a, b(sluice::all, 1)).unsqueeze(-1)).squeeze(-1),
                  b(sluice::all, 1).broadcast_to({2, n}), bound * 10, what);
      expect_near(matmul(a, inv(a)), eye(n, dtype).broadcast_to({2, n, n}), bound * 10, what);
      const auto [sign, logabs] = slogdet(a);
      if (n < 100) {  // 3^100 is not in f32
        expect_near(sign * exp(logabs) / det(a), ones({2}, dtype), bound * 1e2, what);
      }
    }
  });
}

TEST(Decompositions, DeterminantsOfKnownMatrices) {
  in_each_way([](DType dtype, double bound) {
    const NDArray x = from({2.0, 1.0, 0.0, 0.0, 0.0, 3.0, 1.0, 0.0, 0.0}, {3, 3}).to(dtype);
    expect_near(det(x), full({}, 3, dtype), bound, "a permuted one");
    expect_near(det(x(reversed())), full({}, -3, dtype), bound, "rows reversed");
    EXPECT_EQ(det(ones({3, 3}, dtype)).to(DType::f64).item<double>(), 0);
    EXPECT_EQ(slogdet(zeros({2, 2}, dtype)).sign.to(DType::f64).item<double>(), 0);
    EXPECT_EQ(slogdet(zeros({2, 2}, dtype)).logabs.to(DType::f64).item<double>(),
              -std::numeric_limits<double>::infinity());
    EXPECT_EQ(det(zeros({0, 0}, dtype)).to(DType::f64).item<double>(), 1);
  });
  EXPECT_NEAR(slogdet(full({1, 1}, 1e-5) * eye(200)).logabs.item<float>(), 200 * std::log(1e-5), 1e-2);
}

// Hilbert's matrix of order 8 has a condition number of 1.5e10: the residual is small all the same.
TEST(Decompositions, IllConditionedMatricesHaveASmallResidual) {
  const NDArray line = arange(8).to(DType::f64), h = 1 / (line.unsqueeze(1) + line + 1);
  const NDArray b = ones({8}, DType::f64);
  const NDArray y = solve(h, b);
  expect_near(matmul(h, y), b, 1e-6, "residual");
  expect_near(matmul(cholesky(h), turned(cholesky(h))), h, 1e-15, "cholesky");
  const auto [u, s, vt] = svd(h);
  expect_near(s, by_reference([&] { return svd(h).s; }), 1e-15, "singular values");
}

TEST(Decompositions, VeryLargeAndSmallElementsAreNoTrouble) {
  in_each_way([](DType dtype, double bound) {
    for (const double unit : {1e-30, 1e30}) {
      const NDArray x = random({4, 3}).to(dtype) * unit;
      const auto [u, s, vt] = svd(x);
      expect_near(matmul(u * (s / unit), vt), x / unit, bound, "svd");
      const auto [q, r] = qr(x);
      expect_near(matmul(q, r / unit), x / unit, bound, "qr");
      const NDArray symmetric = x.narrow(0, 0, 3) + turned(x.narrow(0, 0, 3));
      const auto [values, v] = eigh(symmetric);
      expect_near(matmul(v * (values / unit), turned(v)), symmetric / unit, bound, "eigh");
    }
  });
}

TEST(Decompositions, ASingularMatrixPoisonsAndNamesTheOp) {
  in_each_way([](DType dtype, double) {
    const NDArray singular = ones({3, 3}, dtype), b = ones({3}, dtype);
    EXPECT_THAT(message<std::exception>([&] { solve(singular, b).wait(); }), HasSubstr("the matrix is singular"));
    EXPECT_THAT(message<std::exception>([&] { solve(singular, b).wait(); }), HasSubstr("solve"));
    EXPECT_THAT(message<std::exception>([&] { solve(singular, b).wait(); }), HasSubstr("decompositions_test.cc"));
    EXPECT_THAT(message<std::exception>([&] { inv(singular).wait(); }), HasSubstr("inv"));
    EXPECT_THAT(message<std::exception>([&] { cholesky(-singular).wait(); }),
                HasSubstr("the matrix is not positive definite"));
    const NDArray two = sluice::stack({eye(3, dtype), singular});
    EXPECT_THAT(message<std::exception>([&] { inv(two).wait(); }),
                HasSubstr("matrix 1 of the stack: the matrix is singular"));
    // The error is data: others go on.
    EXPECT_EQ(inv(eye(3, dtype)).to(DType::f64).to_vector<double>()[0], 1);
  });
}

TEST(Decompositions, NanAndInfinityGiveNan) {
  in_each_way([](DType dtype, double) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      NDArray x = sluice::stack({eye(4, dtype), eye(4, dtype)});
      x(1, 3, 2) = bad;
      const Arrays results{cholesky(x),
                           qr(x).q,
                           qr(x).r,
                           svd(x).u,
                           svd(x).s,
                           svd(x).vt,
                           eigh(x).values,
                           eigh(x).vectors,
                           solve(x, eye(4, dtype)),
                           inv(x),
                           det(x).unsqueeze(1),
                           slogdet(x).logabs.unsqueeze(1)};
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(sluice::all(isnan(results[i](1))).item<bool>()) << i;
        EXPECT_FALSE(sluice::any(isnan(results[i](0))).item<bool>()) << i;
      }
    }
  });
}

TEST(Decompositions, BitsDoNotDependOnTheNumberOfTheMatrix) {
  const NDArray one = random({6, 6}), many = one.broadcast_to({50, 6, 6});
  const std::vector<std::byte> wanted = inv(one).to_bytes();
  const NDArray all_of_them = inv(many);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(NDArray(all_of_them(i)).to_bytes() == wanted) << i;
}

TEST(Decompositions, FullSvdHasTheGradientOfItsValues) {
  const NDArray x = random({4, 2}).with_grad();
  const NDArray full = grad(sum(square(svd(x, {.full = true}).s)), {x})[0];
  expect_near(full, 2 * x, 1e-12, "the squares add up to those of the elements");
}

TEST(Decompositions, WhatHasNoGradientSaysSo) {
  const NDArray wide = random({2, 4}).with_grad(), tall = random({4, 2}).with_grad();
  EXPECT_THAT(message<std::exception>([&] { sum(qr(wide).r).backward(); }),
              ::testing::MatchesRegex("\\[qr\\] decompositions_test.cc:[0-9]+: has no gradient where m < n, or.*"));
  EXPECT_THAT(message<std::exception>([&] { sum(qr(tall, {.complete = true}).q).backward(); }), HasSubstr("[qr]"));
  EXPECT_THAT(message<std::exception>([&] { sum(svd(tall, {.full = true}).u).backward(); }),
              HasSubstr("[svd] decompositions_test.cc"));
}

TEST(Decompositions, ErrorsAtTheCallAreOneLine) {
  const NDArray x = zeros({2, 3});
  EXPECT_THAT(message<std::exception>([&] { inv(x); }),
              ::testing::MatchesRegex("\\[inv\\] decompositions_test.cc:[0-9]+: \\(2, 3\\): needs square matrices"));
  EXPECT_THAT(message<std::exception>([&] { cholesky(zeros({3})); }), HasSubstr("[cholesky]"));
  EXPECT_THAT(message<std::exception>([&] { svd(zeros({3})); }), HasSubstr("needs a matrix"));
  EXPECT_THAT(message<std::exception>([&] { qr(x.to(DType::f16)); }), HasSubstr("needs f32 or f64, not f16"));
  EXPECT_THAT(message<std::exception>([&] { det(eye(3, DType::i32)); }), HasSubstr("needs f32 or f64, not i32"));
  EXPECT_THAT(message<std::exception>([&] { eigh(NDArray()); }), HasSubstr("empty handle"));
  EXPECT_THAT(message<std::exception>([&] { solve(eye(3), zeros({2})); }),
              ::testing::MatchesRegex("\\[solve\\] decompositions_test.cc:[0-9]+: \\(3, 3\\) x \\(2,\\): needs .*"));
  EXPECT_THAT(message<std::exception>([&] { solve(zeros({2, 3, 3}), zeros({3, 3, 1})); }), HasSubstr("[solve]"));
}

}  // namespace
}  // namespace sluice::testing
