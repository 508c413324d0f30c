// What a record of accesses is told that the commands of a stream do not show: what the host, and what a stream is
// issued later, comes after. For tests of programs and of providers (resources/testing/order_record.h).
#pragma once

#include <span>

#include "sluice/engine/stream.h"

namespace sluice {

/// A provider of an engine is told if its class is derived from this one too. An order that only happens, because
/// something was over in time, is told to nobody; so whoever keeps a record finds a missing wait however fast the
/// device is. Thread-safe; the events name streams of this provider.
class OrderObserver {
 public:
  virtual ~OrderObserver() = default;
  /// Work that is issued to the stream from here on comes after these points too. They are passed, and so the stream
  /// does not wait for them.
  virtual void stream_after(Stream& stream, std::span<const StreamEvent> passed) noexcept = 0;
  /// Whether the next four are wanted. Where no provider wants them, no op takes a longer path. The engine asks once.
  virtual bool watches_host() const noexcept { return true; }
  /// Everything that the calling thread does from here on comes after these points, which it knows to be passed. With
  /// `afresh` a body begins, and the points of earlier calls do not count until host_returns().
  virtual void host_after(std::span<const StreamEvent> passed, bool afresh) noexcept = 0;
  /// The body that the last call with `afresh` began, on the calling thread, has returned. What the thread had been
  /// told before counts again, and what it was told since does not.
  virtual void host_returns() noexcept = 0;
  /// The calling thread reads or writes memory that streams use as well (pinned buffers), now.
  virtual void host_touches(std::span<const MemoryUse> uses) noexcept = 0;
  /// A block of memory, which a pool had kept, goes to a new user, who need not know what streams did with it before.
  /// All of that is over.
  virtual void block_reused(const void* block) noexcept = 0;
};

/// The memory of a device that the op whose body the calling thread is in may touch, as MemoryUses says; a null span
/// where nobody said. For a record of accesses, behind interfaces that have no room for it (a CUDA launch).
std::span<const MemoryUse> current_memory_uses() noexcept;

/// Says it for the calling thread, as long as it lives. `uses` must outlive it. Guards nest: the innermost counts.
class MemoryUses {
 public:
  explicit MemoryUses(std::span<const MemoryUse> uses) noexcept;
  ~MemoryUses();
  MemoryUses(const MemoryUses&) = delete;
  MemoryUses& operator=(const MemoryUses&) = delete;

 private:
  const std::span<const MemoryUse> before_;
};

}  // namespace sluice
