// Finds the arrays of a push that lie in the same memory. The time grows with their number, not with that of their
// pairs.
#pragma once

#include <span>
#include <vector>

#include "sluice/ndarray/windows.h"

namespace sluice {

/// True if two of these views share an element. Exact, unless strides were chosen to make that hard to tell: then true.
bool any_overlap(std::span<const NDArray> views);
/// The snapshots that show memory of those `outputs` which stay. The caller holds the locks of the outputs.
std::vector<Ref<Array>> holders(std::span<const NDArray> outputs);

}  // namespace sluice
