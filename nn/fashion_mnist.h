// The Fashion-MNIST data set: four IDX files.
#pragma once

#include <filesystem>
#include <source_location>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

/// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

/// Grey images of 28 x 28 pixels (u8, 0 to 255) in ten classes: (n, 28, 28) and (n,), n = 60,000 and 10,000.
struct FashionMnist {
  HostTensor train_images;
  HostTensor train_labels;
  HostTensor test_images;
  HostTensor test_labels;
};

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] from a directory. Any number of images is taken, at least
/// one, so that a part of the data set can stand for all of it. Blocks. Throws FormatError as load_idx does, and where
/// a file's element type, rank or image size is another, labels and images differ in number, or a label is above 9.
FashionMnist load_fashion_mnist(const std::filesystem::path& directory = kFashionMnistDirectory,
                                std::source_location where = std::source_location::current());

}  // namespace sluice
