// Programs for the judge of mutants, each for a part of the protocol that random programs seldom come by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::mutants {

struct Drawn {
  const char* name;
  std::string (*run)(std::uint64_t seed);  ///< what is wrong, or ""
  const char* aims = nullptr;              ///< made for mutants whose names have this: gets most of their time
};
std::vector<Drawn> chain_programs();    ///< programs_chains.cc
std::vector<Drawn> cap_programs();      ///< programs_caps.cc
std::vector<Drawn> circle_programs();   ///< programs_circles.cc
std::vector<Drawn> device_programs();   ///< programs_devices.cc
std::vector<Drawn> error_programs();    ///< programs_errors.cc
std::vector<Drawn> lane_programs();     ///< programs_lanes.cc
std::vector<Drawn> stream_programs();   ///< programs_streams.cc
std::vector<Drawn> wait_programs();     ///< programs_waits.cc
std::vector<Drawn> watcher_programs();  ///< programs_watchers.cc
/// All of these.
std::vector<Drawn> all_programs();

}  // namespace sluice::mutants
