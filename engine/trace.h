// Traces: what ran where and when, and how to look at it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/engine/device.h"

namespace sluice {

/// One completed op. Times are nanoseconds of the steady clock.
struct TraceEvent {
  const char* name;
  Device device;
  LaneKind lane;
  std::uint32_t thread;  ///< number of the engine's thread that ran the body
  std::uint64_t id;      ///< Ticket::id
  std::uint64_t tag;     ///< ScopeState::tag of the push
  const char* file;      ///< push site
  std::uint32_t line;
  std::int64_t pushed, ready, start, end;
  bool failed;  ///< failed, skipped or cancelled
};

/// The events as a Chrome/Perfetto trace (JSON; open in ui.perfetto.dev): one row for each device, lane and thread.
std::string to_perfetto(std::span<const TraceEvent> events);

/// to_perfetto into a file. Throws std::runtime_error with the path and the reason.
void write_trace(const std::string& path, std::span<const TraceEvent> events);

}  // namespace sluice
