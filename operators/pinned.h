// Host memory that the streams of a device copy from. Internal: NDArray::to() does what programs need.
#pragma once

#include <source_location>

#include "sluice/ndarray/nd_array.h"

namespace sluice::detail {

/// An array of the host in one stretch of memory that streams of the device copy from: x, if it lies so, or a copy of
/// it that the host makes; x, if it is of an owner. Pushes and returns.
NDArray pinned(const NDArray& x, Device device, const std::source_location& where);

}  // namespace sluice::detail
