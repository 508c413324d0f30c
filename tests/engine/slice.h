// How much of a long search a test does.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace sluice::testing {

/// A slice in CI, a smaller one with sanitizers, and all of it where SLUICE_DEEP is set (tests/deep.sh).
inline std::uint64_t slice([[maybe_unused]] std::uint64_t sanitized, [[maybe_unused]] std::uint64_t usual,
                           std::uint64_t all) {
  if (std::getenv("SLUICE_DEEP")) return all;
#ifdef SLUICE_SANITIZED
  return sanitized;
#else
  return usual;
#endif
}

}  // namespace sluice::testing
