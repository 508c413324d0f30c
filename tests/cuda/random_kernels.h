// Random integers on GPUs.
#pragma once

#include <cstdint>

#include "sluice/ndarray/push.h"
#include "sluice/resources/philox.h"

namespace sluice::testing {

inline constexpr RandomKey kIntegersOf{.seed = 0x1234567890ABCDEF, .stream = 7, .draw = 3};
inline constexpr std::int64_t kLowest = -3, kHighest = 1LL << 60;

/// The body of an op with two contiguous i64 outputs: words of 32 bits of the draw kIntegersOf, and integers of it from
/// [kLowest, kHighest).
void fill_with_random_integers(ArrayContext& c);

}  // namespace sluice::testing
