// What image.cc stands on: pixels as PNG and JPEG files hold them. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace sluice::formats {

/// Row by row, the channels of a pixel beside each other: 1 grey, 2 grey and opacity, 3 RGB, 4 RGB and opacity.
struct Pixels {
  std::int64_t height = 0, width = 0;
  int channels = 0;
  std::vector<std::uint8_t> bytes;
};

/// Both throw FormatError. With `grey` a JPEG's brightness is read as it is stored.
Pixels decode_png(const std::filesystem::path& name, std::span<const std::byte> bytes, std::int64_t most_pixels,
                  bool opacity);
Pixels decode_jpeg(const std::filesystem::path& name, std::span<const std::byte> bytes, std::int64_t most_pixels,
                   bool grey);

/// Throws FormatError where a header promises more pixels than allowed, or none.
void check_pixels(const std::filesystem::path& name, std::int64_t height, std::int64_t width, std::int64_t most_pixels);

}  // namespace sluice::formats
