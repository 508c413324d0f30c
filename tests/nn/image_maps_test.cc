// Maps of pictures against plain loops; mixup and its draws against the distribution.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include "nn_support.h"
#include "sluice/nn/data/map.h"
#include "sluice/nn/data/mixup.h"
#include "sluice/resources/random.h"

namespace sluice {
namespace {

using test::bits;
using test::TestEngine;
using ::testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;

Bytes picture(std::int64_t n) {
  Bytes list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(static_cast<std::uint8_t>((i * 37 + i * i * 11) % 256));
  return list;
}

template <class T = std::uint8_t>
std::vector<T> apply(const nn::Map& map, Bytes image, const Dims& shape, std::uint64_t draw) {
  const nn::Map::Result to = map.result(shape, DType::u8);
  std::vector<T> out(static_cast<std::size_t>(to.shape.count()));
  map.apply({reinterpret_cast<std::byte*>(image.data()), DType::u8, shape, row_major(shape)},
            {reinterpret_cast<std::byte*>(out.data()), to.dtype, to.shape, row_major(to.shape)}, {5, 6, draw});
  return out;
}

std::string refused(const nn::Map& map, const Dims& shape, DType dtype = DType::u8) {
  return test::what_of([&] { (void)map.result(shape, dtype); });
}

TEST(ImageMaps, PixelsByChannel) {
  const nn::Map map = nn::pixels_by_channel({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  const Bytes image = picture(3 * 5 * 7);
  const std::vector<float> out = apply<float>(map, image, {3, 5, 7}, 0);
  const std::array<double, 3> mean{0.485, 0.456, 0.406}, deviation{0.229, 0.224, 0.225};
  for (std::size_t i = 0; i < image.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<float>((image[i] / 255.0 - mean[i / 35]) / deviation[i / 35])) << i;
  }
  EXPECT_THAT(refused(map, {1, 5, 7}), HasSubstr("images (1, 5, 7), and 3 means"));
  EXPECT_THAT(refused(map, {3, 5, 7}, DType::f32), HasSubstr("samples (3, 5, 7) of f32: u8 images"));
  EXPECT_THAT(test::what_of([] { nn::pixels_by_channel({0.5}, {0}); }), HasSubstr("the deviation of channel 0 is 0"));
  EXPECT_THAT(test::what_of([] { nn::pixels_by_channel({0.5}, {}); }), HasSubstr("1 means and 0 deviations"));
}

/// Three maps that each put a draw behind the others: the keys are those of the right nesting, whichever way.
TEST(ImageMaps, ThenGivesEachItsOwnKeyHoweverNested) {
  const nn::Map draw([](const TensorView& in, const TensorView& out, const RandomKey& key) {
    std::copy_n(in.as<std::uint8_t>() + 1, 3, out.as<std::uint8_t>());
    out.as<std::uint8_t>()[3] = static_cast<std::uint8_t>(uniform_int(key, 0, 0, 256));
  });
  const auto result = [](const Dims& shape, DType dtype) { return nn::Map::Result{shape, dtype}; };
  const nn::Map one(result, draw.apply);
  const nn::Map right = nn::then(one, nn::then(one, one)), left = nn::then(nn::then(one, one), one);
  int same = 0;
  for (std::uint64_t number = 0; number < 100; ++number) {
    Bytes wanted{0};
    RandomKey key{5, 6, number};
    for (int i = 0; i < 3; ++i) {
      wanted.push_back(static_cast<std::uint8_t>(uniform_int(key, 0, 0, 256)));
      key = RandomStream(key.seed, key.stream).derive(1).state();
      key.draw = number;
    }
    EXPECT_EQ(apply(right, Bytes(4), {4}, number), wanted);
    EXPECT_EQ(apply(left, Bytes(4), {4}, number), wanted);
    same += wanted[2] == wanted[3] ? 1 : 0;
  }
  EXPECT_LT(same, 10);
  const nn::Map four = nn::then(nn::then(one, one), nn::then(one, one));
  EXPECT_EQ(apply(four, Bytes(4), {4}, 7), apply(nn::then(right, one), Bytes(4), {4}, 7));
}

TEST(ImageMaps, ColourJitterIsItsFormula) {
  const std::int64_t n = 6 * 5;
  const Bytes image = picture(3 * n);
  const double brightness = 0.4, contrast = 0.6, saturation = 1.5;
  const nn::Map map = nn::colour_jitter({.brightness = brightness, .contrast = contrast, .saturation = saturation});
  std::set<Bytes> seen;
  for (std::uint64_t draw = 0; draw < 50; ++draw) {
    const ElementKey key(RandomKey{5, 6, draw});
    const auto factor = [&](std::uint64_t i, double range) {
      const double low = std::max(0.0, 1 - range);
      return low + (1 + range - low) * uniform01_f64(key, i);
    };
    const double b = factor(0, brightness), c = factor(1, contrast), s = factor(2, saturation);
    const auto kept = [](double p) { return std::min(255.0, std::max(0.0, p)); };
    const auto grey = [](double r, double g, double bl) { return 0.299 * r + 0.587 * g + 0.114 * bl; };
    std::vector<double> p(image.begin(), image.end());
    for (double& x : p) x = kept(b * x);
    double mean = 0;
    const auto at = [&](std::int64_t k, std::int64_t i) -> double& { return p[static_cast<std::size_t>(k * n + i)]; };
    for (std::int64_t i = 0; i < n; ++i) mean += grey(at(0, i), at(1, i), at(2, i)) / static_cast<double>(n);
    for (double& x : p) x = kept(c * x + (1 - c) * mean);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = grey(at(0, i), at(1, i), at(2, i));
      for (std::int64_t k = 0; k < 3; ++k) at(k, i) = kept(s * at(k, i) + (1 - s) * g);
    }
    const Bytes out = apply(map, image, {3, 6, 5}, draw);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_LE(std::abs(out[i] - p[i]), 0.5 + 1e-9) << draw << ' ' << i;
    seen.insert(out);
  }
  EXPECT_EQ(seen.size(), 50U);
  EXPECT_EQ(apply(nn::colour_jitter({}), image, {3, 6, 5}, 1), image) << "none asked, none done";
  const Bytes grey = picture(n);
  EXPECT_EQ(apply(nn::colour_jitter({.saturation = 1}), grey, {1, 6, 5}, 1), grey);
  EXPECT_TRUE(apply(map, {}, {3, 0, 5}, 1).empty());
  EXPECT_THAT(refused(map, {4, 6, 5}), HasSubstr("images (4, 6, 5): 1 or 3 channels"));
  EXPECT_THAT(test::what_of([] { nn::colour_jitter({.contrast = std::nan("")}); }), HasSubstr("contrast nan"));
}

/// A picture whose channels are the row and the column of each pixel shows which part was taken.
TEST(ImageMaps, ResizedCropsTakePartsOfTheAreaAndRatio) {
  constexpr std::int64_t kHeight = 120, kWidth = 200;
  Bytes image;
  for (int k = 0; k < 2; ++k) {
    for (std::int64_t i = 0; i < kHeight; ++i) {
      for (std::int64_t j = 0; j < kWidth; ++j) image.push_back(static_cast<std::uint8_t>(k == 0 ? i : j));
    }
  }
  const nn::Map map = nn::random_resized_crop(40, 50);
  EXPECT_EQ(map.result({2, kHeight, kWidth}, DType::u8).shape, (Dims{2, 40, 50}));
  double least = 1, most = 0;
  std::set<int> tops;
  for (std::uint64_t draw = 0; draw < 300; ++draw) {
    const Bytes out = apply(map, image, {2, kHeight, kWidth}, draw);
    // From the first to the last output's middle it is 39/40 of the part's height.
    const double height = (out[39 * 50] - out[0]) / (39 / 40.0), width = (out[2000 + 49] - out[2000]) / (49 / 50.0);
    const double area = height * width / (kHeight * kWidth), ratio = width / height;
    least = std::min(least, area);
    most = std::max(most, area);
    tops.insert(out[0]);
    EXPECT_GT(ratio, 0.75 * 0.88) << draw;
    EXPECT_LT(ratio, 1.34 * 1.12) << draw;
  }
  EXPECT_LT(least, 0.15);
  EXPECT_GT(least, 0.06);
  EXPECT_GT(most, 0.6);
  EXPECT_GT(tops.size(), 30U);
  // All of it, resized as images are: a part of the image's own size is the image.
  const nn::ResizedCrop whole{.least_area = 1, .most_area = 1, .least_ratio = 5.0 / 3, .most_ratio = 5.0 / 3};
  EXPECT_EQ(apply(nn::random_resized_crop(kHeight, kWidth, whole), image, {2, kHeight, kWidth}, 1), image);
  // Nothing of the ratio fits: the middle, as large as may be.
  const Bytes line = apply(nn::random_resized_crop(1, 3), picture(9), {1, 1, 9}, 1);
  EXPECT_EQ(line.size(), 3U);
  EXPECT_EQ(apply(nn::random_resized_crop(2, 2), Bytes{7}, {1, 1, 1}, 3), (Bytes{7, 7, 7, 7}));
  EXPECT_THAT(refused(map, {3, 0, 4}), HasSubstr("images (3, 0, 4)"));
  EXPECT_THAT(test::what_of([] { nn::random_resized_crop(0, 3); }), HasSubstr("[nn::random_resized_crop] 0 x 3"));
  EXPECT_THAT(test::what_of([] { nn::random_resized_crop(3, 3, {.most_area = 2}); }), HasSubstr("areas 0.08"));
}

TEST(Mixup, BlendsRowsAndLabelsAlike) {
  TestEngine engine;
  const NDArray x = test::made_up({7, 3, 2}, 1, DType::f32).with_grad();
  const NDArray labels = from<std::int64_t>({0, 1, 2, 3, 4, 5, 6}, {7}), y = one_hot(labels, 7);
  RandomStream stream(3), same(3);
  std::set<std::string> all;
  for (int batch = 0; batch < 5; ++batch) {
    const nn::Mixed mixed = nn::mixup(x, y, stream, 1.0);
    EXPECT_GE(mixed.lambda, 0);
    EXPECT_LE(mixed.lambda, 1);
    const std::vector<float> of_y = mixed.y.to_vector<float>(), of_x = mixed.x.to_vector<float>();
    const std::vector<float> plain = x.to_vector<float>();
    std::set<std::size_t> partners;
    for (std::size_t i = 0; i < 7; ++i) {
      std::size_t partner = i;
      for (std::size_t k = 0; k < 7; ++k) {
        if (k != i && of_y[7 * i + k] > 0) partner = k;
      }
      partners.insert(partner);
      EXPECT_NEAR(of_y[7 * i + i], partner == i ? 1 : mixed.lambda, 1e-6);
      for (std::size_t k = 0; k < 6; ++k) {
        EXPECT_NEAR(of_x[6 * i + k], mixed.lambda * plain[6 * i + k] + (1 - mixed.lambda) * plain[6 * partner + k],
                    1e-6);
      }
    }
    EXPECT_EQ(partners.size(), 7U) << "a permutation";
    all.insert(bits(mixed.x));
    EXPECT_EQ(bits(nn::mixup(x, y, same, 1.0).x), bits(mixed.x)) << "keyed by the stream alone";
  }
  EXPECT_EQ(all.size(), 5U);
  sum(nn::mixup(x, y, stream, 1.0).x).backward();
  for (const float g : x.grad().to_vector<float>()) EXPECT_NEAR(g, 1, 1e-5) << "each row is used once, by both parts";
  const auto line = [&](const NDArray& a, const NDArray& b, double alpha = 1) {
    return test::what_of([&] { nn::mixup(a, b, stream, alpha); });
  };
  EXPECT_THAT(line(x, labels), HasSubstr("floating-point numbers are wanted; labels by one_hot"));
  EXPECT_THAT(line(x, y.narrow(0, 0, 6)), HasSubstr("(7, 3, 2) and (6, 7) of two lengths"));
  EXPECT_THAT(line(x, y, 0), HasSubstr("[nn::mixup] image_maps_test.cc:"));
  EXPECT_THAT(line(x, y, std::nan("")), HasSubstr("an alpha of nan"));
  EXPECT_EQ(nn::mixup(ones({0, 2}), ones({0, 3}), stream).x.shape(), (Dims{0, 2}));
}

/// The mean of Beta(a, a) is 1/2, its variance 1 / (4 (2 a + 1)); Beta(1, 1) is uniform.
TEST(Mixup, DrawsFromBeta) {
  constexpr int kDraws = 20'000;
  for (const double alpha : {0.2, 1.0, 4.0}) {
    double sum = 0, squares = 0;
    std::array<int, 10> tenths{};
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      const double x = nn::beta_draw({11, 12, i}, alpha);
      ASSERT_TRUE(x >= 0 && x <= 1) << alpha << ' ' << i;
      sum += x;
      squares += (x - 0.5) * (x - 0.5);
      ++tenths[std::min<std::size_t>(9, static_cast<std::size_t>(10 * x))];
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws, variance, 0.04 * variance) << alpha;
    if (alpha == 1) {
      for (const int n : tenths) EXPECT_NEAR(n, kDraws / 10, 5 * std::sqrt(kDraws / 10.0));
    }
  }
  for (const double alpha : {1e-320, 1e-6, 1e12, 1e300}) {
    for (std::uint64_t i = 0; i < 100; ++i) {
      const double x = nn::beta_draw({1, 2, i}, alpha);
      EXPECT_TRUE(x >= 0 && x <= 1) << alpha;
    }
  }
}

}  // namespace
}  // namespace sluice
