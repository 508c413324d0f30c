// The gradients of a weight's uses one by one, for a weight that is tied across the stages of a pipeline.
#pragma once

#include <functional>
#include <source_location>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// Backward sums the gradients of a weight's uses in the order of the program, ((u1 + u2) + u3) + ..., and adds the sum
/// to .grad(). Where stages hold copies of one weight, the sums of the copies added up would be another tree, and other
/// bits. So each copy hands out its terms, and who holds the weight does what backward would have done:
///
///     on_uses(copy, [&](const std::vector<NDArray>& terms) { ... });   // of each copy, in the order of the stages
///     add_gradient(weight, sum_of_uses(all_terms));                    // for each microbatch, in index order
///
/// has the bits of one device that runs all stages with `weight` itself, wherever the stages are cut.

/// From now on backward(), or the half of it that this leaf belongs to, calls f with the gradients of the leaf's uses,
/// from the first use in the program to the last, and does not add them to .grad(); hooks of on_gradient() on the leaf,
/// which see sums, are not called. f runs on the thread that runs backward, in a NoGrad scope, once in each run that
/// reaches the leaf. The arrays are its own to keep; they are not written by the library, and must not be by f. A use
/// of a view of the leaf gives a term of the leaf's whole shape; what the program makes from the leaf first
/// (w * 2) is one use of it. All terms wait for f: a leaf with many uses takes their memory. grad() and forward are as
/// before. An empty f ends it. Not while backward runs on another thread. Throws ArrayError for what is no leaf.
void on_uses(const NDArray& leaf, std::function<void(const std::vector<NDArray>& terms)> f,
             std::source_location where = std::source_location::current());

/// The sum that backward would have made of these gradients of a weight's uses, which are given in the order of the
/// program: with its bits, also beyond 16 terms (backward() in gradients.h says the order). One term at least.
NDArray sum_of_uses(const NDArrays& terms, std::source_location where = std::source_location::current());

/// Adds to the leaf's .grad(), or sets it, as backward does with a sum. Throws ArrayError for what is no leaf, and for
/// a gradient of another shape, dtype or device.
void add_gradient(const NDArray& leaf, const NDArray& gradient,
                  std::source_location where = std::source_location::current());

}  // namespace sluice
