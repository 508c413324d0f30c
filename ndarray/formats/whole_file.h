// A file's bytes, all of them at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::formats {

/// Throws FormatError as InputFile does, and before it takes memory where there are more bytes than `most`. Blocks.
inline std::vector<std::byte> whole_file(const std::string& path, std::uint64_t most = ~std::uint64_t{0}) {
  InputFile file(path);
  if (file.size() > most) {
    throw FormatError(path, "holds " + std::to_string(file.size()) + " bytes, wanted at most " + std::to_string(most));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.read(bytes, "the file");
  return bytes;
}

}  // namespace sluice::formats
