// Convolutions with any options, and average pooling, against loops in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "operators_test_support.h"
#include "ops_table.h"
#include "sluice/operators/by_unfolding.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

/// Elements by row-major index, and 0 outside of the image.
struct Image {
  Dims shape;
  std::vector<double> values;
  explicit Image(const NDArray& x) : shape(x.shape()), values(values_of(x)) {}
  double at(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) const {
    if (y < 0 || y >= shape[2] || x < 0 || x >= shape[3]) return 0;
    return values[static_cast<std::size_t>(((n * shape[1] + c) * shape[2] + y) * shape[3] + x)];
  }
};

void expect_convolution(const NDArray& x, const NDArray& w, const Conv2dOptions& o) {
  const Image in(x), weight(w), got(conv2d(x, w, {}, o));
  const auto size = [](std::int64_t n, std::int64_t k, std::int64_t s, std::int64_t p, std::int64_t d) {
    return (n + 2 * p - d * (k - 1) - 1) / s + 1;
  };
  ASSERT_EQ(got.shape, (Dims{in.shape[0], weight.shape[0],
                             size(in.shape[2], weight.shape[2], o.stride.height, o.padding.height, o.dilation.height),
                             size(in.shape[3], weight.shape[3], o.stride.width, o.padding.width, o.dilation.width)}));
  const std::int64_t of_group = weight.shape[0] / o.groups;
  for (std::int64_t n = 0; n < got.shape[0]; ++n)
    for (std::int64_t c = 0; c < got.shape[1]; ++c)
      for (std::int64_t y = 0; y < got.shape[2]; ++y)
        for (std::int64_t at = 0; at < got.shape[3]; ++at) {
          double total = 0;
          for (std::int64_t i = 0; i < weight.shape[1]; ++i)
            for (std::int64_t ky = 0; ky < weight.shape[2]; ++ky)
              for (std::int64_t kx = 0; kx < weight.shape[3]; ++kx) {
                total +=
                    weight.at(c, i, ky, kx) * in.at(n, c / of_group * weight.shape[1] + i,
                                                    y * o.stride.height + ky * o.dilation.height - o.padding.height,
                                                    at * o.stride.width + kx * o.dilation.width - o.padding.width);
              }
          ASSERT_NEAR(got.at(n, c, y, at), o.relu ? std::max(total, 0.0) : total, 1e-12);
        }
}

TEST(Windows, ConvolutionsWithAnyOptionsAreSumsOfProducts) {
  const NDArray x = drawn({2, 4, 7, 6}, 1);
  expect_convolution(x, drawn({6, 2, 3, 2}, 2), {.stride = {2, 1}, .padding = {0, 1}, .dilation = {2, 3}, .groups = 2});
  expect_convolution(x, drawn({8, 1, 3, 3}, 3), {.padding = 1, .relu = true, .groups = 4});
  expect_convolution(x, drawn({3, 4, 3, 3}, 4), {.stride = 2, .padding = {2, 0}});
  expect_convolution(x, drawn({3, 4, 7, 1}, 5), {.stride = {1, 2}});
  // The options that one op has, by that op and by the composition.
  for (const Conv2dOptions& o : {Conv2dOptions{}, Conv2dOptions{.stride = 2, .padding = 1}}) {
    const NDArray w = drawn({3, 4, 3, 3}, 6), b = drawn({3}, 7);
    const std::vector<double> one = values_of(conv2d(x, w, b, o)),
                              other = values_of(builtin::convolution_by_unfolding(x, w, b, o));
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], other[i], 1e-12);
  }
}

