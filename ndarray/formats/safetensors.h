// .safetensors files: named arrays and text beside them, with nothing in them that could run.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

/// An array to save: a name and a row-major view of bytes that someone else keeps.
struct NamedTensor {
  std::string name;
  DType dtype = DType::f32;
  Dims shape;
  std::span<const std::byte> bytes;
};

/// What a .safetensors file holds.
struct Safetensors {
  std::vector<std::pair<std::string, HostTensor>> tensors;  ///< in the order in which they lie in the file
  std::map<std::string, std::string> metadata;

  /// Tensors of dtypes that Sluice lacks (I16 U16 U32 U64 F8_E4M3 C64 ...): name to the format's name of the dtype.
  std::map<std::string, std::string> refused;
  std::filesystem::path path;  ///< of the file, for messages
  /// The tensor of that name, or null if the file has none. Looks at each name in turn. Throws FormatError where the
  /// tensor is one of `refused`: the line names it and its dtype.
  const HostTensor* find(std::string_view name, std::source_location where = std::source_location::current()) const;
};

/// Writes the tensors and the metadata; the file appears whole or not at all, so that a program that is interrupted
/// leaves the checkpoint before. Tensors lie by falling element size, in the given order within one size, so that each
/// is aligned for a reader that maps the file. The same call writes the same bytes. Blocks until it is on the disk.
/// Throws FormatError where the file cannot be written or its header would pass 100 MB, and std::invalid_argument for
/// two tensors of one name, a tensor named "__metadata__", text that is not UTF-8, and bytes that do not fit a shape.
void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata = {},
                      std::source_location where = std::source_location::current());

/// Reads all tensors (F32 F64 F16 BF16 I8 U8 I32 I64 BOOL, rank up to kMaxRank) and the metadata. Blocks on the file;
/// any number of threads may load at once. Throws FormatError where the file is missing, is not a regular file, is
/// truncated, has bytes to spare, names a key twice, names a field that is not known, or has tensors that overlap,
/// leave a hole or do not fit their shapes. A tensor of another dtype is not read: it is in `refused`, and the others
/// are there. Allocates for data no more than the file's size.
Safetensors load_safetensors(const std::filesystem::path& path,
                             std::source_location where = std::source_location::current());

}  // namespace sluice
