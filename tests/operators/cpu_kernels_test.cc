// Matrix products, fused and elementwise kernels of the CPU backend against plain loops; and their bits on 1, 2 and 4
// threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/fast_math.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/packed_product.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/tests/operators/cpu_kernels.h"

namespace sluice {
namespace {

using namespace test;

TEST(Dispatch, NamesTheSet) {
  const std::string name = cpu_backend::instruction_set();
  EXPECT_TRUE(name == "default" || name == "avx2" || name == "avx512") << name;
}

template <class T>
class GemmTest : public testing::Test {};
using GemmTypes = testing::Types<float, double, int32_t, int64_t>;
TYPED_TEST_SUITE(GemmTest, GemmTypes);

TYPED_TEST(GemmTest, MatchesReference) {
  using T = TypeParam;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 120; ++round) {
    const bool big = round % 20 == 19;  // large enough to be split
    const int64_t m = pick(random, 0, big ? 260 : 40), n = pick(random, 0, big ? 260 : 40);
    const int64_t k = pick(random, 0, big ? 200 : 40);
    const bool ta = pick(random, 0, 1) != 0, tb = pick(random, 0, 1) != 0;
    const int64_t lda = (ta ? m : k) + pick(random, 1, 5), ldb = (tb ? k : n) + pick(random, 1, 5);
    const int64_t ldc = n + pick(random, 0, 5);
    const T alpha = static_cast<T>(pick(random, 0, 3)), beta = static_cast<T>(pick(random, 0, 2));
    const auto a = random_values<T>(random, (ta ? k : m) * lda), b = random_values<T>(random, (tb ? n : k) * ldb);
    auto c = random_values<T>(random, m * ldc), wanted = c;
    if constexpr (std::is_floating_point_v<T>) {
      if (beta == T{}) std::fill(c.begin(), c.end(), std::numeric_limits<T>::quiet_NaN());
    }
    auto got = c;
    if (beta == T{}) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = n; j < ldc; ++j)
          got[static_cast<std::size_t>(i * ldc + j)] = wanted[static_cast<std::size_t>(i * ldc + j)];
      }
    }
    cpu_backend::gemm(ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, got.data(), ldc);
    reference::gemm<T>(ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, wanted.data(), ldc);
    const double allowed = std::is_integral_v<T> ? 0 : tolerance<T>();
    EXPECT_LE(relative_error(got, wanted), allowed)
        << "seed " << kSeed << " round " << round << ": " << m << " x " << n << " x " << k << " trans " << ta << tb;
  }
}

TYPED_TEST(GemmTest, SameBitsOnAnyWidth) {
  using T = TypeParam;
  std::mt19937 random(kSeed);
  struct Sizes {
    int64_t m, n, k;
    bool ta, tb;
  };
  for (const Sizes& s : {Sizes{64, 1600, 128, false, false}, Sizes{64, 128, 1600, false, true},
                         Sizes{128, 1600, 64, true, false}, Sizes{700, 60, 301, false, false}}) {
    const auto a = random_values<T>(random, s.m * s.k), b = random_values<T>(random, s.n * s.k);
    EXPECT_TRUE(same_on_any_width([&] {
      std::vector<T> c(static_cast<std::size_t>(s.m * s.n));
      cpu_backend::gemm(s.ta, s.tb, s.m, s.n, s.k, T{1}, a.data(), s.ta ? s.m : s.k, b.data(), s.tb ? s.k : s.n, T{},
                        c.data(), s.n);
      return c;
    })) << s.m
        << " x " << s.n << " x " << s.k;
  }
}

