// A .npy file's bytes in memory, for files that hold such files. Not part of the public face.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::formats {

/// The array of a whole .npy file. `path` names it in messages. Throws FormatError as load_npy() does.
HostTensor parse_npy(const std::filesystem::path& path, std::span<const std::byte> file);
/// All that stands before the elements. Throws FormatError for bf16.
std::string npy_header(const std::filesystem::path& path, DType dtype, const Dims& shape);

}  // namespace sluice::formats
