// Directories of data sets. Internal.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::nn::detail {

/// Throws FormatError where it is none: "is not a directory; wanted the one that holds WANTED", or "no such directory;
/// wanted the one that holds WANTED (SOURCE)".
inline void check_directory(const std::filesystem::path& directory, const std::string& wanted,
                            const std::string& source = "") {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return;
  const bool found = std::filesystem::exists(directory, error);
  throw FormatError(directory, (found ? "is not a directory" : "no such directory") +
                                   std::string("; wanted the one that holds ") + wanted +
                                   (found || source.empty() ? "" : " (" + source + ")"));
}

}  // namespace sluice::nn::detail
