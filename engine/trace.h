// Traces: what ran where and when, and how to look at it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/engine/device.h"
#include "sluice/engine/variable.h"

namespace sluice {

/// A variable that a traced op named.
struct TraceAccess {
  std::uint32_t variable;  ///< its number: no two of an engine's first 2^32 share one
  AccessMode mode;
  std::string name;  ///< of the variable; empty if it has none
};

/// One op that was pushed and completed while the trace was on. Times are nanoseconds of the steady clock. On a device
/// with streams a body issues work and returns; when the device did the work only the device knows.
struct TraceEvent {
  const char* name;
  Device device;
  LaneKind lane;
  std::uint32_t thread;  ///< number of the engine's thread that ran the body
  std::uint64_t id;      ///< Ticket::id; for a captured op, that of its replay
  std::uint64_t tag;     ///< ScopeState::tag of the push
  const char* file;      ///< push site
  std::uint32_t line;
  std::int64_t pushed, ready;
  std::int64_t start, end;  ///< of the body
  std::int64_t
      done;     ///< when it was complete; later than `end` with a Completion, and on a stream: there the host learns it
  bool failed;  ///< failed, skipped or cancelled
  std::vector<TraceAccess> accesses{};
  const char* layer = "";  ///< of the push (LayerScope); empty: none
  /// When the device began and ended the op's work, by its own clock, told by the host's as well
  /// as the provider can. Zeros where the device gives no times, and for ops that were skipped.
  std::int64_t device_start = 0, device_end = 0;
};

/// A pair of ops of which one had to wait for the other because of a variable.
struct TraceDependency {
  std::size_t before, after;  ///< places in the events
  std::size_t access;         ///< in the accesses of `after`: the first variable that orders the two
};

/// The direct dependencies between traced ops. For each variable the readers depend on the writer before them, and a
/// writer depends on the readers before it or, if there are none, on the writer before it. Each pair is there once, in
/// the order of `after`.
std::vector<TraceDependency> dependencies(std::span<const TraceEvent> events);

/// The events as a Chrome/Perfetto trace (JSON; open in ui.perfetto.dev): one row for each device, lane and thread with
/// the times of bodies; behind them a row for the lane with the device's own times, where there are some ("gpu(0)
/// compute (device)"); an arrow for each dependency, between device times where there are some; and over time the ops
/// in flight and the ready ops of each lane. Bytes of a name that are not UTF-8 show as U+FFFD.
std::string to_perfetto(std::span<const TraceEvent> events);

/// to_perfetto into a file, piece by piece: takes some 50 bytes of memory for each event. Throws std::runtime_error
/// with the path and the reason.
void write_trace(const std::string& path, std::span<const TraceEvent> events);

/// What a lane of a device with streams has done since the engine was made.
struct LaneStats {
  std::uint64_t issued = 0, finished = 0;  ///< ops; the difference is in flight
  std::uint64_t points = 0;                ///< points recorded; each stands for all ops that were issued before it
  std::uint64_t waits = 0;                 ///< waits for other streams, on the device
  std::uint64_t covered = 0;               ///< ops that these waits cover and did not need to
};

struct LoggedPush {
  std::uint64_t id;                ///< Ticket::id of the op; 0 for a wait or a borrow
  const char* name;                ///< the op's name, or "wait", "borrow" or "recover"
  std::uint64_t by = 0;            ///< Ticket::id of the op whose body pushed, waited or borrowed; 0 from outside
  const void* variable = nullptr;  ///< the variable of a wait, a borrow or a recovery: Variable::get()
};

}  // namespace sluice
