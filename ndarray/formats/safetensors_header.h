// The JSON header of a .safetensors file, read and checked. Not part of the public face.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
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
  std::string type;              ///< the format's name for the dtype
  std::optional<DType> dtype{};  ///< nothing where Sluice has no such dtype
  Dims shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< by rising offset
  std::map<std::string, std::string> metadata;
};

/// Parses the header and checks it against the `data_bytes` that follow it: every entry complete, its bytes equal to
/// shape x dtype, the entries together covering the data with no overlap and no hole. A dtype that Sluice lacks is no
/// error here. Throws FormatError.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view json,
                                           std::uint64_t data_bytes);

class InputFile;
/// Reads the length and the header from the start of a file, up to the first byte of data. Throws FormatError.
SafetensorsHeader read_safetensors_header(InputFile& file);

/// Why a tensor of a dtype that Sluice lacks is not given: "tensor 'x' is U16, which Sluice has no dtype for; ...".
std::string refusal(std::string_view name, std::string_view type);

}  // namespace sluice::formats
