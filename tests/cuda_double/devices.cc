// Devices, errors, and the driver's entry points.
#include <cstdio>
#include <cstring>

#include "double.h"

namespace cuda_double {
namespace {

constexpr int kThreads = 1024, kMultiprocessors = 8;
constexpr std::size_t kShared = 48 << 10, kSharedOptin = 227 << 10;
constexpr int kDriverVersion = 13000;

cudaDeviceProp properties_of(const World& world, int device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "Sluice's double of a CUDA device");
  p.uuid.bytes[0] = static_cast<char>(device + 1);
  p.totalGlobalMem = world.options.memory;
  p.sharedMemPerBlock = kShared;
  p.sharedMemPerBlockOptin = kSharedOptin;
  p.sharedMemPerMultiprocessor = kSharedOptin + 1024;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.memPitch = 0x7fffffff;
  p.maxThreadsPerBlock = kThreads;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = kThreads;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = world.options.capability / 10;
  p.minor = world.options.capability % 10;
  p.textureAlignment = 512;
  p.multiProcessorCount = kMultiprocessors;
  p.canMapHostMemory = 1;
  p.concurrentKernels = 1;
  p.pciBusID = device + 1;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = 50 << 20;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.streamPrioritiesSupported = 1;
  p.memoryPoolsSupported = 1;
  return p;
}

int attribute_of(const cudaDeviceProp& p, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMaxRegistersPerBlock:
      return p.regsPerBlock;
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrCanMapHostMemory:
      return p.canMapHostMemory;
    case cudaDevAttrConcurrentKernels:
      return p.concurrentKernels;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount:
      return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing:
      return p.unifiedAddressing;
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrStreamPrioritiesSupported:
      return p.streamPrioritiesSupported;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrMemoryPoolsSupported:
      return p.memoryPoolsSupported;
  }
  throw Refused{cudaErrorInvalidValue};
}

void require(bool holds, cudaError_t error = cudaErrorInvalidValue) {
  if (!holds) throw Refused{error};
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

cudaError_t cudaGetDeviceCount(int* count) {
  if (count) *count = 0;
  return call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(count != nullptr);
    require(world.devices() > 0, cudaErrorNoDevice);
    *count = world.devices();
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(properties != nullptr);
    world.check_device(device);
    *properties = properties_of(world, device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(value != nullptr);
    world.check_device(device);
    *value = attribute_of(properties_of(world, device), attribute);
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call_without_context(Fault::any, [&](World&, ThreadState&) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(can != nullptr);
    world.check_device(device);
    world.check_device(peer);
    *can = device != peer && world.options.links;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call(Fault::any, [&](World& world, ThreadState& thread) {
    require(flags == 0);
    world.check_device(peer);
    require(peer != thread.device, cudaErrorInvalidDevice);
    require(world.options.links, cudaErrorPeerAccessUnsupported);
    auto& enabled = world.peers[static_cast<std::size_t>(thread.device * 64 + peer)];
    require(!enabled.exchange(true), cudaErrorPeerAccessAlreadyEnabled);
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call(Fault::any, [&](World& world, ThreadState&) {
    world.refuse(cudaErrorNotPermitted, "cudaDeviceSynchronize, which blocks the host for all of a device's work");
  });
}

cudaError_t cudaSetDevice(int device) {
  return call(Fault::any, [&](World& world, ThreadState& thread) {
    world.check_device(device);
    thread.device = device;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call_without_context(Fault::any, [&](World&, ThreadState& thread) {
    require(device != nullptr);
    *device = thread.device;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return cudaErrorInvalidValue;
  *version = World::current()->options.driver == cudaErrorInsufficientDriver ? 0 : kDriverVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return call_without_context(Fault::any, [&](World&, ThreadState&) {
    require(symbol && function);
    const std::pair<const char*, void*> known[] = {
        {"cuDeviceGet", reinterpret_cast<void*>(&cuDeviceGet)},
        {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&cuDevicePrimaryCtxGetState)},
        {"cuStreamWriteValue64", reinterpret_cast<void*>(&cuStreamWriteValue64)},
        {"cuGetErrorString", reinterpret_cast<void*>(&cuGetErrorString)},
        {"cuGetErrorName", reinterpret_cast<void*>(&cuGetErrorName)},
    };
    *function = nullptr;
    if (status) *status = cudaDriverEntryPointSymbolNotFound;
    for (const auto& [name, address] : known) {
      if (std::strcmp(symbol, name) != 0) continue;
      if (status) *status = cudaDriverEntryPointVersionNotSufficent;
      if (version > static_cast<unsigned>(kDriverVersion)) continue;
      if (status) *status = cudaDriverEntryPointSuccess;
      *function = address;
    }
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return static_cast<CUresult>(call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(device != nullptr);
    world.check_device(ordinal);
    *device = ordinal;
  }));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return static_cast<CUresult>(call_without_context(Fault::any, [&](World& world, ThreadState&) {
    require(flags && active);
    world.check_device(device);
    *flags = 0;
    *active = world.contexts[static_cast<std::size_t>(device)].load();
  }));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    require(attributes != nullptr);
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    // The host's compiler says nothing of a kernel's needs.
    *attributes = {};
    attributes->maxThreadsPerBlock = kThreads;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(world.dynamic_shared(kernel));
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return require(value >= -1 && value <= 100);
    require(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0 &&
            static_cast<std::size_t>(value) <= kSharedOptin);
    world.allow_dynamic_shared(kernel, static_cast<std::size_t>(value));
  });
}

cudaError_t cudaGetLastError() { return std::exchange(thread_state(*World::current()).last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return thread_state(*World::current()).last; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define CUDA_DOUBLE_ERROR(name, value, sentence) \
  case name:                                     \
    return sentence;
#include "cuda_double/errors.inc"
#undef CUDA_DOUBLE_ERROR
  }
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CUDA_DOUBLE_ERROR(name, value, sentence) \
  case name:                                     \
    return #name;
#include "cuda_double/errors.inc"
#undef CUDA_DOUBLE_ERROR
  }
  return "unrecognized error code";
}

CUresult cuGetErrorString(CUresult error, const char** sentence) {
  if (!sentence) return CUDA_ERROR_INVALID_VALUE;
  *sentence = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
