// How an engine is made, stopped, and waited for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/engine/provider.h"

namespace sluice {

enum class EngineMode : std::uint8_t {
  threaded,  ///< worker threads
  serial,    ///< each push runs on the spot, on the pushing thread: for a debugger
  explore,   ///< the same protocol on a controlled scheduler; a seed replays every interleaving. Programs that do not
             ///< link the CMake target sluice::explore get UsageError.
};

/// A field that is zero or empty is taken from the environment variable that its comment names, else it is the default
/// in brackets. SLUICE_REPORT=1 prints a line when an engine is made: the version, the threads and why that many, what
/// libraries are used, and the devices.
struct EngineOptions {
  EngineMode mode = EngineMode::threaded;  ///< SLUICE_ENGINE=serial | explore:SEED
  std::uint64_t explore_seed = 0;
  bool mode_given = false;  ///< true: `mode` and the seed count, whatever the environment says
  /// SLUICE_THREADS [the CPUs that the process may use: those of the affinity mask of the thread that makes the engine,
  /// or of its container's quota (cgroup v1 and v2), rounded up, where that is less]: worker threads, at most 255,
  /// shared out over the CPU devices, at least one each
  int threads = 0;
  int logical_cpus = 0;                      ///< SLUICE_LOGICAL_CPUS [1]
  std::vector<ProviderFactory> providers{};  ///< devices beside the CPU's, one provider for each kind [none]
  /// A device that finishes no op for so long, although some op is issued to it that waits for no other stream, counts
  /// as lost [never]. With a limit an event is recorded for each op, else for up to 64 (docs/devices.md has the cost).
  std::chrono::nanoseconds device_limit{0};
  /// SLUICE_MAX_AHEAD [as many as the device takes, 512]: ops that a lane of a device with streams may have issued and
  /// not seen over. With fewer a device has less memory that waits for one stream and is wanted by another
  /// (docs/devices.md), and runs dry where the host cannot keep up.
  std::size_t max_ahead = 0;
  std::size_t max_ops = 0;    ///< SLUICE_MAX_OPS [16384]: ops in flight before outside pushers block
  std::size_t max_bytes = 0;  ///< SLUICE_MAX_BYTES [4 GiB]: the same for declared bytes; at most 2^60.
                              ///< Ops with up to max_bytes / max_ops / 4 bytes do not count.
  bool log_order = false;     ///< keep the order in which pushes took effect (take_order)
};

enum class StopMode : std::uint8_t { drain, cancel };

/// How a thread waits.
struct WaitOptions {
  /// The waiting thread runs ready ops of the compute lane of its scope's device, as one more worker. So one op more
  /// than the lane has threads may run at once, and the wait may return later than it could, by the rest of an op. Do
  /// not set this on a thread that holds a lock which such an op takes. It has no effect inside an op, and on a thread
  /// that holds a Borrow.
  bool help = false;
};

}  // namespace sluice
