// The CPU kernels against the plain loops, over odd shapes; and their bits on 1, 2 and 4 threads.
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/exp.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/gemm.h"
#include "sluice/operators/backends/cpu/pool.h"
#include "sluice/operators/backends/reference/reference_kernels.h"

namespace sluice {
namespace {

using cpu_backend::Conv2dOptions;
using cpu_backend::Conv2dPass;
using cpu_backend::Conv2dShape;
using cpu_backend::PoolShape;
using std::int32_t;
using std::int64_t;

constexpr unsigned kSeed = 20240607;

template <class T>
std::vector<T> random_values(std::mt19937& random, int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  std::normal_distribution<double> normal;
  for (T& v : values) v = static_cast<T>(std::is_integral_v<T> ? std::round(normal(random) * 1000) : normal(random));
  return values;
}

int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// The largest difference, as a part of the largest wanted value.
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<T>& wanted) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto a = static_cast<double>(got[i]), b = static_cast<double>(wanted[i]);
    if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
    if (std::isnan(b)) continue;
    largest = std::max(largest, std::abs(b));
    difference = std::max(difference, std::abs(a - b));
  }
  return largest == 0 ? difference : difference / largest;
}

template <class T>
double tolerance() {
  return std::is_same_v<T, float> ? 4e-6 : 1e-14;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Runs make() (which returns a vector) in arenas of 1, 2 and 4 threads, and says whether all results have the same
// bits.
template <class Make>
bool same_on_any_width(const Make& make) {
  // More threads than a small machine has cores: which of them runs a chunk must not matter.
  const tbb::global_control four(tbb::global_control::max_allowed_parallelism, 4);
  auto in_arena = [&](int threads) {
    tbb::task_arena arena(threads);
    return arena.execute([&] { return make(); });
  };
  const auto one = in_arena(1);
  return same_bits(one, in_arena(2)) && same_bits(one, in_arena(4));
}

const auto acquire = [](std::size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(memory, 0xFF, bytes);  // NaN: kernels must not read what they did not write
  return memory;
};
const auto release = [](void* memory, std::size_t) { std::free(memory); };
const cpu_backend::Workspace kWorkspace{acquire, release};

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
    reference::gemm(ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, wanted.data(), ldc);
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

std::string text_of(const Conv2dShape& s) {
  return "batch " + std::to_string(s.batch) + ", " + std::to_string(s.in_channels) + " -> " +
         std::to_string(s.out_channels) + ", " + std::to_string(s.height) + "x" + std::to_string(s.width) +
         ", kernel " + std::to_string(s.kernel_h) + "x" + std::to_string(s.kernel_w) + ", stride " +
         std::to_string(s.stride_h) + "x" + std::to_string(s.stride_w) + ", padding " + std::to_string(s.pad_h) + "x" +
         std::to_string(s.pad_w);
}

template <class T>
void check_conv(const Conv2dShape& s, std::mt19937& random, bool exact, bool with_bias, bool relu) {
  const auto x = random_values<T>(random, s.x_count()), w = random_values<T>(random, s.w_count());
  const auto bias = random_values<T>(random, s.out_channels), dy = random_values<T>(random, s.y_count());
  const T nan = std::numeric_limits<T>::quiet_NaN();
  std::vector<T> y(dy.size(), nan), y_ref = y, dx(x.size(), nan), dx_ref = dx, dw(w.size(), nan), dw_ref = dw,
                                    db(bias.size(), nan), db_ref = db;
  const T* b = with_bias ? bias.data() : nullptr;
  const Conv2dOptions options{relu, exact};
  const bool f32 = std::is_same_v<T, float>;
  const std::string text = "seed " + std::to_string(kSeed) + ": " + text_of(s) + (exact ? ", exact, " : ", ");
  auto name = [&](Conv2dPass pass) { return text + cpu_backend::conv2d_kernel_name(pass, s, exact, f32); };
  cpu_backend::conv2d_forward(s, x.data(), w.data(), b, y.data(), options, kWorkspace);
  reference::conv2d_forward(s, x.data(), w.data(), b, y_ref.data(), relu);
  EXPECT_LE(relative_error(y, y_ref), tolerance<T>()) << "forward " << name(Conv2dPass::forward);
  cpu_backend::conv2d_input_grad(s, dy.data(), w.data(), dx.data(), options, kWorkspace);
  reference::conv2d_input_grad(s, dy.data(), w.data(), dx_ref.data());
  EXPECT_LE(relative_error(dx, dx_ref), tolerance<T>()) << "input gradient " << name(Conv2dPass::input_grad);
  cpu_backend::conv2d_weight_grad(s, x.data(), dy.data(), dw.data(), options, kWorkspace);
  reference::conv2d_weight_grad(s, x.data(), dy.data(), dw_ref.data());
  EXPECT_LE(relative_error(dw, dw_ref), tolerance<T>()) << "weight gradient " << name(Conv2dPass::weight_grad);
  cpu_backend::conv2d_bias_grad(s, dy.data(), db.data());
  reference::conv2d_bias_grad(s, dy.data(), db_ref.data());
  EXPECT_LE(relative_error(db, db_ref), tolerance<T>()) << "bias gradient " << text;
}

Conv2dShape random_shape(std::mt19937& random) {
  Conv2dShape s;
  s.batch = pick(random, 0, 5);
  s.in_channels = pick(random, 1, 20);
  if (pick(random, 0, 1) != 0) s.in_channels = pick(random, 1, 4);
  s.out_channels = pick(random, 1, 20);
  s.kernel_h = pick(random, 1, 5);
  s.kernel_w = pick(random, 1, 5);
  s.stride_h = pick(random, 1, 2);
  s.stride_w = pick(random, 1, 2);
  s.pad_h = pick(random, 0, s.kernel_h - 1);
  s.pad_w = pick(random, 0, s.kernel_w - 1);
  s.height = pick(random, s.kernel_h, 14);
  s.width = pick(random, s.kernel_w, 40);
  if (pick(random, 0, 1) != 0) s.stride_h = s.stride_w = 1;
  return s;
}

TEST(Conv2d, MatchesReferenceOnOddShapes) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 60; ++round) {
    const Conv2dShape s = random_shape(random);
    check_conv<float>(s, random, round % 3 == 0, round % 2 == 0, round % 4 < 2);
    check_conv<double>(s, random, false, round % 2 == 0, round % 4 < 2);
  }
}

