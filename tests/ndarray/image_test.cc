// Pictures: every kind of PNG and JPEG, resizing against its definition, and files that are cut or changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/image.h"
#include "sluice/tests/support/format_checks.h"
#include "sluice/tests/support/image_files.h"

namespace sluice {
namespace {

using test::expect_format_error;
using test::jpeg;
using test::png;
using test::TemporaryDirectory;
using test::write_file;

using Values = std::vector<int>;

HostTensor decode(const std::string& file, const ImageOptions& options = {}) {
  return decode_image(std::as_bytes(std::span(file)), options);
}
Values values(const HostTensor& image) {
  const auto span = image.as<std::uint8_t>();
  return {span.begin(), span.end()};
}
std::string bytes(const Values& list) { return {list.begin(), list.end()}; }

const Values kColours{10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120};  // 2 x 2 pixels of RGB

TEST(ImagePng, EveryKindAndDepth) {
  const HostTensor rgb = decode(png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours)));
  EXPECT_EQ(rgb.dtype, DType::u8);
  EXPECT_EQ(rgb.shape, (Dims{3, 2, 2}));
  const Values planes{10, 40, 70, 100, 20, 50, 80, 110, 30, 60, 90, 120};
  EXPECT_EQ(values(rgb), planes);
  EXPECT_EQ(values(decode(png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours), {.interlaced = true}))), planes);
  Values four = planes;
  four.insert(four.end(), 4, 255);
  EXPECT_EQ(values(decode(png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours)), {.channels = 4})), four);
  Values grey;
  for (std::size_t i = 0; i < 4; ++i) {
    grey.push_back(static_cast<int>(
        std::lround(0.299 * kColours[3 * i] + 0.587 * kColours[3 * i + 1] + 0.114 * kColours[3 * i + 2])));
  }
  EXPECT_EQ(values(decode(png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours)), {.channels = 1})), grey);
  // Of 16 bits the highest 8.
  Values deep;
  for (const int x : kColours) deep.insert(deep.end(), {x, 200});
  EXPECT_EQ(values(decode(png(2, 2, PNG_COLOR_TYPE_RGB, bytes(deep), {.depth = 16}))), planes);
  // Opacity is the fourth channel, or dropped.
  const std::string rgba = png(1, 2, PNG_COLOR_TYPE_RGBA, bytes({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values(decode(rgba)), (Values{1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(values(decode(rgba, {.channels = 4})), (Values{1, 5, 2, 6, 3, 7, 4, 8}));
  const std::string grey_alpha = png(1, 2, PNG_COLOR_TYPE_GRAY_ALPHA, bytes({9, 10, 11, 12}));
  EXPECT_EQ(values(decode(grey_alpha, {.channels = 1})), (Values{9, 11}));
  EXPECT_EQ(values(decode(grey_alpha, {.channels = 4})), (Values{9, 11, 9, 11, 9, 11, 10, 12}));
  // 1, 2 and 4 bits of grey are spread over 0 to 255; a row begins with a byte of its own.
  EXPECT_EQ(values(decode(png(2, 3, PNG_COLOR_TYPE_GRAY, "\xa0\x40", {.depth = 1}), {.channels = 1})),
            (Values{255, 0, 255, 0, 255, 0}));
  EXPECT_EQ(values(decode(png(1, 4, PNG_COLOR_TYPE_GRAY, "\x1b", {.depth = 2}), {.channels = 1})),
            (Values{0, 85, 170, 255}));
  EXPECT_EQ(values(decode(png(1, 2, PNG_COLOR_TYPE_GRAY, "\x2f", {.depth = 4}))), (Values{34, 255, 34, 255, 34, 255}));
  const test::PngOptions palette{.depth = 4, .palette = {{1, 2, 3}, {4, 5, 6}}, .opacity = {7}};
  const std::string indexed = png(1, 2, PNG_COLOR_TYPE_PALETTE, "\x10", palette);
  EXPECT_EQ(values(decode(indexed)), (Values{4, 1, 5, 2, 6, 3}));
  EXPECT_EQ(values(decode(indexed, {.channels = 4})), (Values{4, 1, 5, 2, 6, 3, 255, 7}));
}

/// Pixels of `channels`, all different from their neighbours, and what planes hold of them by the definition.
TEST(ImagePng, PlanesOfEveryKindAndLength) {
  const std::vector<int> kinds{PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
  for (int channels = 1; channels <= 4; ++channels) {
    for (const int width : {1, 2, 15, 16, 17, 31, 32, 33, 100}) {
      Values pixels;
      for (int i = 0; i < width * channels; ++i) pixels.push_back((i * 151 + i / 256 * 7 + 3) % 256);
      const std::string file = png(1, width, kinds[static_cast<std::size_t>(channels - 1)], bytes(pixels));
      for (const int wanted : {1, 3, 4}) {
        SCOPED_TRACE(std::to_string(channels) + " channels as " + std::to_string(wanted) + " of " +
                     std::to_string(width));
        const HostTensor image = decode(file, {.channels = wanted});
        const auto planes = image.as<std::uint8_t>();
        for (int i = 0; i < width; ++i) {
          const auto of = [&](int c) { return pixels[static_cast<std::size_t>(i * channels + c)]; };
          const auto seen = [&](int c) { return int{planes[static_cast<std::size_t>(c * width + i)]}; };
          if (wanted == 1 && channels >= 3) {
            ASSERT_EQ(seen(0), std::lround((299 * of(0) + 587 * of(1) + 114 * of(2)) / 1000.0));
            continue;
          }
          for (int c = 0; c < std::min(wanted, 3); ++c) ASSERT_EQ(seen(c), of(channels >= 3 ? c : 0));
          if (wanted == 4) {
            ASSERT_EQ(seen(3), channels % 2 == 0 ? of(channels - 1) : 255);
          }
        }
      }
    }
  }
}

/// A picture without sharp edges, so that JPEG of the best quality is off by little.
std::string smooth(int height, int width, int channels) {
  std::string rows;
  for (int i = 0; i < height; ++i) {
    for (int j = 0; j < width; ++j) {
      for (int c = 0; c < channels; ++c) rows.push_back(static_cast<char>(40 + 3 * i + 2 * j + 20 * c));
    }
  }
  return rows;
}

void expect_near(const HostTensor& image, int most, const std::function<int(int c, int i, int j)>& wanted) {
  const auto pixels = image.as<std::uint8_t>();
  std::size_t at = 0;
  for (int c = 0; c < image.shape[0]; ++c) {
    for (int i = 0; i < image.shape[1]; ++i) {
      for (int j = 0; j < image.shape[2]; ++j) ASSERT_NEAR(pixels[at++], wanted(c, i, j), most) << c << i << j;
    }
  }
}

TEST(ImageJpeg, GreyColourAndInk) {
  for (const bool progressive : {false, true}) {
    const HostTensor rgb = decode(jpeg(17, 19, JCS_RGB, 3, smooth(17, 19, 3), progressive));
    EXPECT_EQ(rgb.shape, (Dims{3, 17, 19}));
    expect_near(rgb, 3, [](int c, int i, int j) { return 40 + 3 * i + 2 * j + 20 * c; });
  }
  const std::string grey = jpeg(9, 5, JCS_GRAYSCALE, 1, smooth(9, 5, 1));
  for (const int channels : {1, 3, 4}) {
    expect_near(decode(grey, {.channels = channels}), 2,
                [](int c, int i, int j) { return c == 3 ? 255 : 40 + 3 * i + 2 * j; });
  }
  expect_near(decode(jpeg(8, 8, JCS_RGB, 3, smooth(8, 8, 3)), {.channels = 1}), 3, [](int, int i, int j) {
    return static_cast<int>(std::lround(40 + 3 * i + 2 * j + 0.587 * 20 + 0.114 * 40));
  });
  // libjpeg writes Adobe's marker, hence ink is stored as 255 - ink: a pixel is light times light.
  std::string ink;
  for (int i = 0; i < 64; ++i) ink += bytes({200, 100, 50, 128});
  expect_near(decode(jpeg(8, 8, JCS_CMYK, 4, ink)), 2, [](int c, int, int) { return c == 0 ? 100 : c == 1 ? 50 : 25; });
}

/// The definition, in two dimensions and in double.
double resized(const std::vector<int>& from, int height, int width, int to_height, int to_width, int i, int j) {
  const auto weight = [](int k, int of, int n, int to) {
    const double scale = static_cast<double>(n) / to, reach = std::max(scale, 1.0);
    return std::max(0.0, 1 - std::abs(k + 0.5 - (of + 0.5) * scale) / reach);
  };
  double sum = 0, weights = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const double w = weight(y, i, height, to_height) * weight(x, j, width, to_width);
      sum += w * from[static_cast<std::size_t>(y * width + x)];
      weights += w;
    }
  }
  return sum / weights;
}

TEST(ImageResize, IsBilinearWithAntialiasing) {
  std::vector<int> grey;
  for (int i = 0; i < 7 * 11; ++i) grey.push_back((i * 37 + i * i * 11) % 256);
  const std::string file = png(7, 11, PNG_COLOR_TYPE_GRAY, bytes(grey));
  for (const auto& [height, width] :
       std::vector<std::pair<int, int>>{{7, 11}, {1, 1}, {3, 4}, {14, 22}, {5, 30}, {20, 2}}) {
    const HostTensor image = decode(file, {.channels = 1, .height = height, .width = width});
    EXPECT_EQ(image.shape, (Dims{1, height, width}));
    const Values pixels = values(image);
    for (int at = 0; at < height * width; ++at) {
      const double wanted = resized(grey, 7, 11, height, width, at / width, at % width);
      const bool half = std::abs(wanted - std::floor(wanted) - 0.5) < 1e-3;  // where either is right
      const auto pixel = static_cast<double>(pixels[static_cast<std::size_t>(at)]);
      EXPECT_LE(std::abs(pixel - (half ? wanted : std::round(wanted))), half ? 0.502 : 0) << at << ' ' << wanted;
    }
    const HostTensor three = decode(file, {.height = height, .width = width});
    for (int c = 0; c < 3; ++c) {
      EXPECT_TRUE(std::equal(image.bytes.begin(), image.bytes.end(), three.bytes.begin() + c * height * width));
    }
  }
}

/// The memory depends on the result and one row, not on how many rows there are.
TEST(ImageResize, ATallPictureTakesLittleMemory) {
  constexpr std::uint32_t kHeight = 1 << 22;
  const std::string file =
      png(kHeight, 1, PNG_COLOR_TYPE_GRAY, std::string(kHeight / 2, '\x0a') + std::string(kHeight / 2, '\x64'));
  test::reset_largest_allocation();
  const HostTensor image = decode(file, {.channels = 1, .height = 4, .width = 64});
  EXPECT_LE(test::largest_allocation(), 2 * kHeight);
  const Values pixels = values(image);
  ASSERT_EQ(pixels.size(), 256U);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(pixels[i], 10);
    EXPECT_EQ(pixels[192 + i], 100);
  }
}

/// With a chunk behind the header; a checksum that is wrong where `sum` is.
std::string with_chunk(std::string file, const std::string& kind, const std::string& data, std::size_t at = 33,
                       std::uint32_t sum = 0) {
  const auto number = [](std::uint32_t x) {
    return bytes({static_cast<int>(x >> 24), static_cast<int>(x >> 16), static_cast<int>(x >> 8), static_cast<int>(x)});
  };
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : kind + data) {
    crc ^= static_cast<unsigned char>(c);
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc % 2 != 0 ? 0xedb88320U : 0);
  }
  return file.insert(at, number(static_cast<std::uint32_t>(data.size())) + kind + data + number(~crc ^ sum));
}

