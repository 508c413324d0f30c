// What the tests of schedules share: which sizes the known schedules are tried with.
#pragma once

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {

inline constexpr auto F = ActionKind::forward, B = ActionKind::backward, I = ActionKind::input_gradient,
                      W = ActionKind::weight_gradient, R = ActionKind::recompute, U = ActionKind::step;

inline std::set<int> microbatch_counts(int stages) {
  std::set<int> counts{1, stages - 1, stages, 2 * stages, 4 * stages};
  counts.erase(0);
  return counts;
}

/// All of these names for p devices in {1, 2, 3, 4, 8}, where they are defined.
inline std::vector<Schedule> schedules(const std::vector<std::string>& names) {
  std::vector<Schedule> all;
  for (const std::string& name : names) {
    const int chunks = name == "zbv" || name.starts_with("dynamic-v") ? 2
                       : name.starts_with("interleaved:")             ? name.back() - '0'
                                                                      : 1;
    for (const int p : {1, 2, 3, 4, 8}) {
      for (const int m : microbatch_counts(p)) {
        if (name.starts_with("interleaved:") && chunks > 1 && m % p != 0) continue;
        all.push_back(make_schedule(name, p * chunks, m));
      }
    }
  }
  return all;
}

inline const std::vector<std::string> kWholeBackward{"gpipe", "1f1b", "interleaved:1", "interleaved:2",
                                                     "interleaved:3"};
inline const std::vector<std::string> kHalves{"zb-h1", "zb-h2", "zbv"};
inline const std::vector<std::string> kFree{"dynamic",   "dynamic:1,1",   "dynamic:3,9",
                                            "dynamic-v", "dynamic-v:2,2", "dynamic-v:5,7"};

inline std::vector<Schedule> fixed_schedules() {
  std::vector<Schedule> all = schedules(kWholeBackward);
  for (Schedule& s : schedules(kHalves)) all.push_back(std::move(s));
  return all;
}

inline std::vector<Schedule> fixed_and_free_schedules() {
  std::vector<Schedule> all = fixed_schedules();
  for (Schedule& s : schedules(kFree)) all.push_back(std::move(s));
  return all;
}

inline std::string describe(const Schedule& s) {
  return s.name + " p=" + std::to_string(s.devices()) + " stages=" + std::to_string(s.stages) +
         " m=" + std::to_string(s.microbatches);
}

/// Why the prover refuses it, or "accepted".
inline std::string refusal(const Schedule& schedule, const Memory& memory = {}) {
  try {
    verify(schedule, memory);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace sluice::parallel