TEST(Conv2d, FewChannelsMatchesReferenceAtEveryWidth) {
  std::mt19937 random(kSeed);
  for (int64_t width = 3; width <= 40; ++width) {
    Conv2dShape s;
    s.batch = 2;
    s.in_channels = 1 + width % 4;
    s.out_channels = 1 + width % 13;
    s.height = 5;
    s.width = width;
    s.kernel_w = width % 2 == 0 ? 3 : 1;
    if (width % 5 == 0) s.kernel_w = 5;
    s.pad_w = s.kernel_w / 2 * (width % 3 == 0);
    s.pad_h = width % 2;
    if (s.out_width() < 1) continue;
    check_conv<float>(s, random, false, width % 2 == 0, width % 3 == 0);
  }
}

TEST(Conv2d, WinogradMatchesReference) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 6; ++round) {
    Conv2dShape s;
    s.batch = pick(random, 1, 9);
    s.in_channels = 32 * pick(random, 1, 2);
    s.out_channels = 32 * pick(random, 1, 2);
    s.height = pick(random, 5, 15);
    s.width = pick(random, 5, 15);
    s.pad_h = s.pad_w = pick(random, 0, 1);
    check_conv<float>(s, random, false, true, round % 2 == 0);
    check_conv<float>(s, random, true, true, round % 2 == 0);
  }
}

