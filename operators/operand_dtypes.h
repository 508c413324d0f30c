// What operators do with operands of several dtypes. Internal to operators/.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/operators/registry.h"

namespace sluice::builtin {

/// Converts arrays of several dtypes to one. The pointers to those that were converted go to the result, which is empty
/// where there is nothing to do.
std::vector<NDArray> in_one_dtype(const char* name, std::span<const NDArray*> inputs,
                                  const std::source_location& where);

/// y as elements of this dtype, for a write in place: throws ArrayError if y's dtype would widen it.
NDArray narrowed(const char* name, const Operand& y, DType dtype);

}  // namespace sluice::builtin
