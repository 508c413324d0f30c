#include "sluice/schedule/simulate_parts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <stdexcept>
#include <string>

#include "sluice/engine/number_text.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel::detail {

void check_costs(const Schedule& schedule, std::span<const StageCost> costs) {
  verify(schedule);
  if (costs.size() != static_cast<std::size_t>(schedule.stages)) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has " + std::to_string(schedule.stages) +
                                " stages, but costs are given for " + std::to_string(costs.size()));
  }
  for (std::size_t s = 0; s < costs.size(); ++s) {
    for (int kind = 0; kind < kActionKinds; ++kind) {
      const double cost = costs[s].of(static_cast<ActionKind>(kind));
      if (std::isfinite(cost) && cost >= 0) continue;
      throw std::invalid_argument("stage " + std::to_string(s) + " cannot take " + general_text(cost, 6) +
                                  " s for its " + row_of(static_cast<ActionKind>(kind)).name);
    }
  }
}

namespace {

/// The number is in [0, 1), and follows from its arguments (a mix of bits after Steele et al., SplitMix, 2014).
double random_number(std::uint64_t seed, std::uint64_t what) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + what;
  for (const std::uint64_t factor : {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu, 0xD6E8FEB86659FD93u}) {
    z = (z ^ (z >> 31)) * factor;
  }
  return static_cast<double>((z ^ (z >> 32)) >> 11) * 0x1p-53;
}

}  // namespace

double factor(const Jitter& jitter, std::uint64_t what) {
  const double u = random_number(jitter.seed, 2 * what);
  switch (jitter.kind) {
    case Jitter::Kind::none:
      return 1;
    case Jitter::Kind::uniform:
      return std::max(0.0, 1 + jitter.amount * (2 * u - 1));
    case Jitter::Kind::normal:
      break;
  }
  // Box and Muller, 1958.
  const double v = random_number(jitter.seed, 2 * what + 1);
  const double z = std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * std::numbers::pi * v);
  return std::max(0.05, 1 + jitter.amount * z);
}

std::uint64_t number_of(const Action& a, std::uint64_t copy) {
  return ((copy * 4096 + static_cast<std::uint64_t>(a.stage)) * kActionKinds + static_cast<std::uint64_t>(a.kind)) *
             1'048'576 +
         static_cast<std::uint64_t>(a.microbatch);
}

}  // namespace sluice::parallel::detail