TEST(Conv2d, TheRuleChoosesAsWritten) {
  Conv2dShape first{64, 1, 28, 28, 32};
  Conv2dShape second{64, 32, 13, 13, 64};
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::forward, first, false, true), "few_channels");
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::weight_grad, first, false, true), "few_channels");
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::input_grad, second, false, true), "direct");
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::forward, second, true, true), "direct");
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::forward, second, false, false), "unfold");
  const bool wide = std::string(cpu_backend::instruction_set()) == "avx512";
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::forward, second, false, true), wide ? "winograd" : "direct");
}

TEST(Conv2d, ReluKeepsNaN) {
  for (const int64_t channels : {1, 32}) {
    const Conv2dShape s{1, channels, 13, 24, 32};
    std::vector<float> x(static_cast<std::size_t>(s.x_count()), 1.0F), y(static_cast<std::size_t>(s.y_count()));
    const std::vector<float> w(static_cast<std::size_t>(s.w_count()), -1.0F);
    x[0] = std::numeric_limits<float>::quiet_NaN();
    cpu_backend::conv2d_forward(s, x.data(), w.data(), static_cast<const float*>(nullptr), y.data(), {true, true},
                                kWorkspace);
    EXPECT_TRUE(std::isnan(y[0])) << channels;
    EXPECT_EQ(y.back(), 0.0F) << channels;
  }
}

template <class T>
void conv_bits(const Conv2dShape& s, std::mt19937& random, bool exact) {
  const auto x = random_values<T>(random, s.x_count()), w = random_values<T>(random, s.w_count());
  const auto dy = random_values<T>(random, s.y_count());
  const Conv2dOptions options{false, exact};
  EXPECT_TRUE(same_on_any_width([&] {
    std::vector<T> y(dy.size());
    cpu_backend::conv2d_forward(s, x.data(), w.data(), static_cast<const T*>(nullptr), y.data(), options, kWorkspace);
    return y;
  })) << text_of(s);
  EXPECT_TRUE(same_on_any_width([&] {
    std::vector<T> dx(x.size());
    cpu_backend::conv2d_input_grad(s, dy.data(), w.data(), dx.data(), options, kWorkspace);
    return dx;
  })) << text_of(s);
  EXPECT_TRUE(same_on_any_width([&] {
    std::vector<T> dw(w.size());
    cpu_backend::conv2d_weight_grad(s, x.data(), dy.data(), dw.data(), options, kWorkspace);
    return dw;
  })) << text_of(s);
  EXPECT_TRUE(same_on_any_width([&] {
    std::vector<T> db(static_cast<std::size_t>(s.out_channels));
    cpu_backend::conv2d_bias_grad(s, dy.data(), db.data());
    return db;
  })) << text_of(s);
}

TEST(Conv2d, SameBitsOnAnyWidth) {
  std::mt19937 random(kSeed);
  for (const int64_t batch : {7, 16, 64}) {
    for (const bool exact : {false, true}) {
      conv_bits<float>({batch, 1, 28, 28, 32}, random, exact);
      conv_bits<float>({batch, 32, 13, 13, 64}, random, exact);
    }
  }
  conv_bits<double>({9, 8, 13, 13, 16}, random, false);
}

