#include "sluice/nn/data/table.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/idx.h"
#include "sluice/nn/data/directory.h"

namespace sluice::nn {
namespace {

std::filesystem::path find_file(const std::filesystem::path& directory, const std::string& name) {
  std::error_code error;
  const auto plain = directory / name, packed = directory / (name + ".gz");
  return !std::filesystem::exists(packed, error) && std::filesystem::exists(plain, error) ? plain : packed;
}

Table load_part(const std::filesystem::path& directory, const std::string& split) {
  const auto image_path = find_file(directory, split + "-images-idx3-ubyte");
  const auto label_path = find_file(directory, split + "-labels-idx1-ubyte");
  HostTensor images = load_idx(image_path);
  const auto found = [](const HostTensor& t) { return to_string(t.shape) + " of " + std::string(name_of(t.dtype)); };
  if (images.dtype != DType::u8 || images.shape.rank() != 3 || images.shape[1] != 28 || images.shape[2] != 28 ||
      images.shape[0] < 1) {
    throw FormatError(image_path, "holds shape " + found(images) + ", wanted images: (n, 28, 28) of u8");
  }
  HostTensor labels = load_idx(label_path);
  if (labels.dtype != DType::u8 || labels.shape.rank() != 1) {
    throw FormatError(label_path, "holds shape " + found(labels) + ", wanted labels: (n,) of u8");
  }
  if (labels.shape[0] != images.shape[0]) {
    throw FormatError(label_path, "holds " + std::to_string(labels.shape[0]) + " labels, " +
                                      image_path.filename().string() + " holds " + std::to_string(images.shape[0]) +
                                      " images");
  }
  const auto values = labels.as<std::uint8_t>();
  const auto bad = std::find_if(values.begin(), values.end(), [](std::uint8_t label) { return label > 9; });
  if (bad != values.end()) {
    throw FormatError(label_path, "label " + std::to_string(bad - values.begin()) + " is " + std::to_string(*bad) +
                                      ", wanted 0 to 9");
  }
  return {column(std::move(images)), column(std::move(labels))};
}

}  // namespace

Split fashion_mnist(const std::string& directory, std::source_location where) {
  const sluice::detail::Called called("nn::fashion_mnist", where);
  detail::check_directory(directory, "Fashion-MNIST's IDX files", "Debian package dataset-fashion-mnist");
  return {load_part(directory, "train"), load_part(directory, "t10k")};
}

}  // namespace sluice::nn
