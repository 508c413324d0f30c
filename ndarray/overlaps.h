// Which arrays of a push lie in the same memory: in time that grows with their number, not with their pairs.
#pragma once

#include <span>
#include <vector>

#include "sluice/ndarray/windows.h"

namespace sluice {

/// True if two of these views share an element, or lie between each other's.
bool any_overlap(std::span<const NDArray> views);
/// Snapshots of memory that arrays of `outputs`, which stay, lie in. With their locks.
std::vector<Ref<Array>> holders(std::span<const NDArray> outputs);

}  // namespace sluice