TEST(Windows, PoolsAreMeansOfTheirWindows) {
  const NDArray x = drawn({2, 3, 7, 5}, 8);
  const Image in(x);
  for (const bool count : {false, true}) {
    const Image got(avg_pool2d(x, {3, 2}, {.stride = {2, 3}, .padding = 1, .count_padding = count}));
    ASSERT_EQ(got.shape, (Dims{2, 3, 4, 2}));
    for (std::int64_t y = 0; y < 4; ++y)
      for (std::int64_t at = 0; at < 2; ++at) {
        double total = 0, n = 0;
        for (std::int64_t ky = 2 * y - 1; ky < 2 * y + 2; ++ky)
          for (std::int64_t kx = 3 * at - 1; kx < 3 * at + 1; ++kx) {
            total += in.at(1, 2, ky, kx);
            n += count || (ky >= 0 && ky < 7 && kx >= 0 && kx < 5) ? 1 : 0;
          }
        EXPECT_NEAR(got.at(1, 2, y, at), total / n, 1e-12);
      }
  }
  const Image got(adaptive_avg_pool2d(x, {3, 2}));
  const std::int64_t rows[][2] = {{0, 3}, {2, 5}, {4, 7}}, columns[][2] = {{0, 3}, {2, 5}};
  for (std::int64_t y = 0; y < 3; ++y)
    for (std::int64_t at = 0; at < 2; ++at) {
      double total = 0;
      for (std::int64_t ky = rows[y][0]; ky < rows[y][1]; ++ky)
        for (std::int64_t kx = columns[at][0]; kx < columns[at][1]; ++kx) total += in.at(1, 2, ky, kx);
      EXPECT_NEAR(got.at(1, 2, y, at), total / 9, 1e-12);
    }
  const std::vector<double> all_of_it = values_of(adaptive_avg_pool2d(x, 1)), means = values_of(mean(x, {2, 3}));
  for (std::size_t i = 0; i < means.size(); ++i) EXPECT_NEAR(all_of_it[i], means[i], 1e-12);
}

/// The places at which windows start, by the rule's words: in steps of the stride while the window is inside of image
/// and padding; with ceil_mode also those that reach beyond it, if they start in the image or before it.
std::vector<std::int64_t> starts(std::int64_t n, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                                 bool ceil_mode) {
  std::vector<std::int64_t> list;
  for (std::int64_t at = -padding; at < n && (ceil_mode || at + kernel <= n + padding); at += stride) {
    list.push_back(at);
    if (at + kernel >= n + padding) break;  // nothing is left over
  }
  return list;
}

TEST(Windows, MaxPoolsHaveTheWindowsOfTheirMode) {
  for (std::int64_t n = 1; n < 12; ++n)
    for (std::int64_t kernel = 1; kernel < 5; ++kernel)
      for (std::int64_t stride = 1; stride < 6; ++stride)
        for (std::int64_t padding = 0; padding <= kernel / 2; ++padding)
          for (const bool ceil_mode : {false, true}) {
            const MaxPool2dOptions o{.stride = stride, .padding = padding, .ceil_mode = ceil_mode};
            const std::vector<std::int64_t> down = starts(n, kernel, stride, padding, ceil_mode),
                                            right = starts(10, kernel, stride, padding, ceil_mode);
            if (down.empty() || (ceil_mode && n + 2 * padding + stride - 1 < kernel)) continue;
            SCOPED_TRACE(std::to_string(n) + " rows, kernel " + std::to_string(kernel) + ", stride " +
                         std::to_string(stride) + ", padding " + std::to_string(padding) +
                         (ceil_mode ? ", ceil_mode" : ""));
            const NDArray x = drawn({1, 2, n, 10}, 8);
            const std::vector<double> values = values_of(x), pooled = values_of(max_pool2d(x, kernel, o));
            std::vector<double> wanted;
            for (std::int64_t c = 0; c < 2; ++c)
              for (const std::int64_t top : down)
                for (const std::int64_t left : right) {
                  double best = -9;
                  for (std::int64_t y = std::max<std::int64_t>(top, 0); y < std::min(top + kernel, n); ++y)
                    for (std::int64_t at = std::max<std::int64_t>(left, 0);
                         at < std::min<std::int64_t>(left + kernel, 10); ++at) {
                      best = std::max(best, values[static_cast<std::size_t>((c * n + y) * 10 + at)]);
                    }
                  wanted.push_back(best);
                }
            EXPECT_EQ(pooled, wanted);
          }
}