TEST(ImagePng, WhatLibpngOnlyWarnsOfIsAnError) {
  const std::string good = png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours));
  const auto refused = [](const std::string& file) {
    try {
      decode(file, {.channels = 4});
      return std::string("decoded");
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
  };
  for (const std::string& file :
       {with_chunk(good, "iCCP", "no profile"), with_chunk(good, "tEXt", std::string(100'000, 'a')),
        with_chunk(good, "IDAT", "behind", good.size() - 12)}) {
    EXPECT_EQ(values(decode(file)), values(decode(good))) << "what says nothing of pixels does not count";
  }
  EXPECT_THAT(refused(with_chunk(good, "tEXt", "a", 33, 1)),
              ::testing::HasSubstr("corrupt PNG at byte 46: tEXt: CRC error"));
  EXPECT_THAT(refused(with_chunk(good, "tRNS", "a")), ::testing::HasSubstr("corrupt PNG at byte 46: tRNS: invalid"));
  const std::string indexed =
      png(1, 4, PNG_COLOR_TYPE_PALETTE, "\x1b", {.depth = 2, .palette = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}});
  EXPECT_THAT(refused(indexed), ::testing::EndsWith("corrupt PNG: a pixel's colour is beyond the palette of 3"));
  std::string rows;
  for (int i = 0; i < 9 * 7; ++i) rows.push_back(static_cast<char>(i % 3));
  const test::PngOptions palette{.interlaced = true, .palette = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, .opacity = {7, 8}};
  for (const int channels : {1, 3, 4}) {
    const Values pixels = values(decode(png(9, 7, PNG_COLOR_TYPE_PALETTE, rows, palette), {.channels = channels}));
    for (int i = 0; i < channels * 63; ++i) {
      const int colour = i % 63 % 3, c = i / 63;
      const int wanted = c == 3 ? (colour < 2 ? 7 + colour : 255) : 3 * colour + c + 1 + (channels == 1 ? 1 : 0);
      EXPECT_EQ(pixels[static_cast<std::size_t>(i)], wanted) << channels << ' ' << i;
    }
  }
}

TEST(ImageFiles, WrongOnesAreRefused) {
  const TemporaryDirectory folder;
  const auto refuses = [&](const std::string& contents, const std::string& words, const ImageOptions& options = {}) {
    write_file(folder / "a.png", contents);
    expect_format_error(folder / "a.png", words, [&](const auto& path) { load_image(path, options); });
  };
  const std::string good = png(2, 2, PNG_COLOR_TYPE_RGB, bytes(kColours));
  refuses("", "is neither PNG nor JPEG: it begins with ''");
  refuses("GIF89a", "is neither PNG nor JPEG: it begins with 'GIF89a'");
  refuses(good.substr(0, 50), "corrupt PNG at byte 41: truncated");  // the data, behind its length and name
  refuses(good, "is 2 x 2 pixels, wanted at least one and at most 3", {.most_pixels = 3});
  refuses(png(5, 1, PNG_COLOR_TYPE_GRAY, "abcde"), "is 5 x 1 pixels, wanted at least one and at most 3",
          {.most_pixels = 3});
  refuses(png(1, 5, PNG_COLOR_TYPE_GRAY, "abcde"), "is 1 x 5 pixels", {.most_pixels = 3});
  std::string changed = good;
  changed[45] = static_cast<char>(changed[45] ^ 1);
  refuses(changed, "corrupt PNG at byte ");
  refuses(jpeg(8, 8, JCS_RGB, 3, smooth(8, 8, 3)), "is 8 x 8 pixels", {.most_pixels = 63});
  const std::string grey = jpeg(64, 64, JCS_GRAYSCALE, 1, smooth(64, 64, 1));
  refuses(grey.substr(0, grey.size() - 30), "corrupt JPEG at byte ");
  std::string bomb = grey;  // a header that promises 65,000 x 65,000
  const std::size_t size = bomb.find("\xff\xc0") + 5;
  for (const std::size_t at : {size, size + 2})
    bomb[at] = static_cast<char>(253), bomb[at + 1] = static_cast<char>(232);
  refuses(bomb, "is 65000 x 65000 pixels");
  refuses(bomb, "more than a file of", {.most_pixels = std::int64_t{1} << 40});
  std::string huge =
      good;  // a header that promises a row of 16 GiB (what libpng takes by malloc, only the fuzzer sees)
  test::reset_largest_allocation();
  huge = with_chunk(good.substr(0, 8) + good.substr(33), "IHDR",
                    bytes({127, 255, 255, 255, 0, 0, 0, 1, 16, 6, 0, 0, 0}), 8);
  refuses(huge, "is 1 x 2147483647 pixels");
  refuses(huge, "more than a file of", {.most_pixels = std::int64_t{1} << 40});
  EXPECT_LT(test::largest_allocation(), 1U << 20);
  std::string arithmetic = grey;
  arithmetic[arithmetic.find("\xff\xc0") + 1] = '\xc9';
  refuses(arithmetic, "a.png: is coded arithmetically, which is not read");
  std::filesystem::resize_file(folder / "a.png", std::uintmax_t{1} << 40);  // without taking room on the disk
  expect_format_error(folder / "a.png", "holds 1099511627776 bytes, wanted at most 1140850688",
                      [](const auto& path) { load_image(path); });
  expect_format_error(folder / "none.png", "cannot open: No such file", [](const auto& path) { load_image(path); });
  for (const ImageOptions& wrong : {ImageOptions{.channels = 2},
                                    {.height = 3},
                                    {.height = -1, .width = 2},
                                    {.most_pixels = 0},
                                    {.height = 1 << 20, .width = 1 << 20}}) {
    EXPECT_THROW(decode(good, wrong), std::invalid_argument);
  }
}

/// Each JPEG scan is a pass over all pixels, and a file of few bytes may hold very many: refused soon. Those here are
/// sound: the first bits of each coefficient, and then the last one of each.
TEST(ImageFiles, AProgressiveBombIsRefused) {
  std::vector<jpeg_scan_info> scans;
  for (int k = 0; k < 64; ++k) scans.push_back({1, {0}, k, k, 0, 1});
  for (int k = 0; scans.size() < 101; ++k) scans.push_back({1, {0}, k, k, 1, 0});
  const auto file = [&] { return jpeg(64, 64, JCS_GRAYSCALE, 1, smooth(64, 64, 1), true, scans); };
  const TemporaryDirectory folder;
  write_file(folder / "a.jpg", file());
  expect_format_error(folder / "a.jpg", "a.jpg: has more than 100 scans", [](const auto& path) { load_image(path); });
  scans.pop_back();
  expect_near(decode(file()), 3, [](int, int i, int j) { return static_cast<unsigned char>(40 + 3 * i + 2 * j); });
}

TEST(ImageFiles, EveryCutIsAnErrorAndNoChangeACrash) {
  const std::vector<std::string> files{png(5, 6, PNG_COLOR_TYPE_RGB, smooth(5, 6, 3)),
                                       png(9, 9, PNG_COLOR_TYPE_GRAY, smooth(9, 9, 1), {.interlaced = true}),
                                       jpeg(9, 10, JCS_RGB, 3, smooth(9, 10, 3)),
                                       jpeg(9, 10, JCS_RGB, 3, smooth(9, 10, 3), true)};
  for (const std::string& file : files) {
    EXPECT_NO_THROW(decode(file));
    for (std::size_t n = 0; n < file.size(); ++n) EXPECT_THROW(decode(file.substr(0, n)), FormatError) << n;
    for (std::size_t i = 0; i < 8 * file.size(); ++i) {  // each bit
      std::string changed = file;
      changed[i / 8] = static_cast<char>(changed[i / 8] ^ (1 << (i % 8)));
      try {
        decode(changed, {.height = 3, .width = 3, .most_pixels = 1 << 16});
      } catch (const FormatError&) {
      }
    }
  }
}

}  // namespace
}  // namespace sluice
