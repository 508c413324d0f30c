// linear() of rows that are in more than one axis. Internal.
#pragma once

#include <source_location>

#include "sluice/ndarray/nd_array.h"

namespace sluice {
class Registry;
}

namespace sluice::builtin {

/// The rows of all axes before the last, as a matrix.
NDArray rows_of(const NDArray& x);

/// Whether x is cut over a mesh along an axis that is neither the first nor the last. rows_of(x) is refused then: its
/// rows would not be cut into one range for each place.
bool cut_inside(const NDArray& x);

/// linear() of such an x, by a row that each place makes of its own rows. `bias` may be an empty handle.
NDArray linear_rows(const NDArray& x, const NDArray& weight, const NDArray& bias, const std::source_location& where);

/// transpose(rows_of(g)) . rows_of(x), (out, in): the gradient of a weight, of whatever layout g and x have. Their axes
/// before the last are the same.
NDArray rows_product(const NDArray& g, const NDArray& x, const std::source_location& where);

void add_linear_rows(Registry& registry);

}  // namespace sluice::builtin
