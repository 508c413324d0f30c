// Resizing of pictures: bilinear with antialiasing. Internal.
#pragma once

#include <cstdint>

namespace sluice::formats {

/// Planes behind one another, each of `height` rows, which begin `stride` pixels apart.
struct Planes {
  std::int64_t planes, height, width, stride;
  std::int64_t plane_stride = height * stride;
};

/// What ImageOptions::height says (image.h). `to` has the same number of planes, without gaps. Pure.
void resize(const std::uint8_t* from, const Planes& of, std::uint8_t* to, std::int64_t to_height,
            std::int64_t to_width);

}  // namespace sluice::formats
