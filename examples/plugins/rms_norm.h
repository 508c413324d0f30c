// An operator with a gradient, a kernel and an attribute of its own.
#pragma once

#include "sluice/operators/registry.h"

namespace mine {

struct RmsNormAttributes {
  double eps = 1e-6;
  friend bool operator==(const RmsNormAttributes&, const RmsNormAttributes&) = default;
};

/// x / sqrt(mean(square(x)) + eps) * weight, with the mean over the last axis. x (..., n), weight (n,), of one floating
/// dtype.
sluice::NDArray rms_norm(const sluice::Operand& x, const sluice::NDArray& weight, double eps = 1e-6);

}  // namespace mine
