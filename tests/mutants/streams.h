// Devices with streams under the explorer: theirs are strands, which the explorer knows.
#pragma once

#include <cstddef>
#include <memory>

#include "sluice/engine/explore/explore.h"
#include "sluice/engine/order_observer.h"
#include "sluice/engine/provider.h"

namespace sluice::mutants {

/// What the devices of one provider are like.
struct DeviceTraits {
  int count = 1;
  DeviceKind kind = DeviceKind::sim;
  int unconfirmed = 512;           ///< DeviceLimits::unconfirmed
  std::size_t kept_errors = 1000;  ///< so many reports a device keeps, the last ones
  int failing_records = 0;         ///< one record in so many finds no memory; 0: none
  int failing_reads = 0;           ///< and one read of late errors
  bool timed = false;              ///< devices may fall silent: who waits for one waits with a time limit
};

/// Each stream is a FIFO that a strand works off while there is something in it. Kernels that throw report late errors.
/// A stream can wait for the other streams of its provider, and for no others. The functions here may be called in a
/// run only. That a point is said to be passed which is not is a mistake that they find.
class ExploredDevices : public Provider, public OrderObserver {
 public:
  /// Else ops would take a longer path than in programs without an observer.
  bool watches_host() const noexcept final { return false; }
  void host_after(std::span<const StreamEvent>, bool) noexcept final {}
  void host_returns() noexcept final {}
  void host_touches(std::span<const MemoryUse>) noexcept final {}
  void block_reused(const void*) noexcept final {}
  /// The device passes no further point, and no kernel begins there. Streams of others that wait for it go on.
  virtual void lose(int device) = 0;
  /// The device does nothing more until it is lost. Only for devices that are `timed`.
  virtual void silence(int device) = 0;
  /// Reports a late error of an op, as a kernel does that goes on.
  virtual void report(int device, DeviceOp op) = 0;
};

std::shared_ptr<ExploredDevices> explored_devices(const DeviceTraits& traits);

}  // namespace sluice::mutants
