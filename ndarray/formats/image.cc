#include "sluice/ndarray/formats/image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/picture.h"
#include "sluice/ndarray/formats/resize.h"
#include "sluice/ndarray/formats/whole_file.h"

namespace sluice {
namespace formats {

void check_pixels(const std::string& name, std::int64_t height, std::int64_t width, std::int64_t most_pixels) {
  if (height >= 1 && width >= 1 && height <= most_pixels / width) return;
  throw FormatError(name, "is " + std::to_string(height) + " x " + std::to_string(width) +
                              " pixels, wanted at least one and at most " + std::to_string(most_pixels) +
                              " (ImageOptions::most_pixels)");
}

namespace {

/// Where planes are wanted of the channels; null where one is not.
using Planes = std::array<std::uint8_t*, 4>;

/// 16 kChannels bytes to 16 of each channel. Byte kChannels i + c belongs at 16 c + i, that is at 16 times its place,
/// modulo 16 kChannels - 1; and to deal out the two halves of a pack of cards by turns doubles each card's place. So
/// four deals sort them, each by instructions that every processor has.
template <std::size_t kChannels>
void sort_channels(const std::uint8_t* pixels, std::uint8_t* sorted) {
  using Half [[gnu::vector_size(8)]] = std::uint8_t;
  using Whole [[gnu::vector_size(16)]] = std::uint8_t;
  Half now[2 * kChannels];
  std::memcpy(now, pixels, sizeof(now));
  for (int deal = 0; deal < 4; ++deal) {
    Whole next[kChannels];
    for (std::size_t k = 0; k < kChannels; ++k) {
      next[k] =
          __builtin_shufflevector(now[k], now[kChannels + k], 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::memcpy(now, next, sizeof(now));
  }
  std::memcpy(sorted, now, sizeof(now));
}

template <std::size_t kChannels>
void write_planes(const std::uint8_t* pixels, std::size_t n, const Planes& planes) {
  constexpr std::size_t kAtOnce = 16;
  std::size_t i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce) {
    std::uint8_t sorted[kChannels * kAtOnce];
    sort_channels<kChannels>(pixels + i * kChannels, sorted);
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (planes[c]) std::memcpy(planes[c] + i, sorted + c * kAtOnce, kAtOnce);
    }
  }
  for (; i < n; ++i) {
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (planes[c]) planes[c][i] = pixels[i * kChannels + c];
    }
  }
}

/// The planes of `wanted` channels.
void write_planes(const Pixels& pixels, std::size_t wanted, std::uint8_t* planes) {
  const std::size_t n = pixels.count();
  const auto channels = static_cast<std::size_t>(pixels.channels);
  const std::uint8_t* const from = pixels.bytes.get();
  if (channels >= 3 && wanted == 1) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint8_t* const p = from + i * channels;
      planes[i] = static_cast<std::uint8_t>((299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000);
    }
    return;
  }
  const bool opacity = channels % 2 == 0;
  Planes to{planes};
  if (channels >= 3) to = {planes, planes + n, planes + 2 * n};
  if (opacity) to[channels - 1] = wanted == 4 ? planes + 3 * n : nullptr;
  static constexpr decltype(&write_planes<1>) kWrites[] = {write_planes<1>, write_planes<2>, write_planes<3>,
                                                           write_planes<4>};
  kWrites[channels - 1](from, n, to);
  for (std::size_t c = 1; channels < 3 && c < std::min<std::size_t>(wanted, 3); ++c)
    std::copy_n(planes, n, planes + c * n);
  if (wanted == 4 && !opacity) std::fill_n(planes + 3 * n, n, std::uint8_t{255});
}

bool is_resized(const ImageOptions& o) { return o.height != 0 || o.width != 0; }

void check(const ImageOptions& o) {
  if ((o.channels != 1 && o.channels != 3 && o.channels != 4) || o.most_pixels < 1 ||
      (is_resized(o) && (o.height < 1 || o.width < 1 || o.height > o.most_pixels / o.width))) {
    refuse_argument("channels " + std::to_string(o.channels) + ", height " + std::to_string(o.height) + ", width " +
                    std::to_string(o.width) + ", most_pixels " + std::to_string(o.most_pixels) +
                    ": wanted 1, 3 or 4 channels, and a height and a width of most_pixels at most, or neither");
  }
}

/// The longest file that is read: pixels take half of it at most (16 bits, four channels), but profiles and texts may
/// be long too.
std::uint64_t most_bytes(const ImageOptions& o) {
  constexpr std::uint64_t kPixel = 16, kRest = 64 << 20;
  return std::min(static_cast<std::uint64_t>(o.most_pixels), (~std::uint64_t{0} - kRest) / kPixel) * kPixel + kRest;
}

Pixels unpacked(std::span<const std::byte> bytes, const ImageOptions& o, const std::string& name) {
  check(o);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(name, bytes, o.most_pixels, o.channels == 4);
  if (text.starts_with("\xff\xd8\xff")) return decode_jpeg(name, bytes, o.most_pixels, o.channels == 1);
  throw FormatError(name, "is neither PNG nor JPEG: it begins with " + in_quotes(text.substr(0, 8)));
}

}  // namespace

Picture::Picture(std::span<const std::byte> bytes, const ImageOptions& options, const std::string& name)
    : pixels_(unpacked(bytes, options, name)),
      channels_(options.channels),
      height_(is_resized(options) ? options.height : pixels_.height),
      width_(is_resized(options) ? options.width : pixels_.width) {}

Picture Picture::load(const std::string& path, const ImageOptions& options) {
  check(options);
  return Picture(whole_file(path, most_bytes(options)), options, path);
}

Dims Picture::shape() const { return {channels_, height_, width_}; }

void Picture::write(std::uint8_t* planes) const {
  const auto channels = static_cast<std::size_t>(channels_);
  if (height_ == pixels_.height && width_ == pixels_.width) return write_planes(pixels_, channels, planes);
  const auto whole = std::make_unique_for_overwrite<std::uint8_t[]>(pixels_.count() * channels);
  write_planes(pixels_, channels, whole.get());
  resize(whole.get(), {channels_, pixels_.height, pixels_.width, pixels_.width}, planes, height_, width_);
}

}  // namespace formats

namespace {

HostTensor planes_of(const formats::Picture& picture) {
  HostTensor planes{DType::u8, picture.shape(), {}};
  planes.bytes.resize(static_cast<std::size_t>(planes.count()));
  picture.write(planes.as<std::uint8_t>().data());
  return planes;
}

}  // namespace

HostTensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options,
                        const std::filesystem::path& name) {
  return planes_of(formats::Picture(bytes, options, name.native()));
}

HostTensor load_image(const std::filesystem::path& path, const ImageOptions& options, std::source_location where) {
  const detail::Called called("load_image", where);
  return planes_of(formats::Picture::load(path.native(), options));
}

}  // namespace sluice
