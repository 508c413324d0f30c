// IDX files (the format of MNIST), gzipped or plain.
#pragma once

#include <source_location>
#include <string>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

/// Reads an IDX file of u8, i8, i32, f32 or f64, rank 1 to kMaxRank, gzipped or plain (its first bytes tell which).
/// The result is row-major in the host's byte order. Blocks on the file; any number of threads may load at once.
/// Throws FormatError where the file is missing, is not a regular file, is truncated, has bytes to spare, is no IDX
/// file, or is corrupt gzip. A header that promises more than 4 GiB, or more than gzip can hold in a file of this
/// size, is refused before anything is unpacked; memory grows with what was unpacked, not with the promise.
HostTensor load_idx(const std::string& path, std::source_location where = std::source_location::current());

}  // namespace sluice
