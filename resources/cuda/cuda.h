// GPUs of NVIDIA, as devices of an engine.
#pragma once

#include <cstddef>
#include <string>

#include "sluice/engine/provider.h"

namespace sluice {

struct CudaOptions {
  /// Each card is that many devices, gpu(0), gpu(1) and so on, with lanes of their own and an equal share of the card's
  /// memory each: so pipelines and sharding run on one card. 0: as SLUICE_LOGICAL_GPUS says, else 1.
  int logical = 0;
  /// The most bytes that each device gives out; 0: its share of the card's memory.
  std::size_t memory = 0;
  /// Names of ops for NVIDIA's tools: a thread that issues an op to a card does so within an NVTX range that has the
  /// op's name, so that Nsight Systems (nsys profile --trace=cuda,nvtx) shows which op a kernel is of. SLUICE_NVTX=1
  /// asks for it too. Where it is asked for, ops are issued on a longer path, also without a tool that looks.
  bool nvtx = false;
};

/// The machine's GPUs, kind DeviceKind::gpu: Engine engine({.providers = {cuda_devices()}}). The default engine has
/// them by itself. The driver's files say how many there are; CUDA is loaded, and its state on a card made, at the
/// first use of a device, which throws what cuda_unavailable() says where CUDA cannot use it.
///
/// While a trace is on (Engine::start_trace) each op is issued between two timed events of CUDA, so that the trace has
/// the card's times of ops beside the host's. That slows ops down, small ones most. CUDA tells times to half a
/// microsecond; they are compared with the host's clock by one event every few seconds. Without a trace none is timed.
ProviderFactory cuda_devices(CudaOptions options = {});

/// Empty if there is a GPU that can be used; else the reason in one line, as "the driver says: no CUDA-capable device
/// is detected", or "libsluice_cuda.so is not there". The library is looked for as SLUICE_CUDA_LIBRARY names it, else
/// beside the program and where the system looks; SLUICE_CUDA=0 switches it off, and anything else
/// than 0 and 1 throws UsageError. Loads the library at the first call. Thread-safe.
const std::string& cuda_unavailable();

}  // namespace sluice
