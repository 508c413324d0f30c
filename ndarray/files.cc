#include "sluice/ndarray/files.h"

#include <vector>

#include "sluice/ndarray/formats/npy.h"
#include "sluice/ndarray/formats/npz.h"
#include "sluice/ndarray/formats/safetensors.h"

namespace sluice {
namespace {

// The tensor's own bytes become the array's memory.
NDArray adopt(HostTensor tensor) {
  auto owner = std::make_shared<HostTensor>(std::move(tensor));
  return detail::adopt_memory(owner->bytes.data(), owner, owner->shape, owner->dtype, current_scope().device);
}

}  // namespace

void save_npy(const std::filesystem::path& path, const NDArray& x) {
  save_npy(path, x.dtype(), x.shape(), x.to_bytes());
}

NDArray read_npy(const std::filesystem::path& path) { return adopt(load_npy(path)); }

void save_npz(const std::filesystem::path& path, const std::map<std::string, NDArray>& arrays,
              const NpzOptions& options) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, x] : arrays) {
    bytes.push_back(x.to_bytes());
    tensors.push_back({name, x.dtype(), x.shape(), bytes.back()});
  }
  save_npz(path, tensors, NpzWriteOptions{.compress = options.compress});
}

std::map<std::string, NDArray> read_npz(const std::filesystem::path& path) {
  std::map<std::string, NDArray> arrays;
  for (auto& [name, tensor] : load_npz(path)) arrays.emplace(name, adopt(std::move(tensor)));
  return arrays;
}

void save_arrays(const std::filesystem::path& path, const std::map<std::string, NDArray>& arrays,
                 const std::map<std::string, std::string>& metadata) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, x] : arrays) {
    bytes.push_back(x.to_bytes());
    tensors.push_back({name, x.dtype(), x.shape(), bytes.back()});
  }
  save_safetensors(path, tensors, metadata);
}

LoadedArrays load_arrays(const std::filesystem::path& path) {
  Safetensors file = load_safetensors(path);
  LoadedArrays loaded;
  loaded.metadata = std::move(file.metadata);
  for (auto& [name, tensor] : file.tensors) loaded.arrays.emplace(name, adopt(std::move(tensor)));
  loaded.refused.insert(file.refused.begin(), file.refused.end());
  return loaded;
}

}  // namespace sluice
