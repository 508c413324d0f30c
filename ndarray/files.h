// Arrays in files: .npy and .safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// Writes the elements as .npy; waits for them. Throws FormatError where the file cannot be written, Error where the
/// array is poisoned. Blocking.
void save_npy(const std::filesystem::path& path, const NDArray& x);
/// Reads a .npy file into an array on the device of the thread's scope. Throws FormatError. Blocking.
NDArray read_npy(const std::filesystem::path& path);

/// Writes named arrays and text as .safetensors, whole or not at all. Waits; throws as save_npy. Blocking.
void save_arrays(const std::filesystem::path& path, const std::map<std::string, NDArray>& arrays,
                 const std::map<std::string, std::string>& metadata = {});
struct LoadedArrays {
  std::map<std::string, NDArray> arrays;
  std::map<std::string, std::string> metadata;
};
/// Reads a .safetensors file onto the device of the thread's scope. Throws FormatError. Blocking.
LoadedArrays load_arrays(const std::filesystem::path& path);

}  // namespace sluice
