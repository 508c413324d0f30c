// Pictures of PNG and JPEG files as arrays of pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <source_location>
#include <span>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

struct ImageOptions {
  /// 1 (grey, 0.299 R + 0.587 G + 0.114 B), 3 (red, green, blue) or 4 (with opacity, 255 where the file has none). With
  /// 1 and 3 a file's opacity is dropped, not blended.
  int channels = 3;
  /// Both 0: the file's own size. Else the picture is resized to exactly this, whatever its proportions: bilinear with
  /// antialiasing, that is by a triangle as wide as two pixels of the coarser of the two grids, and edges whose weights
  /// are made to sum to 1 again (what PIL calls BILINEAR), in f32, rounded once.
  std::int64_t height = 0, width = 0;
  /// A file of more pixels is refused before it is unpacked, and one that is longer than 16 bytes for each of these and
  /// 64 MiB before it is read.
  std::int64_t most_pixels = std::int64_t{1} << 26;
};

/// The pixels of a PNG or JPEG file's bytes (its first bytes tell which), as u8, (channels, height, width). All kinds
/// of PNG are taken (palettes, 1 to 16 bits, of which the highest 8 remain, interlaced), and JPEG of grey, RGB, YCbCr,
/// CMYK and YCCK, but for arithmetic coding and more than 100 scans. Colour profiles and the camera's orientation
/// (EXIF) are not applied. Throws FormatError, which names `name`, where the bytes are neither, are cut or corrupt, or
/// hold more pixels than allowed or than bytes of this number can; and std::invalid_argument for options out of range.
/// Pure: any number of threads may call it.
HostTensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                        const std::filesystem::path& name = "an image in memory");

/// The same of a file. Blocks on the file.
HostTensor load_image(const std::filesystem::path& path, const ImageOptions& options = {},
                      std::source_location where = std::source_location::current());

}  // namespace sluice
