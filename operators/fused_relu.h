// For rows that end with a relu of their own. Internal to operators/.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice::builtin {

/// The gradient behind the relu, from that of output 0, which the row keeps: for GradientContext::common.
NDArray relu_gradient(GradientContext& context);

}  // namespace sluice::builtin
