// Collectives over the devices of one process.
#pragma once

#include <source_location>
#include <span>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::parallel {

/// The devices that take part in collectives, each with a rank (its index in the list), and the `order` variable that
/// all collectives of the group name. So these take effect in push order, whichever is ready first. Copies share the
/// group.
class Communicator {
 public:
  /// Throws UsageError for no devices.
  explicit Communicator(std::vector<Device> devices, Engine& engine = default_engine());
  int size() const { return static_cast<int>(devices_.size()); }
  Device device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }
  const std::vector<Device>& devices() const { return devices_; }
  const Variable& order_variable() const { return order_; }

 private:
  std::vector<Device> devices_;
  Variable order_;
};

/// The sum of all ranks' arrays, on every rank. On each rank one op reads all of them and adds them in the order of
/// ranks, so the bits depend on nothing else. A device with memory of its own gets the other ranks' arrays by
/// transfers. parts[r] lives on rank r's device; all have one shape and dtype (floating, i32, i64). Recorded: the
/// gradient of each part is the sum of the results' gradients, itself an all-reduce. Pushes; does not wait. Throws
/// ArrayError where shapes, dtypes, devices or the number of parts do not fit.
std::vector<NDArray> all_reduce(const Communicator& group, std::span<const NDArray> parts,
                                std::source_location where = std::source_location::current());

}  // namespace sluice::parallel
