// Products of stacks of matrices and vectors, and einsum: against sums written out, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

NDArray counted(const Dims& shape, DType dtype = DType::i64) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < shape.count(); ++i) values.push_back(i * 7 % 11 - 5);
  return from(values, shape).to(dtype);
}

/// Sums of products by the definition: axes of a and b are seen in one index space, `last` is summed.
std::vector<double> products(const NDArray& a, const NDArray& b, const Dims& wide_a, const Dims& wide_b, int summed) {
  return values_of(sum(a.reshape(wide_a) * b.reshape(wide_b), summed));
}

TEST(Products, StacksAreSumsOfProducts) {
  for (const DType dtype : {DType::i32, DType::i64, DType::f32, DType::f64, DType::f16}) {
    const NDArray a = counted({3, 1, 2, 4}, dtype), b = counted({2, 4, 3}, dtype);
    const NDArray y = matmul(a, b);
    EXPECT_EQ(y.shape(), (Dims{3, 2, 2, 3}));
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(values_of(y), products(a, b, {3, 1, 2, 4, 1}, {1, 2, 1, 4, 3}, 3)) << name_of(dtype);
    EXPECT_EQ(values_of(matmul(a, b.permute({0, 2, 1}).contiguous(), {.transpose_b = true})), values_of(y));
    EXPECT_EQ(values_of(matmul(a.permute({0, 1, 3, 2}).contiguous(), b, {.transpose_a = true})), values_of(y));
    EXPECT_EQ(values_of(matmul(a(reversed())(reversed()), b(all, reversed())(all, reversed()))), values_of(y));
  }
}

// Large enough that each product is split by itself.
TEST(Products, LargeMatricesInAStackEqualEachAlone) {
  RandomStream stream(3);
  const NDArray a = uniform({3, 130, 140}, stream, -1, 1), b = uniform({3, 140, 150}, stream, -1, 1);
  const NDArray y = matmul(a, b);
  for (int i = 0; i < 3; ++i) {
    const std::vector<double> got = values_of(y(i)),
                              wanted = values_of(matmul(a(i).to(DType::f64), b(i).to(DType::f64)));
    for (std::size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], wanted[k], 1e-4);
  }
}

// Matrices whose rows begin a multiple of 2 KiB apart, and parts of such, are copied first. Whole numbers, so that sums
// are exact in any order.
TEST(Products, RowsThatBeginAMultipleOfPagesApart) {
  for (const Dims& size : {Dims{48, 16, 512}, Dims{47, 16, 512}, Dims{64, 100, 1024}, Dims{65, 513, 1536},
                           Dims{50, 512, 16}, Dims{130, 1024, 528}, Dims{200, 17, 2048}}) {
    for (const std::int64_t left_out : {0, 3}) {
      const std::int64_t m = size[0], k = size[1];
      const NDArray a = counted({m, k}, DType::f32),
                    b = counted({k, size[2]}, DType::f32)(all, slice(left_out, size[2]));
      const NDArray wanted = matmul(a.to(DType::f64), b.to(DType::f64));
      const auto expect = [&](const NDArray& y, const char* form) {
        EXPECT_EQ(values_of(y), values_of(wanted)) << form << ' ' << to_string(size) << " but " << left_out;
      };
      expect(matmul(a, b), "NN");
      const NDArray turned_a = a.transpose().contiguous(), turned_b = b.transpose().contiguous();
      expect(matmul(turned_a, b, {.transpose_a = true}), "TN");
      expect(matmul(a, turned_b, {.transpose_b = true}), "NT");
      expect(matmul(turned_a, turned_b, {.transpose_a = true, .transpose_b = true}), "TT");
    }
  }
}

TEST(Products, BitsDoNotDependOnThreads) {
  const auto results = [](int threads) {
    Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    set_default_engine(&engine);
    std::vector<std::vector<std::byte>> bytes;
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      // Whole tiles, odd sizes, one row, and a long sum.
      for (const Dims& size :
           {Dims{256, 256, 256}, Dims{301, 257, 133}, Dims{1, 1023, 900}, Dims{65, 9000, 70}, Dims{100, 129, 512}}) {
        RandomStream stream(5);
        const NDArray a = uniform({size[0], size[1]}, stream, -1, 1).to(dtype).with_grad();
        const NDArray b = uniform({size[1], size[2]}, stream, -1, 1).to(dtype).with_grad();
        const NDArray y = matmul(a, b), turned = matmul(b, a, {.transpose_a = true, .transpose_b = true});
        sum(y * y).backward();
        for (const NDArray& of : {y, turned, a.grad(), b.grad()}) bytes.push_back(of.to_bytes());
      }
    }
    engine.wait_all();
    set_default_engine(nullptr);
    return bytes;
  };
  const auto one = results(1);
  EXPECT_TRUE(one == results(2));
  EXPECT_TRUE(one == results(4));
}

