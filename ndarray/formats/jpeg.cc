#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
// These want size_t and FILE.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <string>

#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/image_decoders.h"

namespace sluice::formats {
namespace {

/// A block takes at least one bit: of the 32 x 32 pixels that the coarsest sampling knows, eight blocks.
constexpr std::uint64_t kMaxPixelsOfByte = 1024;
/// A progressive file of few bytes may hold very many scans, each of which goes through all pixels.
constexpr int kMaxScans = 100;

/// libjpeg leaves a function by longjmp, as libpng does (png.cc).
struct Reader {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf back{};
  char message[JMSG_LENGTH_MAX + 32] = "";
  bool corrupt = false;  ///< the message is libjpeg's

  Reader() = default;
  ~Reader() { jpeg_destroy_decompress(&jpeg); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

Reader& reader_of(j_common_ptr jpeg) { return *static_cast<Reader*>(jpeg->client_data); }

[[noreturn]] void on_error(j_common_ptr jpeg) {
  Reader& r = reader_of(jpeg);
  jpeg->err->format_message(jpeg, r.message);
  r.corrupt = true;
  std::longjmp(r.back, 1);
}

/// What libjpeg would only warn of leaves pixels that are guesses, but for these, which many cameras cause.
void on_message(j_common_ptr jpeg, int level) {
  const int code = jpeg->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR) on_error(jpeg);
}

boolean on_end(j_decompress_ptr jpeg) {
  ERREXIT(jpeg, JERR_INPUT_EOF);
  return FALSE;
}

void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMaxScans) return;
  Reader& r = reader_of(jpeg);
  std::snprintf(r.message, sizeof(r.message), "has more than %d scans", kMaxScans);
  std::longjmp(r.back, 1);
}

bool read_header(Reader& r, std::span<const std::byte> bytes, bool grey) {
  if (setjmp(r.back) != 0) return false;
  jpeg_create_decompress(&r.jpeg);  // leaves err and client_data as they are
  jpeg_mem_src(&r.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<unsigned long>(bytes.size()));
  r.jpeg.src->fill_input_buffer = on_end;
  r.jpeg.progress = &r.progress;
  r.progress.progress_monitor = on_progress;
  jpeg_read_header(&r.jpeg, TRUE);
  const bool four = r.jpeg.jpeg_color_space == JCS_CMYK || r.jpeg.jpeg_color_space == JCS_YCCK;
  const bool one = r.jpeg.jpeg_color_space == JCS_GRAYSCALE || (grey && r.jpeg.jpeg_color_space == JCS_YCbCr);
  r.jpeg.out_color_space = four ? JCS_CMYK : one ? JCS_GRAYSCALE : JCS_RGB;
  return true;
}

bool start(Reader& r) {
  if (setjmp(r.back) != 0) return false;
  jpeg_start_decompress(&r.jpeg);
  return true;
}

bool read_rows(Reader& r, std::uint8_t* to) {
  if (setjmp(r.back) != 0) return false;
  const std::size_t row = std::size_t{r.jpeg.output_width} * static_cast<std::size_t>(r.jpeg.output_components);
  while (r.jpeg.output_scanline < r.jpeg.output_height) {
    JSAMPROW at = to + r.jpeg.output_scanline * row;
    jpeg_read_scanlines(&r.jpeg, &at, 1);
  }
  jpeg_finish_decompress(&r.jpeg);
  return true;
}

/// Ink to light, in place. Adobe's programs store 255 - ink.
void to_rgb(Pixels& pixels, bool inverted) {
  const auto light = [&](unsigned ink) { return inverted ? ink : 255 - ink; };
  for (std::size_t i = 0; i < pixels.count(); ++i) {
    const unsigned black = light(pixels.bytes[4 * i + 3]);
    for (std::size_t c = 0; c < 3; ++c) {
      pixels.bytes[3 * i + c] = static_cast<std::uint8_t>((light(pixels.bytes[4 * i + c]) * black + 127) / 255);
    }
  }
  pixels.channels = 3;
}

}  // namespace

Pixels decode_jpeg(const std::string& name, std::span<const std::byte> bytes, std::int64_t most_pixels, bool grey) {
  const auto refuse = [&](const Reader& r) {
    if (!r.corrupt) throw FormatError(name, r.message);
    const std::size_t at = r.jpeg.src ? bytes.size() - r.jpeg.src->bytes_in_buffer : 0;
    throw FormatError(name, "corrupt JPEG at byte " + std::to_string(at) + ": " + r.message);
  };
  Reader r;
  r.jpeg.err = jpeg_std_error(&r.errors);
  r.jpeg.client_data = &r;
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  if (!read_header(r, bytes, grey)) refuse(r);
  const std::int64_t height = r.jpeg.image_height, width = r.jpeg.image_width;
  check_pixels(name, height, width, most_pixels);
  // Of few bytes it makes any number of pixels, and hardly any program writes it.
  if (r.jpeg.arith_code) throw FormatError(name, "is coded arithmetically, which is not read");
  if (static_cast<std::uint64_t>(height * width) > bytes.size() * kMaxPixelsOfByte) {
    throw FormatError(name, "its header promises " + std::to_string(height) + " x " + std::to_string(width) +
                                " pixels, more than a file of " + std::to_string(bytes.size()) + " bytes can hold");
  }
  if (!start(r)) refuse(r);
  Pixels pixels(height, width, r.jpeg.output_components);
  if (!read_rows(r, pixels.bytes.get())) refuse(r);
  if (r.jpeg.out_color_space == JCS_CMYK) to_rgb(pixels, r.jpeg.saw_Adobe_marker != FALSE);
  return pixels;
}

}  // namespace sluice::formats
