// Copies between the host and devices with streams, and between such devices: issued to the provider, which knows how.
#include "sluice/operators/builtin.h"
#include "sluice/operators/register.h"

namespace sluice {

void builtin::add_device_transfers(Registry& registry) {
  const Operator& row = registry.get("transfer");
  Kernel kernel;
  kernel.issues = true;
  // Both sides are contiguous: NDArray::to sees to it.
  kernel.run = [](ArrayContext& context) {
    const TensorView &from = context.input(0), &to = context.output(0);
    const std::size_t bytes = static_cast<std::size_t>(from.count()) * size_of(from.dtype);
    if (bytes != 0) context.provider().copy(to.data, from.data, bytes, &context.stream());
  };
  for (const DeviceKind kind : {DeviceKind::gpu, DeviceKind::sim, DeviceKind::null}) {
    backends::add(row, {.name = "device", .device = kind, .rank = 0}, kernel.run, kernel);
  }
}

}  // namespace sluice
