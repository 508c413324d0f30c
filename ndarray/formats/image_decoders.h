// What pictures stand on: pixels as PNG and JPEG files hold them. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sluice::formats {

/// Row by row, the channels of a pixel beside each other: 1 grey, 2 grey and opacity, 3 RGB, 4 RGB and opacity.
struct Pixels {
  std::int64_t height, width;
  int channels;
  std::unique_ptr<std::uint8_t[]> bytes;

  /// Memory that is not written yet.
  Pixels(std::int64_t of_height, std::int64_t of_width, int of_channels)
      : height(of_height),
        width(of_width),
        channels(of_channels),
        bytes(std::make_unique_for_overwrite<std::uint8_t[]>(count() * static_cast<std::size_t>(channels))) {}
  std::size_t count() const { return static_cast<std::size_t>(height * width); }
};

/// Both throw FormatError. With `grey` a JPEG's brightness is read as it is stored.
Pixels decode_png(const std::string& name, std::span<const std::byte> bytes, std::int64_t most_pixels, bool opacity);
Pixels decode_jpeg(const std::string& name, std::span<const std::byte> bytes, std::int64_t most_pixels, bool grey);

/// Throws FormatError where a header promises more pixels than allowed, or none.
void check_pixels(const std::string& name, std::int64_t height, std::int64_t width, std::int64_t most_pixels);

}  // namespace sluice::formats
