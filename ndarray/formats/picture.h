// A picture of a PNG or JPEG file between its two halves of work: unpacked pixels, of which planes are made where they
// are wanted. Internal; image.h has the functions that give arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/formats/image_decoders.h"

namespace sluice {

struct ImageOptions;  // image.h, which stands on this

namespace formats {

class Picture {
 public:
  /// As decode_image() and load_image(), which say what is thrown.
  Picture(std::span<const std::byte> bytes, const ImageOptions& options, const std::string& name);
  static Picture load(const std::string& path, const ImageOptions& options);

  /// (channels, height, width), as the options ask.
  Dims shape() const;
  /// Writes the planes, one behind the other: as many bytes as shape() counts.
  void write(std::uint8_t* planes) const;

 private:
  Pixels pixels_;
  std::int64_t channels_, height_, width_;  ///< of the planes
};

}  // namespace formats
}  // namespace sluice
