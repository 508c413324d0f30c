// Programs for the judge of mutants, each for a part of the protocol that random programs seldom come by.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::mutants {

struct Drawn {
  const char* name;
  std::string (*run)(std::uint64_t seed);  ///< what is wrong, or ""
};
inline constexpr Drawn kDrawn[] = {{"none", [](std::uint64_t) { return std::string(); }}};

}  // namespace sluice::mutants
