// What the arrays' own steps need from a kind of device that runs no functions of the host.
#pragma once

#include "sluice/ndarray/push.h"

namespace sluice {

struct DeviceKernels {
  /// Issues a copy of the elements of one window to another of its shape and dtype: packing, and unpacking.
  void (*strided_copy)(Issuing& to, const TensorView& from, const TensorView& target) = nullptr;
};

/// Set once, by the backend of the kind of device, before its first op is issued. Thread-safe against use.
void set_device_kernels(DeviceKind kind, const DeviceKernels* kernels);
/// Null where none were set: then the device runs functions of the host as its kernels (sim, null).
const DeviceKernels* device_kernels(DeviceKind kind);

}  // namespace sluice
