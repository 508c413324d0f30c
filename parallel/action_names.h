// What traces and errors call the actions of a step. Internal to parallel/.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel::detail {

/// The trace tag of an action's operations: the step above, the action below (plus one: 0 is no action).
inline std::uint64_t tag_of(std::uint64_t step, const Schedule& schedule, const Action& action) {
  constexpr int kActionBits = 24;
  return step << kActionBits | static_cast<std::uint64_t>(index_of(schedule, action) + 1);
}

/// The layer of the part of the net that a microbatch goes through in a stage.
inline std::string layer_of(int stage, int microbatch) {
  return "stage " + std::to_string(stage) + ".microbatch " + std::to_string(microbatch);
}
/// That of an action; a step belongs to no microbatch.
inline std::string layer_of(const Action& action) {
  if (row_of(action.kind).of_stage) return "stage " + std::to_string(action.stage);
  return layer_of(action.stage, action.microbatch);
}

}  // namespace sluice::parallel::detail
