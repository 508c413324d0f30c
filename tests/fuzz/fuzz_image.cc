#include <zlib.h>

#include <vector>

#include "sluice/ndarray/formats/image.h"
#include "sluice/tests/fuzz/fuzz_target.h"

namespace {

/// The same chunks of PNG with checksums that are right: else no input with a change would come behind them.
void mend(std::vector<std::uint8_t>& png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::uint32_t length = static_cast<std::uint32_t>(png[at]) << 24 |
                                 static_cast<std::uint32_t>(png[at + 1]) << 16 |
                                 static_cast<std::uint32_t>(png[at + 2]) << 8 | png[at + 3];
    if (length > png.size() - at - 12) return;
    const auto sum = static_cast<std::uint32_t>(::crc32(0, png.data() + at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i) png[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> input(data, data + size);
  if (size > 8 && input[0] == 0x89) mend(input);
  // For each pixel: the decoder's state, its output, planes, and sums in f32. A progressive JPEG holds all
  // coefficients, each 2 bytes, of up to 4 components, and sides that are padded to 32: at most 32 times the pixels and
  // a square.
  constexpr std::int64_t kPixels = 1 << 14, kCoefficients = 4 * 32 * (kPixels + 32);
  sluice::fuzz::run(input.data(), size, 64 * kPixels + 2 * kCoefficients + 8 * size, [&](const auto& path) {
    sluice::load_image(path, {.channels = size % 3 == 0   ? 1
                                          : size % 3 == 1 ? 3
                                                          : 4,
                              .height = size % 2 == 0 ? 0 : 5,
                              .width = size % 2 == 0 ? 0 : 7,
                              .most_pixels = kPixels});
  });
  return 0;
}
