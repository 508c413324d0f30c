// Streams: in-order queues of a device. An op on a stream lane is issued when its body returns and complete when the
// device says so; between streams the device waits, never the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace sluice {

class Stream;

/// A point in a stream: everything issued before it. Points of a stream are numbered upwards by whoever records them
/// (the engine: an op's place in its lane). No stream: reached since ever.
struct StreamEvent {
  Stream* stream = nullptr;
  std::uint64_t point = 0;
};

/// Memory of a device that a kernel touches.
struct MemoryUse {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

/// A device's in-order queue, as the engine uses it (docs/devices.md). All functions may be called from any thread, and
/// none but await() blocks. What reports a device that no longer answers is the provider (Provider::lost), not these.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Marks the point after everything issued so far. `point` is above all that were recorded before. Where it cannot be
  /// recorded now, for want of memory, the next one that can stands for it too: false.
  virtual bool record(std::uint64_t point) noexcept = 0;
  /// The last recorded point that the device has passed; 0 before the first. What was issued before it is over, and
  /// what it wrote can be seen by the calling thread.
  virtual std::uint64_t reached() const noexcept = 0;
  /// What is issued later waits, on the device, until the other stream has passed the first of its recorded points that
  /// is not below the event's. False: this kind of device cannot wait for that one, and nothing was issued. May throw.
  virtual bool wait(const StreamEvent& event) = 0;
  /// What is issued later is after these points too, which the caller knows to be passed and so does not wait() for.
  /// For a record of accesses: called only where the provider wants it (Provider::wants_order).
  virtual void ordered_after(std::span<const StreamEvent> /*passed*/) noexcept {}
  /// Blocks the calling thread until the device has passed the point, or the time is over, or earlier.
  virtual void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept = 0;
  /// Issues a function of the host as a kernel, which runs in its turn on a thread that stands for the device. Only
  /// simulated devices have such kernels: others throw UsageError. What it throws is a late error of the op that the
  /// calling thread is in. `uses`: what of the device's memory it touches, for a record of accesses.
  virtual void launch(std::function<void()> kernel, std::span<const MemoryUse> uses = {});
  /// The backend's handle (a cudaStream_t); null for a simulated stream.
  virtual void* native() const { return nullptr; }
};

}  // namespace sluice
