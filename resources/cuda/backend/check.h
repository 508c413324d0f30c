// Errors of CUDA's calls.
#pragma once

#include <cuda_runtime.h>

#include <new>
#include <stdexcept>
#include <string>

namespace sluice::cuda {

/// A call of CUDA, or of one of its libraries, that failed: "cudaLaunchKernel: invalid configuration argument".
class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& what, cudaError_t error) : std::runtime_error(what), code(error) {}
  cudaError_t code;
};

/// True for errors after which nothing works on the card any more in this process.
inline bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

/// Throws CudaError, or std::bad_alloc where the card has no memory. `call` names the function. An error that is not
/// sticky is taken off CUDA's own record, so that it is not reported again by a later call.
inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw CudaError(std::string(call) + ": " + cudaGetErrorString(code), code);
}
#define SLUICE_CUDA(function, ...) ::sluice::cuda::check(function(__VA_ARGS__), #function)

}  // namespace sluice::cuda
