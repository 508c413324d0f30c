// The judge of mutants: programs under the schedule explorer, each of which says what is wrong, if anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice::mutants {

/// One kind of program and of search.
struct Family {
  std::string name;
  /// One more schedule. Returns what is wrong, or "". Sets `seed` to what replays it; to "" when all are done.
  std::function<std::string(std::string& seed)> step;
  const char* aims = nullptr;  ///< see Drawn
};
std::vector<Family> make_families();

struct Verdict {
  bool reached = false;      ///< a program came by the mutant's site
  std::string family, seed;  ///< that caught it
  std::string what;          ///< empty: not caught
  double seconds = 0;        ///< of CPU
  std::uint64_t schedules = 0;
};
/// Judges the mutant that is chosen, for so many seconds of CPU time; by one family only, if it is named.
Verdict judge(double seconds, const std::string& only = "");

/// One schedule of a family of this judge's own.
std::string replay_one(const std::string& family, std::uint64_t seed);

/// What is being run, for who must tell of a crash.
struct Running {
  char what[160];
  std::uint64_t schedules;
};
extern Running running;

double cpu_seconds();

}  // namespace sluice::mutants
