// The order in which one thread pushes a schedule's actions.
#pragma once

#include <vector>

#include "sluice/schedule/action_lists.h"

namespace sluice::parallel {

/// One sequence over all devices in which one thread can push the actions: each device's actions stand in its order
/// (in a free order: in that order as far as the slots let them), and each action stands after those that it waits for.
/// Devices take turns as if every action took one time step, so no device's work is pushed long before another's.
/// Throws std::invalid_argument as verify() does. Pure and thread-safe.
std::vector<Action> program_order(const Schedule& schedule);

}  // namespace sluice::parallel
