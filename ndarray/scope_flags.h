// The bits of ScopeState::flags, which the floors above the engine define. All of them stand here, so that no two
// floors take one bit.
#pragma once

#include <cstdint>

namespace sluice {

/// Pushes are not recorded for gradients (grad_mode.h).
inline constexpr std::uint32_t kNoGradFlag = 1U << 0;
/// A Rerun::Scope lives on the thread that set it (rerun.h).
inline constexpr std::uint32_t kRerunFlag = 1U << 1;
/// The results of pushes are looked at (anomaly.h).
inline constexpr std::uint32_t kAnomalyFlag = 1U << 2;
/// The pushes are a backward pass's (autograd/tape_run.h).
inline constexpr std::uint32_t kBackwardFlag = 1U << 3;
/// The priority of the thread's pushes on arrays, plus one; 0: each push's own (push.h).
inline constexpr std::uint32_t kPushPriorityShift = 4, kPushPriorityBits = 15U << kPushPriorityShift;
/// The thread's calls are those of a stage of a pipeline, which must not wait (operators/waiting.h).
inline constexpr std::uint32_t kNoWaitFlag = 1U << 8;
/// A DryRun::Scope lives on the thread that set it (dry_run.h).
inline constexpr std::uint32_t kDryFlag = 1U << 9;
/// The mode of layers that differ in training (nn/net/mode.h); neither: it was not said.
inline constexpr std::uint32_t kTrainingFlag = 1U << 10, kEvaluationFlag = 1U << 11;

}  // namespace sluice
