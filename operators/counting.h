// Ranges of integers, for the kernels of all backends.
#pragma once

#include <cstdint>

#include "sluice/resources/host_device.h"

namespace sluice {

/// begin + i * step. Wraps on the way, as a range from the least integer to the largest needs.
SLUICE_HD inline std::int64_t counted(std::int64_t begin, std::int64_t i, std::int64_t step) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(begin) +
                                   static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step));
}

}  // namespace sluice