/// Pools that are made of unfolded windows have those of the row max_pool2d, where that has the options.
TEST(Windows, UnfoldedPoolsAreThoseOfTheRow) {
  const NDArray x = drawn({2, 2, 9, 7}, 3);
  for (const bool ceil_mode : {false, true})
    for (const std::int64_t stride : {1, 2, 3, 4}) {
      const NDArray square_ones = max_pool2d(x, 3, {.stride = stride, .padding = 1, .ceil_mode = ceil_mode});
      // Windows of one row over those of one column.
      const NDArray rows = max_pool2d(x, {3, 1}, {.stride = {stride, 1}, .padding = {1, 0}, .ceil_mode = ceil_mode});
      const NDArray both = max_pool2d(rows, {1, 3}, {.stride = {1, stride}, .padding = {0, 1}, .ceil_mode = ceil_mode});
      EXPECT_TRUE(array_equal(both, square_ones)) << stride << (ceil_mode ? ", ceil_mode" : "");
    }
  EXPECT_TRUE(
      array_equal(max_pool2d(x, 2, {.stride = 1, .dilation = 3}),
                  maximum(maximum(x(all, all, slice(0, 6), slice(0, 4)), x(all, all, slice(3, 9), slice(0, 4))),
                          maximum(x(all, all, slice(0, 6), slice(3, 7)), x(all, all, slice(3, 9), slice(3, 7))))));
}

/// As PyTorch has it: zeros of the padding count, what a window has behind them does not.
TEST(Windows, MeansInCeilModeCountWhatIsThere) {
  const NDArray x = arange(1, 7).to(DType::f64).reshape({1, 1, 1, 6});
  const auto means = [&](AvgPool2dOptions o) {
    o.stride = {1, 3};
    o.ceil_mode = true;
    return avg_pool2d(x, {1, 4}, o).to_vector<double>();
  };
  using Values = std::vector<double>;
  EXPECT_EQ(means({}), (Values{2.5, 5}));
  EXPECT_EQ(means({.padding = {0, 1}}), (Values{1.5, 4.5, 3}));
  EXPECT_EQ(means({.padding = {0, 1}, .count_padding = false}), (Values{2, 4.5, 6}));
}

/// Windows of adaptive pooling overlap where sizes do not divide.
TEST(Windows, AdaptiveMaximaAreThoseOfTheirWindows) {
  const NDArray x = drawn({2, 3, 7, 5}, 4);
  const NDArray y = adaptive_max_pool2d(x, {3, 2});
  EXPECT_EQ(y.shape(), (Dims{2, 3, 3, 2}));
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 2; ++j) {
      const NDArray window =
          x(all, all, slice(i * 7 / 3, ((i + 1) * 7 + 2) / 3), slice(j * 5 / 2, ((j + 1) * 5 + 1) / 2));
      EXPECT_TRUE(array_equal(y(all, all, i, j), max(window, {2, 3})));
    }
  EXPECT_TRUE(array_equal(adaptive_max_pool2d(x, 1), max(x, {2, 3}, {.keep = true})));
}

/// A transposed convolution is the gradient of the convolution with respect to its image, for all options.
TEST(Windows, TransposedConvolutionsAreGradientsOfConvolutions) {
  for (const std::int64_t groups : {1, 2})
    for (const Size2d stride : {Size2d(1), Size2d(2), Size2d(3, 1)})
      for (const Size2d padding : {Size2d(0), Size2d(1), Size2d(2, 0)})
        for (const Size2d dilation : {Size2d(1), Size2d(2, 1)}) {
          const NDArray image = drawn({2, 4, 9, 8}, 1).with_grad(), weight = drawn({6, 4 / groups, 3, 2}, 2);
          const Conv2dOptions o{.stride = stride, .padding = padding, .dilation = dilation, .groups = groups};
          const NDArray y = conv2d(image, weight, {}, o), g = drawn(y.shape(), 3);
          const NDArray wanted = grad({y}, {g}, {image})[0];
          const auto behind = [](std::int64_t n, std::int64_t kernel, std::int64_t s, std::int64_t p, std::int64_t d) {
            return (n + 2 * p - (kernel - 1) * d - 1) % s;
          };
          const NDArray got =
              conv_transpose2d(g, weight, {},
                               {.stride = stride,
                                .padding = padding,
                                .output_padding = {behind(9, 3, stride.height, padding.height, dilation.height),
                                                   behind(8, 2, stride.width, padding.width, dilation.width)},
                                .dilation = dilation,
                                .groups = groups});
          ASSERT_EQ(got.shape(), wanted.shape());
          EXPECT_TRUE(allclose(got, wanted, {.rtol = 1e-12, .atol = 1e-12}));
        }
  const NDArray x = zeros({1, 4, 5, 5}), w = zeros({4, 2, 3, 3});
  EXPECT_THAT(message([&] { conv_transpose2d(x, w, {}, {.groups = 3}); }), HasSubstr("channels do not fit 3 groups"));
  EXPECT_THAT(message([&] { conv_transpose2d(x, w, {}, {.output_padding = 1}); }),
              HasSubstr("output_padding must be smaller than stride or dilation"));
  EXPECT_THAT(message([&] { conv_transpose2d(x, w, {}, {.padding = 4}); }), HasSubstr("nothing is left"));
  EXPECT_THAT(message([&] { conv_transpose2d(x, w, zeros({3})); }), HasSubstr("bias does not fit"));
  EXPECT_THAT(message([&] { conv_transpose1d(x, w); }), HasSubstr("needs x (n, in, length)"));
}

