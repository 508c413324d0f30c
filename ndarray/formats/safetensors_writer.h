// A writer of .safetensors files that may pause. Not part of the public face.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "sluice/ndarray/formats/safetensors.h"

namespace sluice::formats {

/// save_safetensors() (safetensors.h), which calls part_written() each time that the disk has begun with 4 MiB more.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void()>& part_written = {});

}  // namespace sluice::formats
