// Convolution and pooling of the CPU backend against the plain loops, over odd shapes; and their bits on 1, 2 and 4
// threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sluice/operators/backends/cpu/conv2d.h"
#include "sluice/operators/backends/cpu/conv2d_parts.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/pool.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/sluice.h"
#include "sluice/tests/operators/cpu_kernels.h"

namespace sluice {
namespace {

using cpu_backend::Conv2dOptions;
using cpu_backend::Conv2dPass;
using cpu_backend::Conv2dShape;
using cpu_backend::PoolShape;
using namespace test;

std::string text_of(const Conv2dShape& s) {
  return "batch " + std::to_string(s.batch) + ", " + std::to_string(s.in_channels) + " -> " +
         std::to_string(s.out_channels) + ", " + std::to_string(s.height) + "x" + std::to_string(s.width) +
         ", kernel " + std::to_string(s.kernel_h) + "x" + std::to_string(s.kernel_w) + ", stride " +
         std::to_string(s.stride_h) + "x" + std::to_string(s.stride_w) + ", padding " + std::to_string(s.pad_h) + "x" +
         std::to_string(s.pad_w);
}

/// The same sizes for the plain loops; those of the result from the definition.
reference::ConvolutionSizes plain(const Conv2dShape& s) {
  return {s.batch,
          s.in_channels,
          s.height,
          s.width,
          s.out_channels,
          s.kernel_h,
          s.kernel_w,
          s.stride_h,
          s.stride_w,
          s.pad_h,
          s.pad_w,
          (s.height + 2 * s.pad_h - s.kernel_h) / s.stride_h + 1,
          (s.width + 2 * s.pad_w - s.kernel_w) / s.stride_w + 1};
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
  reference::conv2d(plain(s), x.data(), w.data(), b, y_ref.data(), relu);
  EXPECT_LE(relative_error(y, y_ref), tolerance<T>()) << "forward " << name(Conv2dPass::forward);
  cpu_backend::conv2d_input_grad(s, dy.data(), w.data(), dx.data(), options, kWorkspace);
  reference::conv2d_input_grad(plain(s), dy.data(), w.data(), dx_ref.data());
  EXPECT_LE(relative_error(dx, dx_ref), tolerance<T>()) << "input gradient " << name(Conv2dPass::input_grad);
  cpu_backend::conv2d_weight_grad(s, x.data(), dy.data(), dw.data(), options, kWorkspace);
  reference::conv2d_weight_grad(plain(s), x.data(), dy.data(), dw_ref.data());
  EXPECT_LE(relative_error(dw, dw_ref), tolerance<T>()) << "weight gradient " << name(Conv2dPass::weight_grad);
  cpu_backend::conv2d_bias_grad(s, dy.data(), db.data());
  reference::conv2d_bias_grad(s.batch, s.out_channels, s.out_height() * s.out_width(), dy.data(), db_ref.data());
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

/// Large enough that images and channels are cut, into pieces that are not all of a size.
TEST(Conv2d, PiecesOfImagesAndChannelsMatchReference) {
  std::mt19937 random(kSeed);
  for (const auto& [batch, in, out] : {std::array<int64_t, 3>{9, 200, 200}, {9, 40, 200}, {9, 200, 40}}) {
    Conv2dShape s;
    s.batch = batch;
    s.in_channels = in;
    s.out_channels = out;
    s.height = s.width = 8;
    s.pad_h = s.pad_w = 1;
    check_conv<float>(s, random, true, true, false);
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
  // oneDNN 2 has Winograd's kernel for AVX-512 alone, oneDNN 3 has none.
  const bool has = cpu_backend::conv::onednn_has(Conv2dPass::forward, second, cpu_backend::conv::Algorithm::winograd);
  EXPECT_TRUE(!has || std::string(cpu_backend::instruction_set()) == "avx512");
  EXPECT_STREQ(cpu_backend::conv2d_kernel_name(Conv2dPass::forward, second, false, true), has ? "winograd" : "direct");
}

/// SLUICE_WINOGRAD=0 in the environment (operators.without_winograd) has no other bits than the option.
TEST(Conv2d, WinogradIsAnOption) {
  const Conv2dShape shape{8, 32, 13, 13, 64};
  RandomStream stream(kSeed);
  const NDArray x = normal({8, 32, 13, 13}, stream), w = normal({64, 32, 3, 3}, stream);
  const auto run = [&](bool winograd, DType dtype) {
    const NDArray a = x.to(dtype).copy().with_grad(), b = w.to(dtype).copy().with_grad();
    const NDArray y = conv2d(a, b, {}, {.winograd = winograd});
    backward({y}, {ones(y.shape(), dtype)});
    return std::vector<std::vector<double>>{y.to(DType::f64).to_vector<double>(),
                                            a.grad().to(DType::f64).to_vector<double>(),
                                            b.grad().to(DType::f64).to_vector<double>()};
  };
  const auto exact = run(true, DType::f64), by_rule = run(true, DType::f32), direct = run(false, DType::f32);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double largest = 0, error = 0;
    for (std::size_t k = 0; k < exact[i].size(); ++k) {
      largest = std::max(largest, std::abs(exact[i][k]));
      error = std::max(error, std::abs(exact[i][k] - direct[i][k]));
    }
    EXPECT_LE(error, 1e-6 * largest) << i;
  }
  const char* const text = std::getenv("SLUICE_WINOGRAD");
  const bool used = !(text && std::string(text) == "0") &&
                    cpu_backend::conv::onednn_has(Conv2dPass::forward, shape, cpu_backend::conv::Algorithm::winograd);
  EXPECT_EQ(by_rule == direct, !used);
  EXPECT_EQ(by_rule[0] == direct[0], !used);
  EXPECT_EQ(by_rule[2] == direct[2], !used);
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
  const reference::PoolingSizes sizes{s.planes,
                                      s.height,
                                      s.width,
                                      s.kernel_h,
                                      s.kernel_w,
                                      s.stride_h,
                                      s.stride_w,
                                      s.pad_h,
                                      s.pad_w,
                                      (s.height + 2 * s.pad_h - s.kernel_h) / s.stride_h + 1,
                                      (s.width + 2 * s.pad_w - s.kernel_w) / s.stride_w + 1};
  reference::max_pool2d(sizes, x.data(), y_ref.data(), where_ref.data());
  const std::string text = "seed " + std::to_string(kSeed) + ": " + std::to_string(s.height) + "x" +
                           std::to_string(s.width) + " kernel " + std::to_string(s.kernel_h) + "x" +
                           std::to_string(s.kernel_w);
  EXPECT_EQ(where, where_ref) << text;
  EXPECT_TRUE(same_bits(y, y_ref)) << text;
  EXPECT_TRUE(same_bits(bare, y_ref)) << text;
  cpu_backend::max_pool2d_grad(s, dy.data(), where.data(), dx.data());
  reference::max_pool2d_grad(sizes, dy.data(), where.data(), dx_ref.data());
  EXPECT_LE(relative_error(dx, dx_ref), tolerance<T>()) << text;
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

}  // namespace
}  // namespace sluice
