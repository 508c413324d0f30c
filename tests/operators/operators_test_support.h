// What tests of operators share: what a refused call says, and operands of random numbers.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/sluice.h"

namespace sluice::testing {

/// What the E that `f` throws says.
template <class E = ArrayError, class F>
std::string message(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

/// Uniform in [-2, 2), drawn in f64.
inline NDArray drawn(const Dims& shape, std::uint64_t seed, DType dtype = DType::f64) {
  RandomStream stream(seed);
  return uniform(shape, stream, -2, 2, DType::f64).to(dtype);
}

}  // namespace sluice::testing
