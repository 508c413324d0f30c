// Bodies of ops of the tests' own, for GPUs: they issue.
#pragma once

#include "sluice/ndarray/push.h"

namespace sluice::testing {

/// Fills output k with input k's sum, for k = 0 and 1; f32, contiguous.
void fill_with_sums(ArrayContext& c);

}  // namespace sluice::testing
