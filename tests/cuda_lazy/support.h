// The double of CUDA as a library that is opened at the first use of a device, with cards that are counted before.
#pragma once

#include <atomic>

namespace sluice::testing {

/// The devices that are counted before the library is opened.
inline std::atomic<int> counted_cards{2};
/// How often the library was opened.
inline std::atomic<int> times_opened{0};

}  // namespace sluice::testing
