// What traces and errors call the actions of a step. Internal to parallel/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/schedule/action.h"

namespace sluice::parallel::detail {

/// The trace tag of an action's operations, whichever the schedule: the number of the step, from 1 on, in the upper
/// bits, then kind, stage and microbatch.
inline constexpr int kMicrobatchBits = 20, kStageBits = 12, kKindBits = 4;
static_assert(kActionKinds <= 1 << kKindBits);

inline std::uint64_t tag_of(std::uint64_t step, const Action& action) {
  std::uint64_t tag = step << kKindBits | static_cast<std::uint64_t>(action.kind);
  tag = tag << kStageBits | static_cast<std::uint64_t>(action.stage);
  return tag << kMicrobatchBits | static_cast<std::uint64_t>(action.microbatch);
}

/// The action, where the tag is one of that step's.
inline std::optional<Action> action_of(std::uint64_t tag, std::uint64_t step) {
  const auto low = [&](int bits) {
    const auto value = static_cast<int>(tag & ((std::uint64_t{1} << bits) - 1));
    tag >>= bits;
    return value;
  };
  const int microbatch = low(kMicrobatchBits), stage = low(kStageBits), kind = low(kKindBits);
  if (tag != step || kind >= kActionKinds) return std::nullopt;
  return Action{static_cast<ActionKind>(kind), stage, microbatch};
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
