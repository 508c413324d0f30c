// For tests: an engine whose counters begin where they soon come round.
#pragma once

#include <cstdint>

#include "sluice/engine/engine.h"

namespace sluice::detail {

/// Where an engine's counters begin; all of them wrap.
struct CounterStart {
  std::uint32_t generation = 0;  ///< of op records: a record's first op has the next
  std::uint32_t batch = 0;       ///< of a worker's batch, head and tail
  std::uint32_t variables = 0;   ///< their numbers
  std::uint64_t pushes = 0;      ///< of a thread, pushed and completed
};

Engine engine_with_counters(const EngineOptions& options, const CounterStart& counters);

}  // namespace sluice::detail
