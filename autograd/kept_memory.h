// KeptMemory: a piece of memory that an array or a tape keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// A piece of memory. `id` tells it from all others, those that are gone too.
struct KeptMemory {
  std::uint32_t id = 0;
  std::size_t bytes = 0;
  friend bool operator==(const KeptMemory&, const KeptMemory&) = default;
};

/// The memory that an array shows, or shows a part of.
KeptMemory memory_of(const NDArray& x, std::source_location where = std::source_location::current());

}  // namespace sluice
