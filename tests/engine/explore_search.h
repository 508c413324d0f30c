// Searches over schedules, as the explorer's tests and its long run use them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "sluice/engine/explore/explore.h"

namespace sluice::testing {

struct Search {
  std::uint64_t schedules = 0, distinct = 0, bad = 0;
  bool unsteady = false;
  std::string first_bad;  ///< its decisions, which `replay` takes
  std::unordered_set<std::uint64_t> hashes;
};

/// Lets one thing decide while it lives.
class Deciding {
 public:
  explicit Deciding(detail::Decider* decider) { detail::Explorer::get().use(decider); }
  ~Deciding() { detail::Explorer::get().use(nullptr); }
  Deciding(const Deciding&) = delete;
  Deciding& operator=(const Deciding&) = delete;
};

/// The search that is on, for whoever must tell of a crash.
inline const detail::Exhaustive* current_search = nullptr;

/// Runs `once` for every schedule with at most `budget` deviations, or until it says false.
template <class F>
Search every_schedule(int budget, F&& once, std::uint64_t at_most = ~std::uint64_t{0}, bool reduced = true) {
  Search result;
  detail::Exhaustive all(budget, reduced);
  const Deciding deciding(&all);
  current_search = &all;
  while (result.schedules < at_most && all.next_schedule()) {
    detail::Explorer::get().reset(0);
    const bool good = once();
    ++result.schedules;
    result.hashes.insert(detail::Explorer::get().trace_hash());
    result.unsteady |= all.unsteady();
    if (good) continue;
    ++result.bad;
    result.first_bad = all.decisions();
    break;
  }
  current_search = nullptr;
  result.distinct = result.hashes.size();
  return result;
}

/// Runs `once` with these decisions, as `first_bad` told them.
template <class F>
bool replay(const std::string& decisions, F&& once) {
  detail::Replay again(decisions);
  const Deciding deciding(&again);
  detail::Explorer::get().reset(0);
  return once();
}

}  // namespace sluice::testing
