#include "sluice/ndarray/formats/image.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/image_decoders.h"
#include "sluice/ndarray/formats/resize.h"
#include "sluice/ndarray/formats/whole_file.h"

namespace sluice {
namespace formats {

void check_pixels(const std::filesystem::path& name, std::int64_t height, std::int64_t width,
                  std::int64_t most_pixels) {
  if (height >= 1 && width >= 1 && height <= most_pixels / width) return;
  throw FormatError(name, "is " + std::to_string(height) + " x " + std::to_string(width) +
                              " pixels, wanted at least one and at most " + std::to_string(most_pixels) +
                              " (ImageOptions::most_pixels)");
}

namespace {

/// Channel `from` of pixels that have kStep, as a plane.
template <std::size_t kStep>
void copy_plane(const std::uint8_t* pixels, std::size_t n, std::size_t from, std::uint8_t* plane) {
  for (std::size_t i = 0; i < n; ++i) plane[i] = pixels[i * kStep + from];
}

void copy_plane(const Pixels& pixels, std::size_t from, std::uint8_t* plane) {
  static constexpr decltype(&copy_plane<1>) kCopies[] = {copy_plane<1>, copy_plane<2>, copy_plane<3>, copy_plane<4>};
  kCopies[pixels.channels - 1](pixels.bytes.data(), static_cast<std::size_t>(pixels.height * pixels.width), from,
                               plane);
}

/// Planes of the wanted channels.
HostTensor planes_of(const Pixels& pixels, int channels) {
  const auto n = static_cast<std::size_t>(pixels.height * pixels.width), wanted = static_cast<std::size_t>(channels);
  const auto step = static_cast<std::size_t>(pixels.channels);
  const bool coloured = step >= 3, opacity = step % 2 == 0;
  HostTensor result{DType::u8, {channels, pixels.height, pixels.width}, {}};
  result.bytes.resize(n * wanted);
  std::uint8_t* const planes = result.as<std::uint8_t>().data();
  if (wanted == 1 && coloured) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint8_t* const p = pixels.bytes.data() + i * step;
      planes[i] = static_cast<std::uint8_t>((299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000);
    }
    return result;
  }
  for (std::size_t c = 0; c < std::min<std::size_t>(wanted, 3); ++c) {
    copy_plane(pixels, coloured ? c : 0, planes + c * n);
  }
  if (wanted == 4 && opacity) copy_plane(pixels, step - 1, planes + 3 * n);
  if (wanted == 4 && !opacity) std::fill_n(planes + 3 * n, n, std::uint8_t{255});
  return result;
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

}  // namespace
}  // namespace formats

HostTensor decode_image(std::span<const std::byte> bytes, const ImageOptions& o, const std::filesystem::path& name) {
  formats::check(o);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool png = text.starts_with("\x89PNG\r\n\x1a\n");
  if (!png && !text.starts_with("\xff\xd8\xff")) {
    throw FormatError(name, "is neither PNG nor JPEG: it begins with " + formats::in_quotes(text.substr(0, 8)));
  }
  const formats::Pixels pixels = png ? formats::decode_png(name, bytes, o.most_pixels, o.channels == 4)
                                     : formats::decode_jpeg(name, bytes, o.most_pixels, o.channels == 1);
  HostTensor planes = formats::planes_of(pixels, o.channels);
  if (!formats::is_resized(o) || (o.height == pixels.height && o.width == pixels.width)) return planes;
  HostTensor image{DType::u8, {o.channels, o.height, o.width}, {}};
  image.bytes.resize(static_cast<std::size_t>(image.count()));
  formats::resize(planes.as<std::uint8_t>().data(), {o.channels, pixels.height, pixels.width, pixels.width},
                  image.as<std::uint8_t>().data(), o.height, o.width);
  return image;
}

HostTensor load_image(const std::filesystem::path& path, const ImageOptions& options, std::source_location where) {
  const detail::Called called("load_image", where);
  formats::check(options);
  return decode_image(formats::whole_file(path, formats::most_bytes(options)), options, path);
}

}  // namespace sluice
