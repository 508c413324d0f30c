// Arrays over memory that must not be written: a mapped file, for one.
#pragma once

#include <memory>

#include "sluice/ndarray/nd_array.h"

namespace sluice::detail {

/// An array over host memory that nobody writes while `owner` lives. Makes no copy. The first write to the array gives
/// it memory of its own, with a copy of the elements unless all are overwritten (docs/semantics.md, 12). The owner goes
/// when no array shows the memory any more and the ops that read it are over. On a device with memory of its own this
/// is a copy.
NDArray adopt_read_only(const void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device);

}  // namespace sluice::detail
