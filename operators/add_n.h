// Sums of arrays, term by term: add_n and accumulate.
#pragma once

#include <source_location>

#include "sluice/operators/registry.h"

namespace sluice {

/// Adds `terms` to target, one after another in their order. All arrays have one shape and dtype.
void accumulate(const NDArray& target, const NDArrays& terms,
                std::source_location where = std::source_location::current());
/// The sum of the terms in their order.
NDArray add_n(const NDArrays& terms, std::source_location where = std::source_location::current());

}  // namespace sluice
