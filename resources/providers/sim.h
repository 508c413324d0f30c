// Simulated devices: streams whose work is done by threads of the host, memory that the host cannot touch, and faults
// on demand.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "sluice/engine/provider.h"
#include "sluice/resources/host_kernel.h"
#include "sluice/resources/providers/access_observer.h"
#include "sluice/resources/providers/sim_control.h"

namespace sluice {

struct SimOptions {
  /// Each kernel, copy and fill takes that long, and up to random_delay longer, drawn for each stream from the seed.
  std::chrono::microseconds delay{0}, random_delay{0};
  std::uint64_t seed = 0;
  /// Freed memory is filled with 0xFF bytes (NaN), in the order of the stream that freed it.
  bool poison = true;
  /// Made with the devices, and told all that their streams do; its reports go to the control and, once each, to
  /// stderr. With `order_record` (resources/testing/order_record.h, target sluice_testing) any two accesses that
  /// nothing orders are reported.
  AccessObserverFactory observer = nullptr;
  /// Copies on streams refuse memory of the host that is not allocate_pinned()'s, as CUDA's would not be asynchronous.
  bool pinned_only = false;
  /// The limits of each device. `memory`: the most that it gives; 0: as much as the machine has. `alignment` is at
  /// least 256.
  DeviceLimits limits{};
  /// The control by which a test plants faults and reads reports.
  std::shared_ptr<SimControl> control{};
  /// Functions that say for which op the calling thread issues commands.
  DeviceOp (*op)() noexcept = current_device_op;
  OpLabel (*label)() noexcept = current_op_label;
};

/// A provider of `count` simulated devices, kind DeviceKind::sim:
///  - Each stream is a queue with a thread of its own, which starts with the first command. Kernels are functions of
///    the host (Stream::launch). Streams wait for streams of the same provider only; wait() is false for others.
///  - An exception of a kernel is a late error of the op that launched it; a device keeps the last 256. The kernels
///    after it run.
///  - Memory is mapped twice. What allocate() returns faults on any access.
///    Kernels get at it through kernel_address(), and copies go by the addresses:
///    from and to the host, within a device, and between the provider's devices.
///  - A thread that entered a device may launch on that device's streams alone: anything else throws UsageError
///    and is reported. Threads that entered none are not checked.
///  - A lost device drops the commands of its streams and passes no further point. Streams of other devices that
///    wait for it go on; the engine poisons the results.
///  - A silent device does nothing until it is released, and streams of other devices that wait for it go on
///    waiting.
///  - The destructor of a stream finishes its commands.
///    If a device of the provider is silent or lost, it drops those that have not begun,
///    so that it always ends.
///  - A trace has the times at which a stream worked for an op.
///
/// These devices test the protocol; they say nothing about the speed of a real device. Thread-safe.
ProviderFactory sim_devices(int count = 1, SimOptions options = {});

}  // namespace sluice
