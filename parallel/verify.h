// The prover: refuses a schedule that leaves work out, does it twice, can deadlock, or holds too many activations.
#pragma once

#include <span>

#include "sluice/parallel/schedule.h"

namespace sluice::parallel {

/// Returns if the schedule can run to its end, else throws std::invalid_argument with one line that names the action
/// or the cycle. Each stage must hold F and B of every microbatch exactly once and nothing else, and the data
/// dependencies together with each stage's order must be free of cycles:
///     schedule 'x' cannot finish: B(0,0) waits for B(1,0) waits for F(1,1) (earlier on stage 1) waits for ...
/// max_activations, unless empty, gives for each stage the activations it may hold at once (as peak_activations counts
/// them); a schedule that needs more is refused. Pure and thread-safe; time grows with stages x actions at worst.
void verify(const Schedule& schedule, std::span<const int> max_activations = {});

}  // namespace sluice::parallel
