#include "sluice/ndarray/read_only.h"

namespace sluice::detail {

NDArray adopt_read_only(const void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype, Device device) {
  const Device host = device.kind == DeviceKind::cpu ? device : cpu(0);
  const NDArray x = adopt_memory(const_cast<void*>(data), std::move(owner), shape, dtype, host);
  // Counted as if one more array showed the value: to a write it is a value that is held.
  x.array()->version()->shown();
  return x.to(device);
}

}  // namespace sluice::detail
