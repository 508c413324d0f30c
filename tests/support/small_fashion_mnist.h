// A data set in the files of Fashion-MNIST that is learnt at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

#include "sluice/tests/support/idx_files.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::test {

/// The four files of `folder`. Class c is a bright bar at height 2 c + 4 on a noisy ground.
inline void write_small_fashion_mnist(const std::filesystem::path& folder, int train, int tested) {
  const auto put = [&](const std::string& images, const std::string& labels, int n, unsigned seed) {
    std::mt19937 random(seed);
    std::string pixels(static_cast<std::size_t>(n) * 784, '\0'), classes(static_cast<std::size_t>(n), '\0');
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const std::size_t label = random() % 10;
      classes[i] = static_cast<char>(label);
      for (std::size_t p = 0; p < 784; ++p)
        pixels[i * 784 + p] = static_cast<char>(random() % 64 + (p / 56 == label + 2 ? 150 : 0));
    }
    write_file(folder / images, gzip(idx(0x08, {static_cast<std::uint32_t>(n), 28, 28}, pixels)));
    write_file(folder / labels, gzip(idx(0x08, {static_cast<std::uint32_t>(n)}, classes)));
  };
  put("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", train, 1);
  put("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", tested, 2);
}

}  // namespace sluice::test
