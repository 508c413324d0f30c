// What the simulations of a step and of a cluster share. Internal to schedule/.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/schedule/simulate.h"

namespace sluice::parallel::detail {

/// Throws std::invalid_argument for a schedule that verify() refuses, another number of stages, and a cost that is
/// negative or not finite.
void check_costs(const Schedule& schedule, std::span<const StageCost> costs);

/// What an action's cost is multiplied by; `what` is its number_of().
double factor(const Jitter& jitter, std::uint64_t what);

/// What an action's factor follows from, whatever the schedule is.
std::uint64_t number_of(const Action& a, std::uint64_t copy = 0);

}  // namespace sluice::parallel::detail
