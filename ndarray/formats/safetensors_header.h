// The JSON header of a .safetensors file, read and checked. Not part of the public face.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::formats {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// The format's name for a dtype ("F32", "BOOL").
std::string_view safetensors_name(DType dtype);

/// One tensor of the header: where it lies, in bytes after the header.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Dims shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< by rising offset
  std::map<std::string, std::string> metadata;
};

/// Parses the header and checks it against the `data_bytes` that follow it: every entry complete and known, its bytes
/// equal to shape x dtype, the entries together covering the data with no overlap and no hole. Throws FormatError.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view json,
                                           std::uint64_t data_bytes);

}  // namespace sluice::formats
