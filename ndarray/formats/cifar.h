// The binary files of CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images",
// 2009): records of one or two labels of one byte, and 3 x 32 x 32 bytes of a picture, plane by plane.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <span>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice::formats {

/// What a record begins with: labels, of each the number of its classes (0: there is none). The last is the one kept.
using CifarLabels = std::array<int, 2>;
inline constexpr CifarLabels kCifar10{10, 0}, kCifar100{20, 100};

struct CifarRecords {
  HostTensor images{DType::u8, {0, 3, 32, 32}, {}};
  HostTensor labels{DType::u8, {0}, {}};
};

/// Adds the records of a file's bytes to `to`. Throws FormatError, which names `path` and the record, where there is no
/// record, the last one is cut, or a label is beyond its classes; then `to` holds what it held before. Pure: any number
/// of threads may call it.
void parse_cifar(const std::filesystem::path& path, std::span<const std::byte> bytes, const CifarLabels& kind,
                 CifarRecords& to);

}  // namespace sluice::formats