TEST(Products, ShapesOfVectorsAndNothing) {
  const auto z = [](const Dims& shape) { return zeros(shape); };
  EXPECT_EQ(matmul(z({4}), z({4})).shape(), Dims());
  EXPECT_EQ(matmul(z({4}), z({4, 3})).shape(), (Dims{3}));
  EXPECT_EQ(matmul(z({2, 4}), z({4})).shape(), (Dims{2}));
  EXPECT_EQ(matmul(z({4}), z({5, 4, 3})).shape(), (Dims{5, 3}));
  EXPECT_EQ(matmul(z({5, 2, 4}), z({4})).shape(), (Dims{5, 2}));
  EXPECT_EQ(matmul(z({0, 2, 4}), z({4, 3})).shape(), (Dims{0, 2, 3}));
  EXPECT_EQ(matmul(z({0, 2, 4}), z({1, 4, 3})).shape(), (Dims{0, 2, 3}));
  EXPECT_EQ(matmul(z({2, 0, 4}), z({2, 4, 3})).shape(), (Dims{2, 0, 3}));
  EXPECT_EQ(matmul(ones({2, 3, 0}), ones({2, 0, 2})).to_vector<float>(), std::vector<float>(12, 0.0F));
  EXPECT_EQ(dot(z({0}), z({0})).item<float>(), 0);
}

TEST(Products, EinsumIsTheSumThatItNames) {
  const NDArray a = counted({2, 3, 4}), b = counted({2, 4, 5}), square_matrix = counted({4, 4});
  const auto equal_arrays = [](const NDArray& x, const NDArray& y) {
    EXPECT_EQ(x.shape(), y.shape());
    EXPECT_EQ(values_of(x), values_of(y));
  };
  equal_arrays(einsum("bij,bjk->bik", {a, b}), matmul(a, b));
  equal_arrays(einsum(" b i j , b j k -> k i b ", {a, b}), matmul(a, b).permute({2, 1, 0}));
  equal_arrays(einsum("bij,bjk", {a, b}), sum(matmul(a, b), 0));
  equal_arrays(einsum("bij->", {a}), sum(a));
  equal_arrays(einsum("...j->...", {a}), sum(a, -1));
  equal_arrays(einsum("ba", {square_matrix}), square_matrix.transpose());
  equal_arrays(einsum("ii", {square_matrix}), sum(square_matrix.strided({4}, {5}, square_matrix.offset())));
  equal_arrays(einsum("...ij,...jk->...ik", {a, b(0)}), matmul(a, b(0)));
  equal_arrays(einsum("bij,bjk,bi->k", {a, b, counted({2, 3})}),
               sum(matmul(a, b) * counted({2, 3}).unsqueeze(2), {0, 1}));
  equal_arrays(einsum("ij,ij->ij", {square_matrix, square_matrix}), square(square_matrix));
  equal_arrays(einsum("i,j,k->kij", {counted({2}), counted({3}), counted({2})}),
               counted({2}).reshape({2, 1, 1}) * counted({2, 1}) * counted({3}));
}

TEST(Products, ErrorsAreOneLine) {
  const NDArray a = zeros({2, 3, 4}), b = zeros({3, 4, 5});
  EXPECT_THAT(message([&] { matmul(a, b); }),
              ::testing::MatchesRegex("\\[matmul\\] products_test.cc:[0-9]+: \\(2, 3, 4\\) x \\(3, 4, 5\\): "
                                      "batches do not broadcast"));
  EXPECT_THAT(message([&] { matmul(a, zeros({5, 3})); }), HasSubstr("(2, 3, 4) x (5, 3): inner sizes differ"));
  EXPECT_THAT(message([&] { matmul(a, zeros({2, 5, 3})); }), HasSubstr("inner sizes differ"));
  EXPECT_THAT(message([&] { matmul(a, zeros({})); }), HasSubstr("[matmul] products_test.cc"));
  EXPECT_THAT(message([&] { matmul(a, NDArray()); }), HasSubstr("empty handle"));
  EXPECT_THAT(message([&] { dot(a, a); }), HasSubstr("needs two vectors of one size"));
  EXPECT_THAT(message([&] { outer(a, a); }), HasSubstr("needs two vectors"));
  EXPECT_THAT(message([&] { einsum("ij,jk->ik", {a, b}); }), HasSubstr("an operand has 3 axes"));
  EXPECT_THAT(message([&] { einsum("ijk,ijl->", {a, b}); }), HasSubstr("sizes 2 and 3 of one axis"));
  EXPECT_THAT(message([&] { einsum("ijk->l", {a}); }), HasSubstr("that no operand has"));
  EXPECT_THAT(message([&] { einsum("ijk->ii", {a}); }), HasSubstr("twice"));
  EXPECT_THAT(message([&] { einsum("ijk", {a, b}); }), HasSubstr("fewer operands"));
  EXPECT_THAT(message([&] { einsum("ijk,ijk", {a}); }), HasSubstr("more operands"));
  EXPECT_THAT(message([&] { einsum("i1k", {a}); }), HasSubstr("letters name axes"));
  EXPECT_THAT(message([&] { einsum("iij", {a}); }), HasSubstr("not square"));
}

}  // namespace
}  // namespace sluice::testing
