// What the CUDA backend, a library of its own, is handed to add its kernels.
#pragma once

#include "sluice/ndarray/device_kernels.h"
#include "sluice/operators/backends/cuda/kernels.h"

namespace sluice::cuda {

/// Adds every kernel of the backend, and sets what arrays need beside them. Called once, by the registry.
struct KernelTable {
  Rows::Functions rows;
  void (*set_device_kernels)(DeviceKind kind, const DeviceKernels* kernels);
};

}  // namespace sluice::cuda
