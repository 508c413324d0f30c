// NumPy's .npz files: a zip archive of .npy files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/ndarray/formats/safetensors.h"

namespace sluice {

struct NpzReadOptions {
  /// The most bytes that the members may have when unpacked: a packed file can stand for a thousand times its size.
  std::uint64_t most_bytes = std::uint64_t{4} << 30;
};
struct NpzWriteOptions {
  bool compress = false;  ///< deflate the members, as NumPy's savez_compressed
};

/// Reads all arrays, in the order of the archive's directory; a name is the member's without ".npy". Takes stored and
/// deflated members, and zip64. Blocks on the file; any number of threads may load at once. Throws FormatError where
/// the file is not such an archive, where a member is encrypted, packed otherwise, not a .npy file that load_npy()
/// takes, named twice, lies over another, does not have the size or the CRC that the directory tells, and where all of
/// them pass `most_bytes`. Memory grows with what is unpacked, not with what the directory tells: at most four times
/// the file's size and `most_bytes` together.
std::vector<std::pair<std::string, HostTensor>> load_npz(const std::filesystem::path& path,
                                                         const NpzReadOptions& options = {},
                                                         std::source_location where = std::source_location::current());

/// Writes the arrays; the file appears whole or not at all. The same call writes the same bytes. Blocks until it is on
/// the disk. Throws FormatError where the file cannot be written, and for bf16; std::invalid_argument for an empty
/// name, one that is used twice or is longer than 65,531 bytes, and bytes that do not fit a shape.
void save_npz(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
              const NpzWriteOptions& options = {}, std::source_location where = std::source_location::current());

}  // namespace sluice
