#include "sluice/ndarray/files.h"

#include <vector>

#include "sluice/ndarray/called.h"
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

void save_npy(const std::string& path, const NDArray& x, std::source_location where) {
  const detail::Called called("save_npy", where);
  save_npy(path, x.checked("save_npy", where).dtype(), x.shape(), x.to_bytes(where));
}

NDArray read_npy(const std::string& path, std::source_location where) {
  const detail::Called called("read_npy", where);
  return adopt(load_npy(path));
}

void save_npz(const std::string& path, const std::map<std::string, NDArray>& arrays, const NpzOptions& options,
              std::source_location where) {
  const detail::Called called("save_npz", where);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, x] : arrays) {
    bytes.push_back(x.to_bytes(where));
    tensors.push_back({name, x.dtype(), x.shape(), bytes.back()});
  }
  save_npz(path, tensors, NpzWriteOptions{.compress = options.compress});
}

std::map<std::string, NDArray> read_npz(const std::string& path, std::source_location where) {
  const detail::Called called("read_npz", where);
  std::map<std::string, NDArray> arrays;
  for (auto& [name, tensor] : load_npz(path)) arrays.emplace(name, adopt(std::move(tensor)));
  return arrays;
}

void save_arrays(const std::string& path, const std::map<std::string, NDArray>& arrays,
                 const std::map<std::string, std::string>& metadata, std::source_location where) {
  const detail::Called called("save_arrays", where);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, x] : arrays) {
    bytes.push_back(x.to_bytes(where));
    tensors.push_back({name, x.dtype(), x.shape(), bytes.back()});
  }
  save_safetensors(path, tensors, metadata);
}

LoadedArrays load_arrays(const std::string& path, std::source_location where) {
  const detail::Called called("load_arrays", where);
  Safetensors file = load_safetensors(path);
  LoadedArrays loaded;
  loaded.metadata = std::move(file.metadata);
  for (auto& [name, tensor] : file.tensors) loaded.arrays.emplace(name, adopt(std::move(tensor)));
  loaded.refused.insert(file.refused.begin(), file.refused.end());
  return loaded;
}

}  // namespace sluice
