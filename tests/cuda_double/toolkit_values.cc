// Prints the values, sizes, offsets and signatures that the double takes over from the toolkit. The program is compiled
// against both, and a test compares what they print (CMakeLists.txt).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <typeinfo>

#include "toolkit_libraries.inc"

#define VALUE(name) std::printf("%s %lld\n", #name, static_cast<long long>(name))
#define SIZE(type) std::printf("sizeof %s %zu %zu\n", #type, sizeof(type), alignof(type))
#define OFFSET(member) std::printf("%s %zu\n", #member, offsetof(cudaDeviceProp, member))
#define FUNCTION(function) std::printf("%s %s\n", #function, typeid(decltype(&function)).name())

int main() {
#define CUDA_DOUBLE_ERROR(name, value, sentence) VALUE(name);
#include "include/cuda_double/errors.inc"
#undef CUDA_DOUBLE_ERROR
  VALUE(cudaStreamDefault);
  VALUE(cudaStreamNonBlocking);
  VALUE(cudaEventDefault);
  VALUE(cudaEventBlockingSync);
  VALUE(cudaEventDisableTiming);
  VALUE(cudaEventRecordDefault);
  VALUE(cudaEventWaitDefault);
  VALUE(cudaHostAllocDefault);
  VALUE(cudaHostAllocPortable);
  VALUE(cudaHostAllocMapped);
  VALUE(cudaHostAllocWriteCombined);
  VALUE(cudaEnableDefault);
  VALUE(reinterpret_cast<long long>(cudaStreamLegacy));
  VALUE(reinterpret_cast<long long>(cudaStreamPerThread));
  VALUE(CUDART_VERSION / 1000);
  VALUE(cudaMemcpyHostToHost);
  VALUE(cudaMemcpyHostToDevice);
  VALUE(cudaMemcpyDeviceToHost);
  VALUE(cudaMemcpyDeviceToDevice);
  VALUE(cudaMemcpyDefault);
  VALUE(cudaMemPoolReuseFollowEventDependencies);
  VALUE(cudaMemPoolReuseAllowOpportunistic);
  VALUE(cudaMemPoolReuseAllowInternalDependencies);
  VALUE(cudaMemPoolAttrReleaseThreshold);
  VALUE(cudaMemPoolAttrReservedMemCurrent);
  VALUE(cudaMemPoolAttrReservedMemHigh);
  VALUE(cudaMemPoolAttrUsedMemCurrent);
  VALUE(cudaMemPoolAttrUsedMemHigh);
  VALUE(cudaDevAttrMaxThreadsPerBlock);
  VALUE(cudaDevAttrMaxBlockDimX);
  VALUE(cudaDevAttrMaxBlockDimY);
  VALUE(cudaDevAttrMaxBlockDimZ);
  VALUE(cudaDevAttrMaxGridDimX);
  VALUE(cudaDevAttrMaxGridDimY);
  VALUE(cudaDevAttrMaxGridDimZ);
  VALUE(cudaDevAttrMaxSharedMemoryPerBlock);
  VALUE(cudaDevAttrWarpSize);
  VALUE(cudaDevAttrMaxRegistersPerBlock);
  VALUE(cudaDevAttrMultiProcessorCount);
  VALUE(cudaDevAttrCanMapHostMemory);
  VALUE(cudaDevAttrConcurrentKernels);
  VALUE(cudaDevAttrMaxThreadsPerMultiProcessor);
  VALUE(cudaDevAttrAsyncEngineCount);
  VALUE(cudaDevAttrUnifiedAddressing);
  VALUE(cudaDevAttrComputeCapabilityMajor);
  VALUE(cudaDevAttrComputeCapabilityMinor);
  VALUE(cudaDevAttrStreamPrioritiesSupported);
  VALUE(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  VALUE(cudaDevAttrMemoryPoolsSupported);
  VALUE(cudaFuncAttributeMaxDynamicSharedMemorySize);
  VALUE(cudaFuncAttributePreferredSharedMemoryCarveout);
  VALUE(cudaDriverEntryPointSuccess);
  VALUE(cudaDriverEntryPointSymbolNotFound);
  VALUE(cudaDriverEntryPointVersionNotSufficent);
  VALUE(cudaMemoryTypeUnregistered);
  VALUE(cudaMemoryTypeHost);
  VALUE(cudaMemoryTypeDevice);
  VALUE(cudaMemoryTypeManaged);
  VALUE(CUDA_SUCCESS);
  VALUE(CUDA_ERROR_INVALID_VALUE);
  VALUE(CUDA_ERROR_OUT_OF_MEMORY);
  VALUE(CUDA_ERROR_NOT_INITIALIZED);
  VALUE(CUDA_ERROR_DEINITIALIZED);
  VALUE(CUDA_ERROR_NO_DEVICE);
  VALUE(CUDA_ERROR_INVALID_DEVICE);
  VALUE(CUDA_ERROR_INVALID_CONTEXT);
  VALUE(CUDA_ERROR_INVALID_HANDLE);
  VALUE(CUDA_ERROR_NOT_FOUND);
  VALUE(CUDA_ERROR_NOT_READY);
  VALUE(CUDA_ERROR_ILLEGAL_ADDRESS);
  VALUE(CUDA_ERROR_LAUNCH_FAILED);
  VALUE(CUDA_ERROR_NOT_SUPPORTED);
  VALUE(CUDA_ERROR_UNKNOWN);
  VALUE(CU_STREAM_WRITE_VALUE_DEFAULT);
  VALUE(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
  SIZE(cudaDeviceProp);
  SIZE(cudaPointerAttributes);
  SIZE(cudaFuncAttributes);
  SIZE(uint3);
  SIZE(dim3);
  SIZE(float2);
  SIZE(float4);
  SIZE(double2);
  SIZE(int2);
  SIZE(int4);
  SIZE(uint2);
  SIZE(uint4);
  SIZE(CUdeviceptr);
  OFFSET(totalGlobalMem);
  OFFSET(sharedMemPerBlock);
  OFFSET(warpSize);
  OFFSET(maxThreadsPerBlock);
  OFFSET(maxThreadsDim);
  OFFSET(maxGridSize);
  OFFSET(totalConstMem);
  OFFSET(major);
  OFFSET(minor);
  OFFSET(multiProcessorCount);
  OFFSET(canMapHostMemory);
  OFFSET(surfaceAlignment);
  OFFSET(pciBusID);
  OFFSET(asyncEngineCount);
  OFFSET(l2CacheSize);
  OFFSET(maxThreadsPerMultiProcessor);
  OFFSET(sharedMemPerMultiprocessor);
  OFFSET(regsPerMultiprocessor);
  OFFSET(cooperativeLaunch);
  OFFSET(sharedMemPerBlockOptin);
  OFFSET(maxBlocksPerMultiProcessor);
  OFFSET(reservedSharedMemPerBlock);
  OFFSET(memoryPoolsSupported);
  OFFSET(reserved);
  FUNCTION(cudaGetDeviceCount);
  FUNCTION(cudaGetDeviceProperties);
  FUNCTION(cudaDeviceGetAttribute);
  FUNCTION(cudaDeviceGetStreamPriorityRange);
  FUNCTION(cudaDeviceCanAccessPeer);
  FUNCTION(cudaDeviceEnablePeerAccess);
  FUNCTION(cudaDeviceSynchronize);
  FUNCTION(cudaSetDevice);
  FUNCTION(cudaGetDevice);
  FUNCTION(cudaDriverGetVersion);
  FUNCTION(cudaRuntimeGetVersion);
  FUNCTION(cudaGetDriverEntryPointByVersion);
  FUNCTION(cudaGetLastError);
  FUNCTION(cudaPeekAtLastError);
  FUNCTION(cudaGetErrorString);
  FUNCTION(cudaGetErrorName);
  FUNCTION(cudaStreamCreateWithFlags);
  FUNCTION(cudaStreamCreateWithPriority);
  FUNCTION(cudaStreamDestroy);
  FUNCTION(cudaStreamSynchronize);
  FUNCTION(cudaStreamQuery);
  FUNCTION(cudaStreamWaitEvent);
  FUNCTION(cudaEventCreateWithFlags);
  FUNCTION(cudaEventRecord);
  FUNCTION(cudaEventQuery);
  FUNCTION(cudaEventSynchronize);
  FUNCTION(cudaEventDestroy);
  FUNCTION(cudaEventElapsedTime);
  FUNCTION(cudaMalloc);
  FUNCTION(cudaFree);
  FUNCTION(cudaMallocAsync);
  FUNCTION(cudaFreeAsync);
  FUNCTION(cudaDeviceGetDefaultMemPool);
  FUNCTION(cudaMemPoolSetAttribute);
  FUNCTION(cudaMemPoolGetAttribute);
  FUNCTION(cudaMemPoolTrimTo);
  FUNCTION(cudaHostAlloc);
  FUNCTION(cudaFreeHost);
  FUNCTION(cudaHostGetDevicePointer);
  FUNCTION(cudaMemGetInfo);
  FUNCTION(cudaPointerGetAttributes);
  FUNCTION(cudaMemcpyAsync);
  FUNCTION(cudaMemcpyPeerAsync);
  FUNCTION(cudaMemsetAsync);
  FUNCTION(cudaFuncGetAttributes);
  FUNCTION(cudaFuncSetAttribute);
  FUNCTION(cuStreamWriteValue64);
  FUNCTION(cuGetErrorString);
  FUNCTION(cuGetErrorName);
  print_libraries();
}