/// Rows, columns and terms around what vectors and panels hold; between rows of c, and of b, there is something else.
TEST(PackedProduct, MatchesReferenceOnAnyWidth) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const bool big = round % 20 == 19;  // large enough to be split
    const int64_t m = pick(random, 1, big ? 64 : 30), n = pick(random, 1, big ? 700 : 50);
    const int64_t k = pick(random, 0, big ? 300 : 40), gap = pick(random, 0, 3);
    const bool tb = pick(random, 0, 1) != 0, add = pick(random, 0, 1) != 0;
    const int64_t lda = k + gap, ldb = (tb ? k : n) + gap, ldc = n + gap;
    const auto a = random_values<float>(random, m * lda), b = random_values<float>(random, (tb ? n : k) * ldb);
    const auto before = random_values<float>(random, m * ldc);
    const auto size = static_cast<std::size_t>(cpu_backend::PackedMatrix::size(n, k));
    const auto product = [&] {
      const std::unique_ptr<void, void (*)(void*)> memory(
          std::aligned_alloc(64, (size + 1) * sizeof(float) / 64 * 64 + 64), std::free);
      auto* const panels = static_cast<float*>(memory.get());
      std::fill_n(panels, size, std::numeric_limits<float>::quiet_NaN());
      const cpu_backend::PackedMatrix packed(tb, n, k, b.data(), ldb, panels);
      std::vector<float> c = before;
      packed.multiply(m, a.data(), lda, add, c.data(), ldc);
      return c;
    };
    std::vector<float> wanted = before;
    reference::gemm<float>(false, tb, m, n, k, 1, a.data(), lda, b.data(), ldb, add ? 1.0F : 0.0F, wanted.data(), ldc);
    EXPECT_LE(relative_error(product(), wanted), tolerance<float>())
        << "seed " << kSeed << " round " << round << ": " << m << " x " << n << " x " << k << " trans " << tb;
    if (!big) continue;
    EXPECT_TRUE(same_on_any_width(product)) << m << " x " << n << " x " << k;
  }
}

/// 4,096 equal terms, whose sum in one run in f32 would be off by 5e-5; and who packs at all.
TEST(PackedProduct, AddsLongRowsInPieces) {
  constexpr int64_t m = 5, n = 16, k = 4096;
  const std::vector<float> a(m * k, 0.9F), b(k * n, 0.9F);
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(64, k * n * sizeof(float)), std::free);
  std::vector<float> c(m * n);
  cpu_backend::PackedMatrix(false, n, k, b.data(), n, static_cast<float*>(memory.get()))
      .multiply(m, a.data(), k, false, c.data(), n);
  const bool has_vectors = cpu_backend::PackedMatrix::pays(m, n, k);
  for (const float x : c) EXPECT_NEAR(x / (k * double{0.9F} * double{0.9F}), 1, has_vectors ? 4e-6 : 1e-4);
#if defined(__x86_64__) && !defined(__clang__)
  EXPECT_EQ(has_vectors, cpu_backend::instruction_set_in_use() != cpu_backend::InstructionSet::plain);
#endif
  EXPECT_EQ(cpu_backend::PackedMatrix::pays(5, 280, 70), has_vectors);  // both are in networks_test.cc
  EXPECT_EQ(cpu_backend::PackedMatrix::pays(17, 64, 256), has_vectors);
  for (const auto& [rows, columns, terms] : {std::array<int64_t, 3>{65, 256, 256}, {16, 256, 4097}, {1, 4096, 1024}}) {
    EXPECT_FALSE(cpu_backend::PackedMatrix::pays(rows, columns, terms));
  }
}

// Exact: sums of small integers. Between rows there is NaN, and single rows and columns are cut off from larger arrays.
TEST(Bf16Gemm, EqualsPlainLoopsInArraysWithGaps) {
  std::mt19937 random(kSeed);
  const int64_t sizes[] = {1, 2, 17, 65};
  const auto check = [&](int64_t m, int64_t n, int64_t k, bool ta, bool tb, int64_t gap) {
    const int64_t lda = (ta ? m : k) + gap, ldb = (tb ? k : n) + gap;
    std::vector<BFloat16> a(static_cast<std::size_t>((ta ? k : m) * lda), BFloat16(NAN));
    std::vector<BFloat16> b(static_cast<std::size_t>((tb ? n : k) * ldb), BFloat16(NAN));
    const auto at_a = [&](int64_t i, int64_t p) { return static_cast<std::size_t>(ta ? p * lda + i : i * lda + p); };
    const auto at_b = [&](int64_t p, int64_t j) { return static_cast<std::size_t>(tb ? j * ldb + p : p * ldb + j); };
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t i = 0; i < m; ++i) a[at_a(i, p)] = BFloat16(static_cast<float>(pick(random, -8, 8)));
      for (int64_t j = 0; j < n; ++j) b[at_b(p, j)] = BFloat16(static_cast<float>(pick(random, -8, 8)));
    }
    std::vector<float> c(static_cast<std::size_t>(m * n), NAN), wanted(c.size());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float& sum = wanted[static_cast<std::size_t>(i * n + j)];
        for (int64_t p = 0; p < k; ++p) sum += static_cast<float>(a[at_a(i, p)]) * static_cast<float>(b[at_b(p, j)]);
      }
    }
    cpu_backend::bf16_gemm(ta, tb, m, n, k, a.data(), lda, b.data(), ldb, c.data(), n);
    EXPECT_EQ(c, wanted) << m << " x " << n << " x " << k << " trans " << ta << tb << " gap " << gap;
  };
  if (!cpu_backend::bf16_is_native()) return;  // then nothing calls it
  for (const int64_t m : sizes)
    for (const int64_t n : sizes)
      for (const int64_t k : sizes)
        for (const int64_t gap : {0, 1, 3})
          for (const int form : {0, 1, 2, 3}) check(m, n, k, form % 2 != 0, form / 2 != 0, gap);
  for (const int form : {0, 1, 2, 3}) check(73, 73, 8000, form % 2 != 0, form / 2 != 0, 1);  // the last part is a row
}

