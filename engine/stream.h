// Streams: in-order queues of a device. An op on a stream lane is issued when its body returns, and complete when the
// device has confirmed it. Where one stream must wait for another, the device waits, never the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "sluice/engine/errors.h"

namespace sluice {

class Stream;

/// A point in a stream: it stands for everything that was issued before it. The caller of record() numbers the points
/// of a stream, upwards; the engine takes the op's place in its lane as the number. An event without a stream has
/// always been reached.
struct StreamEvent {
  Stream* stream = nullptr;
  std::uint64_t point = 0;
};

/// When a device began and ended something: nanoseconds of the host's steady clock, as exactly as the device's clock
/// can be told by it.
struct DeviceTimes {
  std::int64_t begin = 0, end = 0;
};

/// Memory of a device that a kernel touches.
struct MemoryUse {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

/// A device's in-order queue, as the engine uses it (docs/devices.md). All functions may be called from any thread, and
/// none but await() blocks. A device that no longer answers is reported by its provider (Provider::lost), not here.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Marks the point after everything that was issued so far. `point` is larger than all that were recorded before.
  /// Returns false where there is no memory to record it; then the next point that is recorded stands for it too.
  virtual bool record(std::uint64_t point) noexcept = 0;
  /// The last recorded point that the device has passed; 0 before the first. All work that was issued before that point
  /// is over, and the calling thread sees what it wrote.
  virtual std::uint64_t reached() const noexcept = 0;
  /// Makes all work that is issued here later wait, on the device, until the other stream has passed the event's point,
  /// or the first recorded point after it. Returns false where this kind of device cannot wait for the other one; then
  /// nothing was issued. May throw.
  virtual bool wait(const StreamEvent& event) = 0;
  /// Blocks the calling thread until the device has passed the point, or the time is over, or earlier.
  virtual void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept = 0;
  /// Issues a function of the host as a kernel. It runs in its turn on a thread that stands for the device. Only
  /// simulated devices have such kernels; others throw UsageError. An exception of the kernel is a late error of the op
  /// that the calling thread is in. `uses` says which of the device's memory the kernel touches, for a record of
  /// accesses.
  virtual void launch(std::function<void()> /*kernel*/, std::span<const MemoryUse> /*uses*/ = {}) {
    throw UsageError("[launch] this device runs no functions of the host");
  }

  // ---- the device's times of an op. The engine calls these for traced ops alone, because measuring costs time.
  /// What the calling thread issues here until end_times() is to be timed by the device. Returns the number of this
  /// span, until take_times(); 0 where there are no times. Spans may overlap.
  virtual std::uint64_t begin_times() noexcept { return 0; }
  /// `span` is what begin_times() returned, and not 0.
  virtual void end_times(std::uint64_t /*span*/) noexcept {}
  /// Called once for each span that was ended, when a point behind it is passed or will not be (a lost device). Forgets
  /// the span. Returns false, and sets nothing, where the times are not known.
  virtual bool take_times(std::uint64_t /*span*/, DeviceTimes& /*times*/) noexcept { return false; }

  /// The backend's handle (a cudaStream_t); null for a simulated stream.
  virtual void* native() const { return nullptr; }
};

}  // namespace sluice
