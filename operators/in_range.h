// Parts of composed sums that keep what lies between within the numbers' range and precision. Internal to operators/.
#pragma once

#include <source_location>

#include "sluice/operators/reduction.h"

namespace sluice::builtin {

/// y as what exponents are counted from, with 0 in the place of -infinity, and at most the largest number: for an x up
/// to y the smaller of 1 and exp(x - it) is 1 where both are infinity, and 0 where both are -infinity.
NDArray finite_exponent(const NDArray& y, const std::source_location& at);

/// x less `average`, its mean over the axes with keep, and less the mean of what is left: far from 0 the rounding of
/// the first mean is much of a deviation. The second has no gradient: but for roundings it is 0.
NDArray less_mean(const NDArray& x, const NDArray& average, const Axes& axes, const std::source_location& at);

}  // namespace sluice::builtin