template <class T>
class FusedTest : public testing::Test {};
using FloatingTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(FusedTest, FloatingTypes);

TYPED_TEST(FusedTest, SoftmaxCrossEntropyMatchesReference) {
  using T = TypeParam;
  std::mt19937 random(kSeed);
  for (const int64_t rows : {1, 3, 64, 150}) {
    for (const int64_t classes : {1, 2, 10, 17, 300}) {
      auto logits = random_values<T>(random, rows * classes);
      for (T& v : logits) v *= T{30};
      std::vector<int64_t> labels(static_cast<std::size_t>(rows));
      for (int64_t& label : labels) label = pick(random, 0, classes - 1);
      if (rows > 2) {
        labels[0] = classes;
        labels[1] = -1;
        logits[static_cast<std::size_t>(2 * classes + classes / 2)] = std::numeric_limits<T>::quiet_NaN();
      }
      const auto dloss = random_values<T>(random, rows);
      std::vector<T> loss(dloss.size()), loss_ref = loss, p = logits, p_ref(p.size()), d(p.size()), d_ref(p.size());
      cpu_backend::softmax_cross_entropy(rows, classes, p.data(), labels.data(), loss.data(), p.data());  // in place
      std::vector<double> exact(loss.size());
      reference::softmax_cross_entropy(rows, classes, logits.data(), labels.data(), exact.data(), p_ref.data());
      for (std::size_t i = 0; i < exact.size(); ++i) loss_ref[i] = static_cast<T>(exact[i]);
      EXPECT_LE(relative_error(loss, loss_ref), tolerance<T>()) << rows << " x " << classes;
      EXPECT_LE(relative_error(p, p_ref), tolerance<T>()) << rows << " x " << classes;
      for (const T* upstream : {dloss.data(), static_cast<const T*>(nullptr)}) {
        cpu_backend::softmax_cross_entropy_grad(rows, classes, p_ref.data(), labels.data(), upstream, T(0.25),
                                                d.data());
        reference::softmax_cross_entropy_grad(rows, classes, p_ref.data(), labels.data(), upstream, T(0.25),
                                              d_ref.data());
        EXPECT_LE(relative_error(d, d_ref), tolerance<T>()) << rows << " x " << classes;
      }
    }
  }
}

TYPED_TEST(FusedTest, OptimiserStepsMatchReference) {
  using T = TypeParam;
  std::mt19937 random(kSeed);
  for (const int64_t n : {0, 1, 7, 100, 40001}) {
    const auto w0 = random_values<T>(random, n), g = random_values<T>(random, n), v0 = random_values<T>(random, n);
    for (const bool momentum : {false, true}) {
      auto w = w0, w_ref = w0, v = v0, v_ref = v0;
      for (int i = 0; i < 3; ++i) {
        cpu_backend::sgd_momentum_step(w.data(), momentum ? v.data() : nullptr, g.data(), n, T(0.1), T(0.9), T(0.01));
        reference::sgd_step(w_ref.data(), momentum ? v_ref.data() : nullptr, g.data(), n, 0.1, 0.9, 0.01);
      }
      EXPECT_LE(relative_error(w, w_ref), tolerance<T>());
      EXPECT_LE(relative_error(v, v_ref), tolerance<T>());
    }
    for (const bool decoupled : {false, true}) {
      auto w = w0, w_ref = w0;
      std::vector<T> m(w.size()), m_ref = m, v = m, v_ref = m;
      const cpu_backend::AdamSettings<T> settings{T(0.01), T(0.9), T(0.999), T(1e-8), T(0.02), decoupled};
      for (int64_t step = 1; step <= 4; ++step) {
        cpu_backend::adam_step(w.data(), m.data(), v.data(), g.data(), n, step, settings);
        reference::adam_step(w_ref.data(), m_ref.data(), v_ref.data(), g.data(), n, step,
                             {0.01, 0.9, 0.999, 1e-8, 0.02, decoupled});
      }
      EXPECT_LE(relative_error(w, w_ref), tolerance<T>());
      EXPECT_LE(relative_error(v, v_ref), tolerance<T>());
    }
  }
}

