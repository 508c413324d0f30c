#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>

#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/image_decoders.h"

namespace sluice::formats {
namespace {

constexpr std::uint64_t kMaxDeflateRatio = 1100;  // deflate cannot pass 1032 to 1

/// libpng leaves a function by longjmp, which passes by destructors: so the functions between setjmp and libpng have
/// none to run, and all that must be released is here.
struct Reader {
  std::span<const std::byte> left;
  png_structp png = nullptr;
  png_infop info = nullptr;
  png_uint_32 height = 0, width = 0;
  int channels = 0;              ///< of what libpng gives
  png_colorp palette = nullptr;  ///< none: the pixels are no numbers of colours
  png_bytep opacity = nullptr;   ///< of the first colours, the others' is 255. None: not wanted
  int colours = 0, opacities = 0;
  std::uint64_t packed_bytes = 0;  ///< of the rows as the file holds them, without packing
  char message[200] = "";

  Reader() = default;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* const reader = static_cast<Reader*>(png_get_error_ptr(png));
  std::strncpy(reader->message, message, sizeof(reader->message) - 1);
  png_longjmp(png, 1);
}
/// What libpng would only warn of leaves pixels that are guesses, but for these, which some programs cause.
void on_warning(png_structp png, png_const_charp message) {
  for (const char* const harmless :
       {"Extra compressed data", "Too much image data", "Too many IDATs", "ignored in grayscale"}) {
    if (std::strstr(message, harmless)) return;
  }
  png_error(png, message);
}

void on_read(png_structp png, png_bytep to, std::size_t bytes) {
  auto* const reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (bytes > reader->left.size()) png_error(png, "truncated");
  std::memcpy(to, reader->left.data(), bytes);
  reader->left = reader->left.subspan(bytes);
}

bool read_header(Reader& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  png_set_read_fn(r.png, &r, on_read);
  png_set_user_limits(r.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_pixels has the limit
  png_set_crc_action(r.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_keep_unknown_chunks(r.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // texts and profiles, which may be large
  png_read_info(r.png, r.info);
  r.height = png_get_image_height(r.png, r.info);
  r.width = png_get_image_width(r.png, r.info);
  r.packed_bytes = std::uint64_t{png_get_rowbytes(r.png, r.info)} * r.height;
  return true;
}

/// Takes memory for rows. Palettes are looked up here (to_colours), since libpng makes colours beyond them black.
bool start(Reader& r, bool opacity) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  const bool transparent = png_get_valid(r.png, r.info, PNG_INFO_tRNS) != 0;
  const int kind = png_get_color_type(r.png, r.info);
  if (kind == PNG_COLOR_TYPE_PALETTE) {
    png_get_PLTE(r.png, r.info, &r.palette, &r.colours);
    if (opacity && transparent) png_get_tRNS(r.png, r.info, &r.opacity, &r.opacities, nullptr);
    png_set_packing(r.png);
  } else if (opacity && transparent) {
    png_set_tRNS_to_alpha(r.png);
  }
  if (kind == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(r.png);
  if (png_get_bit_depth(r.png, r.info) == 16) png_set_strip_16(r.png);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  r.channels = png_get_channels(r.png, r.info);
  return true;
}

bool read_rows(Reader& r, std::uint8_t* to, int passes) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  const std::size_t row = std::size_t{r.width} * static_cast<std::size_t>(r.channels);
  for (int pass = 0; pass < passes; ++pass) {
    for (png_uint_32 i = 0; i < r.height; ++i) png_read_row(r.png, to + i * row, nullptr);
  }
  png_read_end(r.png, nullptr);
  return true;
}

/// Makes colours of their numbers, which are the last bytes, in place. Returns whether all of them are in the palette.
bool to_colours(const Reader& r, Pixels& pixels) {
  const std::size_t n = pixels.count();
  std::uint8_t* to = pixels.bytes.get();
  const std::uint8_t* from = to + n * static_cast<std::size_t>(pixels.channels - 1);
  for (std::size_t i = 0; i < n; ++i) {
    const int number = *from++;
    if (number >= r.colours) return false;
    const png_color& colour = r.palette[number];
    *to++ = colour.red, *to++ = colour.green, *to++ = colour.blue;
    if (pixels.channels == 4) *to++ = number < r.opacities ? r.opacity[number] : std::uint8_t{255};
  }
  return true;
}

}  // namespace

Pixels decode_png(const std::string& name, std::span<const std::byte> bytes, std::int64_t most_pixels, bool opacity) {
  const auto refuse = [&](const Reader& r) {
    throw FormatError(name, "corrupt PNG at byte " + std::to_string(bytes.size() - r.left.size()) + ": " + r.message);
  };
  Reader r;
  r.left = bytes;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  if (r.png) r.info = png_create_info_struct(r.png);
  if (!r.info) throw FormatError(name, "cannot start libpng");
  if (!read_header(r)) refuse(r);
  check_pixels(name, r.height, r.width, most_pixels);
  if (r.packed_bytes > bytes.size() * kMaxDeflateRatio) {
    throw FormatError(name, "its header promises " + std::to_string(r.height) + " x " + std::to_string(r.width) +
                                " pixels, more than a file of " + std::to_string(bytes.size()) + " bytes can hold");
  }
  if (!start(r, opacity)) refuse(r);
  Pixels pixels(r.height, r.width, !r.palette ? r.channels : r.opacity ? 4 : 3);
  const int passes = png_get_interlace_type(r.png, r.info) == PNG_INTERLACE_ADAM7 ? 7 : 1;
  const std::size_t begin = pixels.count() * static_cast<std::size_t>(pixels.channels - r.channels);
  if (!read_rows(r, pixels.bytes.get() + begin, passes)) refuse(r);
  if (r.palette && !to_colours(r, pixels)) {
    throw FormatError(name, "corrupt PNG: a pixel's colour is beyond the palette of " + std::to_string(r.colours));
  }
  return pixels;
}

}  // namespace sluice::formats