TEST(Windows, MaxPoolsInCeilModeOfKnownSizes) {
  const auto size = [](std::int64_t n, std::int64_t kernel, MaxPool2dOptions o) {
    o.ceil_mode = true;
    return max_pool2d(zeros({1, 1, n, n}), kernel, o).size(2);
  };
  EXPECT_EQ(size(5, 2, {}), 3);
  EXPECT_EQ(size(6, 2, {}), 3);
  EXPECT_EQ(size(6, 3, {.stride = 2, .padding = 1}), 4);
  EXPECT_EQ(size(5, 2, {.stride = 3, .padding = 1}), 2);  // a third window would start in the padding behind
  EXPECT_EQ(size(2, 3, {.stride = 2}), 1);
  EXPECT_THAT(message([&] { size(1, 3, {.stride = 1}); }), HasSubstr("the window does not fit the image"));
  EXPECT_THAT(message([&] {
                max_pool2d(zeros({1, 1, 0, 4}), 2, {.padding = 1});
              }),
              HasSubstr("the window does not fit the image"));
}

TEST(Windows, NothingAndErrors) {
  EXPECT_EQ(unfold2d(zeros({0, 2, 4, 4}), 3).shape(), (Dims{0, 2, 3, 3, 2, 2}));
  EXPECT_EQ(unfold2d(zeros({1, 1, 1, 1}), 1, {.stride = 5, .padding = 3}).shape(), (Dims{1, 1, 1, 1, 2, 2}));
  const NDArray x = zeros({1, 4, 5, 5}), w = zeros({4, 2, 3, 3});
  EXPECT_THAT(message([&] { conv2d(x, w, {}, {.groups = 4}); }),
              ::testing::MatchesRegex("\\[conv2d\\] windows_test.cc:[0-9]+: \\(1, 4, 5, 5\\) x \\(4, 2, 3, 3\\): "
                                      "channels do not fit 4 groups"));
  EXPECT_THAT(message([&] { conv2d(x, w, {}, {.groups = 0}); }), HasSubstr("0 groups"));
  EXPECT_THAT(message([&] { conv2d(x, w, {}, {.dilation = 3, .groups = 2}); }), HasSubstr("the kernel does not fit"));
  EXPECT_THAT(message([&] { conv2d(x, w, {}, {.stride = {0, 1}, .groups = 2}); }), HasSubstr("must be at least 1"));
  EXPECT_THAT(message([&] { conv2d(x, w, zeros({3}), {.groups = 2}); }), HasSubstr("bias does not fit"));
  EXPECT_THAT(message([&] { conv1d(x, w); }), HasSubstr("needs x (n, in, length)"));
  EXPECT_THAT(message([&] { avg_pool2d(x, 2, {.padding = 2}); }), HasSubstr("padding must be smaller"));
  EXPECT_THAT(message([&] { avg_pool2d(x, 6); }), HasSubstr("does not fit the image"));
  EXPECT_THAT(message([&] { adaptive_avg_pool2d(x, 0); }), HasSubstr("a row and a column"));
}

}  // namespace
}  // namespace sluice::testing
