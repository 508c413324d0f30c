// Rows that are written in other rows: Operator::compose.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/operators/composing.h"
#include "sluice/operators/registry.h"

namespace sluice {
namespace builtin {

/// The outputs of a call, as row.compose makes them. The calls that it is made of are recorded where the calling
/// thread's are: so a gradient that is made this way has gradients. They name `where`, and the row where they throw.
/// Throws ArrayError as the row's shape rule does, and UsageError where the composition gives other specs.
std::vector<NDArray> composed(const Operator& row, std::span<const NDArray* const> inputs, const Attributes& attributes,
                              const std::source_location& where);

/// For gradient rules: the outputs of `row`, which computes a gradient and has none itself. Where the gradient is
/// recorded they are composed().
std::vector<NDArray> gradient_by(const Operator& row, std::span<const NDArray* const> inputs,
                                 const Attributes& attributes, const GradientContext& context);

}  // namespace builtin

namespace detail {

/// Whether the row has `compose`, and either composing() is not never, or the row has no kernel at all: then it is
/// meant to be made of others.
bool may_compose(const Operator& row);

/// Whether a call that no kernel takes is made by row.compose, as may_compose() says. Where the row has kernels for
/// other calls, that is said on the standard error stream, once for each row, kind of device and dtype.
bool composes(const Operator& row, const Signature& call, Device device);

/// The values of arrays at one instant, which later writes do not change.
std::vector<NDArray> values_now(std::span<const NDArray* const> arrays);

}  // namespace detail
}  // namespace sluice
