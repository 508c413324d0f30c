// NumPy's .npy files: one array each.
#pragma once

#include <cstddef>
#include <filesystem>
#include <source_location>
#include <span>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

/// Reads a .npy file of version 1.0, 2.0 or 3.0. Takes f32 f64 f16 i8 u8 i32 i64 bool, rank up to kMaxRank, both byte
/// orders and both of C and Fortran order; the result is row-major in the host's byte order. Blocks on the file; any
/// number of threads may load at once. Throws FormatError where the file is missing, is not a regular file, is
/// truncated, has bytes to spare, or is anything else than such an array. Allocates no more than the file's size
/// (twice that in Fortran order).
HostTensor load_npy(const std::filesystem::path& path, std::source_location where = std::source_location::current());

/// Writes a row-major array as .npy, version 1.0, little-endian; the file appears whole or not at all. Blocks until it
/// is on the disk. Throws FormatError where the file cannot be written, and for bf16, for which NumPy has no name; and
/// std::invalid_argument where `bytes` does not fit the shape.
void save_npy(const std::filesystem::path& path, DType dtype, const Dims& shape, std::span<const std::byte> bytes,
              std::source_location where = std::source_location::current());

inline void save_npy(const std::filesystem::path& path, const HostTensor& tensor,
                     std::source_location where = std::source_location::current()) {
  save_npy(path, tensor.dtype, tensor.shape, tensor.bytes, where);
}

}  // namespace sluice
