// CUDA's driver interface, as far as Sluice's backend uses it. Its functions are looked up by
// cudaGetDriverEntryPointByVersion; none is linked.
#pragma once

#include <cstdint>

#include "cuda_double/types.h"

using cuuint64_t = std::uint64_t;
using CUdeviceptr = unsigned long long;
using CUdevice = int;
using CUstream = CUstream_st*;
using CUevent = CUevent_st*;

#define CUDA_VERSION 13000
#define CUDAAPI

enum cudaError_enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_UNKNOWN = 999,
};
using CUresult = cudaError_enum;

enum CUstreamWriteValue_flags {
  CU_STREAM_WRITE_VALUE_DEFAULT = 0,
  CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1,
};

extern "C" {
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
CUresult cuGetErrorString(CUresult error, const char** sentence);
CUresult cuGetErrorName(CUresult error, const char** name);
}
