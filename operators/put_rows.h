// What reads and writes by arrays of numbers are made of, beside take_rows. Internal to operators/. Errors name the
// Composition's place.
#pragma once

#include <vector>

#include "sluice/operators/registry.h"

namespace sluice {

/// Integers as numbers of elements on an axis of `size` (i64), where negative ones count from the end. The op fails for
/// a number out of range. Throws ArrayError for another dtype.
NDArray checked_index(const char* who, const NDArray& index, std::int64_t size, const std::source_location& where);
/// A copy of x where row i of y is written to row rows[i], or added to it; rows are of checked_index, shape (n,). Of
/// several writers of a row the last is kept; sums are in order.
NDArray put_rows(const NDArray& x, const NDArray& rows, const NDArray& y, bool add = false);
/// The same in x itself, which is contiguous. It is not recorded for gradients.
void put_rows_in_place(const NDArray& x, const NDArray& rows, const NDArray& y, bool add);
/// The row-major numbers of the elements that are not 0. Waits.
std::vector<std::int64_t> places_of_true(const NDArray& x, const std::source_location& where);

}  // namespace sluice
