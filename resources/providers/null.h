// The null provider: devices that do nothing, at once, for measuring what the host pays.
#pragma once

#include <cstdint>
#include <memory>

#include "sluice/engine/provider.h"

namespace sluice {

/// How often a null provider was asked for something, over all of its devices.
struct NullCounts {
  std::uint64_t launches = 0, points = 0, waits = 0, copies = 0, fills = 0, allocations = 0, frees = 0;
};

/// Holds a null provider's devices, and reads their counts, while they are in use. For one provider: where a factory
/// makes more, the control is the last one's. Thread-safe.
class NullControl {
 public:
  NullControl();
  ~NullControl();
  NullControl(const NullControl&) = delete;
  NullControl& operator=(const NullControl&) = delete;

  /// From now on points are passed by poke() alone, until release().
  void hold();
  /// Lets all points that are recorded so far be passed.
  void poke();
  /// Lets these and all later points be passed.
  void release();

  NullCounts counts() const;
  std::uint64_t launches() const { return counts().launches; }

 private:
  friend ProviderFactory null_devices(int, std::shared_ptr<NullControl>);
  struct State;
  std::unique_ptr<State> state_;
};

/// A provider of `count` null devices, kind DeviceKind::null. A launch counts, and its kernel never runs; a recorded
/// point is passed at once; copies and fills count and touch nothing; memory is the process's, aligned to 64 bytes.
/// There is no thread, and nothing but allocate() takes memory. record() and reached() cost a few nanoseconds.
ProviderFactory null_devices(int count = 1, std::shared_ptr<NullControl> control = nullptr);

}  // namespace sluice