template <class T>
void check_pool(const PoolShape& s, std::mt19937& random, bool with_nan) {
  auto x = random_values<T>(random, s.planes * s.height * s.width);
  // Few distinct values, so that ties are common.
  for (T& v : x) v = std::round(v);
  if (with_nan) {
    for (int i = 0; i < 5; ++i) {
      x[static_cast<std::size_t>(pick(random, 0, static_cast<int64_t>(x.size()) - 1))] =
          std::numeric_limits<T>::quiet_NaN();
    }
  }
  const auto count = static_cast<std::size_t>(s.planes * s.out_height() * s.out_width());
  std::vector<T> y(count), y_ref(count), bare(count), dx(x.size(), T{7}), dx_ref(x.size());
  std::vector<int32_t> where(count), where_ref(count);
  const auto dy = random_values<T>(random, static_cast<int64_t>(count));
  cpu_backend::max_pool2d(s, x.data(), y.data(), where.data());
  cpu_backend::max_pool2d(s, x.data(), bare.data(), nullptr);
  reference::max_pool2d(s, x.data(), y_ref.data(), where_ref.data());
  const std::string text = "seed " + std::to_string(kSeed) + ": " + std::to_string(s.height) + "x" +
                           std::to_string(s.width) + " kernel " + std::to_string(s.kernel_h) + "x" +
                           std::to_string(s.kernel_w);
  EXPECT_EQ(where, where_ref) << text;
  EXPECT_TRUE(same_bits(y, y_ref)) << text;
  EXPECT_TRUE(same_bits(bare, y_ref)) << text;
  cpu_backend::max_pool2d_grad(s, dy.data(), where.data(), dx.data());
  reference::max_pool2d_grad(s, dy.data(), where.data(), dx_ref.data());
  EXPECT_EQ(dx, dx_ref) << text;
}

TEST(MaxPool, MatchesReference) {
  std::mt19937 random(kSeed);
  for (int64_t size = 2; size <= 70; ++size) {
    PoolShape s;
    s.planes = 3;
    s.height = 2 + size % 5;
    s.width = size;
    check_pool<float>(s, random, size % 2 == 0);
    check_pool<double>(s, random, size % 2 == 0);
  }
  for (int round = 0; round < 40; ++round) {
    PoolShape s;
    s.planes = pick(random, 1, 4);
    s.kernel_h = pick(random, 1, 4);
    s.kernel_w = pick(random, 1, 4);
    s.stride_h = pick(random, 1, 3);
    s.stride_w = pick(random, 1, 3);
    s.pad_h = pick(random, 0, s.kernel_h - 1);
    s.pad_w = pick(random, 0, s.kernel_w - 1);
    s.height = pick(random, s.kernel_h, 12);
    s.width = pick(random, s.kernel_w, 12);
    check_pool<float>(s, random, round % 2 == 0);
    check_pool<double>(s, random, round % 2 == 0);
  }
}

TEST(MaxPool, SameBitsOnAnyWidth) {
  std::mt19937 random(kSeed);
  const PoolShape s{.planes = 301, .height = 26, .width = 26};
  const auto x = random_values<float>(random, s.planes * s.height * s.width);
  EXPECT_TRUE(same_on_any_width([&] {
    std::vector<float> y(static_cast<std::size_t>(s.planes * 169)), dx(x.size());
    std::vector<int32_t> where(y.size());
    cpu_backend::max_pool2d(s, x.data(), y.data(), where.data());
    cpu_backend::max_pool2d_grad(s, y.data(), where.data(), dx.data());
    return dx;
  }));
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
      reference::softmax_cross_entropy(rows, classes, logits.data(), labels.data(), loss_ref.data(), p_ref.data());
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
        reference::sgd_momentum_step(w_ref.data(), momentum ? v_ref.data() : nullptr, g.data(), n, T(0.1), T(0.9),
                                     T(0.01));
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
        reference::adam_step(w_ref.data(), m_ref.data(), v_ref.data(), g.data(), n, step, settings);
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
        reference::add_bias(rows, columns, x.data(), bias.data(), relu, y_ref.data());
        EXPECT_TRUE(same_bits(y, y_ref));
      }
      std::vector<T> sums(bias.size()), sums_ref(bias.size());
      cpu_backend::sum_rows(x.data(), rows, columns, sums.data());
      reference::sum_rows(x.data(), rows, columns, sums_ref.data());
      EXPECT_LE(relative_error(sums, sums_ref), 10 * tolerance<T>()) << rows << " x " << columns;
      const T total = cpu_backend::sum<T>(x.data(), rows * columns);
      EXPECT_NEAR(total, reference::sum(x.data(), rows * columns), 100 * tolerance<T>() * std::sqrt(rows * columns));
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