TYPED_TEST(FusedTest, BiasAndSumsMatchReferenceAndKeepBits) {
  using T = TypeParam;
  std::mt19937 random(kSeed);
  for (const int64_t rows : {1, 5, 64, 3000}) {
    for (const int64_t columns : {1, 10, 33, 128}) {
      const auto x = random_values<T>(random, rows * columns), bias = random_values<T>(random, columns);
      for (const bool relu : {false, true}) {
        std::vector<T> y(x.size()), y_ref(x.size());
        cpu_backend::add_bias(rows, columns, x.data(), bias.data(), relu, y.data());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const T value = x[i] + bias[i % bias.size()];
          y_ref[i] = relu && value < 0 ? 0 : value;
        }
        EXPECT_TRUE(same_bits(y, y_ref));
      }
      std::vector<T> sums(bias.size()), sums_ref(bias.size());
      cpu_backend::sum_rows(x.data(), rows, columns, sums.data());
      double whole = 0;
      std::vector<double> exact(bias.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        exact[i % exact.size()] += static_cast<double>(x[i]);
        whole += static_cast<double>(x[i]);
      }
      for (std::size_t i = 0; i < exact.size(); ++i) sums_ref[i] = static_cast<T>(exact[i]);
      EXPECT_LE(relative_error(sums, sums_ref), 10 * tolerance<T>()) << rows << " x " << columns;
      const T total = cpu_backend::sum<T>(x.data(), rows * columns);
      EXPECT_NEAR(total, whole, 100 * tolerance<T>() * std::sqrt(rows * columns));
      EXPECT_TRUE(same_on_any_width([&] {
        std::vector<T> out(bias.size() + 1);
        cpu_backend::sum_rows(x.data(), rows, columns, out.data());
        out.back() = cpu_backend::sum<T>(x.data(), rows * columns);
        return out;
      }));
    }
  }
}

TEST(Elementwise, LoopsMatchPlainLoops) {
  std::mt19937 random(kSeed);
  for (const int64_t n : {0, 1, 31, 4097, 100001}) {
    const auto a = random_values<float>(random, n), b = random_values<float>(random, n);
    std::vector<float> unary(a.size()), binary(a.size()), right(a.size()), left(a.size()), ternary(a.size());
    std::vector<int64_t> index(a.size());
    cpu_backend::map_unary(a.data(), unary.data(), n, [](float x) { return x < 0 ? 0 : x; });
    cpu_backend::map_binary(a.data(), b.data(), binary.data(), n, [](float x, float y) { return x * y; });
    cpu_backend::map_scalar_right(a.data(), 3.0F, right.data(), n, [](float x, float y) { return x - y; });
    cpu_backend::map_scalar_left(3.0F, b.data(), left.data(), n, [](float x, float y) { return x - y; });
    cpu_backend::map_ternary(a.data(), b.data(), a.data(), ternary.data(), n,
                             [](float c, float x, float y) { return c > 0 ? x : y; });
    cpu_backend::map_index(index.data(), n, [](int64_t i) { return i * 2; });
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(unary[i], std::max(a[i], 0.0F));
      ASSERT_EQ(binary[i], a[i] * b[i]);
      ASSERT_EQ(right[i], a[i] - 3.0F);
      ASSERT_EQ(left[i], 3.0F - b[i]);
      ASSERT_EQ(ternary[i], a[i] > 0 ? b[i] : a[i]);
      ASSERT_EQ(index[i], static_cast<int64_t>(i) * 2);
    }
  }
}

TEST(Elementwise, FastExp) {
  for (double x = -87.3; x < 88.7; x += 0.00137) {
    const double wanted = std::exp(static_cast<double>(static_cast<float>(x)));
    ASSERT_NEAR(cpu_backend::fast_exp(static_cast<float>(x)) / wanted, 1.0, 2.4e-7) << x;
  }
  EXPECT_EQ(cpu_backend::fast_exp(0.0F), 1.0F);
  EXPECT_EQ(cpu_backend::fast_exp(-1000.0F), 0.0F);
  EXPECT_EQ(cpu_backend::fast_exp(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_TRUE(std::isinf(cpu_backend::fast_exp(1000.0F)));
  EXPECT_TRUE(std::isinf(cpu_backend::fast_exp(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(cpu_backend::fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace sluice
