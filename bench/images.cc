// A folder of many small PNG files: a Loader that decodes them on two threads of a CPU device, beside libpng alone on
// two plain threads.
//   bench_images [FILES] [SIDE] [ROUNDS]
// Each round runs both, in turns first. It prints the median of the rounds' ratios of speed (Sluice's over libpng's),
// and the least and the most. Both read every file and give its pixels; the Loader's are planes, in batches.
#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>

#include "sluice/sluice.h"

namespace {

using namespace sluice;

/// What a camera's picture is like to the packer: slopes and some noise.
void write_picture(const std::string& path, unsigned side, std::uint64_t number) {
  std::vector<unsigned char> pixels;
  const ElementKey key(RandomKey{1, 2, number});
  for (unsigned i = 0; i < side * side * 3; ++i) {
    pixels.push_back(
        static_cast<unsigned char>(i / 3 % side + i / 3 / side + static_cast<unsigned>(key.word32(i) % 12)));
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = side;
  image.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error("cannot write " + path);
  }
}

/// The least that reads a file: libpng's own reader of files, and rows one by one.
void decode_alone(const std::string& path, std::vector<unsigned char>& pixels) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_read_info(png, info);
  const std::size_t row = png_get_rowbytes(png, info), rows = png_get_image_height(png, info);
  pixels.resize(row * rows);
  for (std::size_t i = 0; i < rows; ++i) png_read_row(png, pixels.data() + i * row, nullptr);
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  std::fclose(file);
}

double seconds_of(const auto& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) try {
  const auto argument = [&](int i, long other) { return argc > i ? std::atol(argv[i]) : other; };
  const long files = argument(1, 10'000), rounds = argument(3, 9);
  const auto side = static_cast<unsigned>(argument(2, 32));
  Engine engine({.threads = 4, .logical_cpus = 2});  // cpu(1) has two threads of its own
  set_default_engine(&engine);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("bench_images-" + std::to_string(::getpid()));
  for (long i = 0; i < files; ++i) {
    const std::filesystem::path of_class = folder / std::to_string(i % 10);
    if (i < 10) std::filesystem::create_directories(of_class);
    write_picture(of_class / (std::to_string(i) + ".png"), side, static_cast<std::uint64_t>(i));
  }
  const nn::ImageFolder pictures(folder);
  nn::Loader loader(pictures, {.batch = 64, .prefetch = 4, .workers = cpu(1)});
  const auto ours = [&] {
    for (const auto& [x, y, first] : loader) x.wait();
  };
  const auto theirs = [&] {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      std::vector<unsigned char> pixels;
      for (std::size_t i = next++; i < pictures.files.size(); i = next++) decode_alone(pictures.files[i], pixels);
    };
    std::thread other(work);
    work();
    other.join();
  };
  ours();
  theirs();
  std::vector<double> ratios, seconds;
  for (long round = 0; round < rounds; ++round) {
    double a = 0, b = 0;
    if (round % 2 == 0) a = seconds_of(ours);
    b = seconds_of(theirs);
    if (round % 2 != 0) a = seconds_of(ours);
    ratios.push_back(b / a);
    seconds.push_back(a);
  }
  std::sort(ratios.begin(), ratios.end());
  std::sort(seconds.begin(), seconds.end());
  const auto middle = static_cast<std::size_t>(rounds / 2);
  std::cout << files << " PNG files of " << side << " x " << side
            << " pixels, two threads each: " << static_cast<double>(files) / seconds[middle] << " files/s, "
            << ratios[middle] << " of libpng alone (median of " << rounds << " rounds; " << ratios.front() << " to "
            << ratios.back() << ")\n";
  std::filesystem::remove_all(folder);
  set_default_engine(nullptr);
} catch (const std::exception& error) {
  std::cerr << "bench_images: " << error.what() << '\n';
  return 1;
}
