// Programs for the judge of mutants, each for a part of the protocol that random programs seldom come by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::mutants {

struct Drawn {
  const char* name;
  std::string (*run)(std::uint64_t seed);  ///< what is wrong, or ""
};
std::vector<Drawn> chain_programs();  ///< programs_chains.cc
std::vector<Drawn> lane_programs();   ///< programs_lanes.cc

}  // namespace sluice::mutants
