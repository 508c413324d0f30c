// PNG and JPEG files for tests, written by libpng and libjpeg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
// These want size_t and FILE.
#include <jpeglib.h>
#include <png.h>

#include <string>
#include <vector>

namespace sluice::test {

struct PngOptions {
  int depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette = {};
  std::vector<std::uint8_t> opacity = {};  ///< of the palette's colours
};

/// Rows as PNG holds them: of each the same number of bytes.
inline std::string png(std::uint32_t height, std::uint32_t width, int kind, const std::string& rows,
                       const PngOptions& o = {}) {
  std::string file;
  png_structp writer = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(writer);
  png_set_write_fn(
      writer, &file,
      [](png_structp p, png_bytep data, std::size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<const char*>(data), n);
      },
      [](png_structp) {});
  png_set_user_limits(writer, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_IHDR(writer, info, width, height, o.depth, kind, o.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!o.palette.empty()) png_set_PLTE(writer, info, o.palette.data(), static_cast<int>(o.palette.size()));
  if (!o.opacity.empty()) png_set_tRNS(writer, info, o.opacity.data(), static_cast<int>(o.opacity.size()), nullptr);
  png_write_info(writer, info);
  const std::size_t row = rows.size() / height;
  std::vector<png_bytep> pointers;
  for (std::uint32_t i = 0; i < height; ++i) {
    pointers.push_back(reinterpret_cast<png_bytep>(const_cast<char*>(rows.data() + i * row)));
  }
  png_write_image(writer, pointers.data());
  png_write_end(writer, info);
  png_destroy_write_struct(&writer, &info);
  return file;
}

/// `rows`: the channels of a pixel beside each other. `scans`: where they are none, what libjpeg thinks fit.
inline std::string jpeg(std::uint32_t height, std::uint32_t width, J_COLOR_SPACE kind, int channels,
                        const std::string& rows, bool progressive = false,
                        const std::vector<jpeg_scan_info>& scans = {}) {
  jpeg_compress_struct writer{};
  jpeg_error_mgr errors{};
  writer.err = jpeg_std_error(&errors);
  jpeg_create_compress(&writer);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&writer, &bytes, &size);
  writer.image_width = width;
  writer.image_height = height;
  writer.input_components = channels;
  writer.in_color_space = kind;
  jpeg_set_defaults(&writer);
  jpeg_set_quality(&writer, 100, TRUE);
  for (int i = 0; i < writer.num_components; ++i)
    writer.comp_info[i].h_samp_factor = writer.comp_info[i].v_samp_factor = 1;
  if (progressive) jpeg_simple_progression(&writer);
  if (!scans.empty()) {
    writer.scan_info = scans.data();
    writer.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&writer, TRUE);
  for (std::uint32_t i = 0; i < height; ++i) {
    auto* row = reinterpret_cast<JSAMPROW>(
        const_cast<char*>(rows.data() + std::size_t{i} * width * static_cast<std::size_t>(channels)));
    jpeg_write_scanlines(&writer, &row, 1);
  }
  jpeg_finish_compress(&writer);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&writer);
  std::free(bytes);
  return file;
}

}  // namespace sluice::test
