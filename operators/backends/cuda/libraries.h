// cuBLASLt and cuDNN: the handles of a lane, errors of their calls, and types.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/ndarray/dtype.h"
#include "sluice/resources/cuda/backend/cuda_stream.h"

namespace sluice::cuda {

/// The bytes that a call of a library may use beside its operands. Always the same, because the choice of an algorithm,
/// and so the bits of a result, depends on it.
inline constexpr std::size_t kWorkspace = std::size_t{32} << 20;

/// What decides about a library's algorithm: sizes, strides, alignments, types.
using ShapeKey = std::vector<std::int64_t>;

/// Used by one thread at a time, the one that issues to the lane.
struct Libraries {
  explicit Libraries(int card);
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  const int card;
  cudaStream_t stream = nullptr;
  cublasLtHandle_t blas = nullptr;
  cudnnHandle_t dnn = nullptr;
  void* workspace = nullptr;  ///< kWorkspace bytes, for one call after the other
  /// Chosen once for each key; empty where the library takes no such call.
  std::map<ShapeKey, std::optional<cublasLtMatmulAlgo_t>> products;
  std::map<ShapeKey, std::optional<int>> convolutions;
};

/// Throws CudaError, "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED".
inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw std::bad_alloc();
  throw CudaError(std::string(call) + ": " + cublasLtGetStatusString(status), cudaErrorUnknown);
}
inline void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    throw std::bad_alloc();
  }
  if (status != CUDNN_STATUS_SUCCESS) {
    throw CudaError(std::string(call) + ": " + cudnnGetErrorString(status), cudaErrorUnknown);
  }
}

/// cuDNN says in many ways that it has no such function: NOT_SUPPORTED_SHAPE, NOT_SUPPORTED_PADDING, ...
inline bool is_unsupported(cudnnStatus_t status) {
  return CUDNN_STATUS_CATEGORY(static_cast<int>(status)) == CUDNN_STATUS_NOT_SUPPORTED;
}

/// The bytes to which an address is aligned, up to 256.
inline std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// The library's name of an element type.
template <class T>
inline constexpr cudaDataType_t data_type = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t data_type<double> = CUDA_R_64F;
template <>
inline constexpr cudaDataType_t data_type<Float16> = CUDA_R_16F;
template <>
inline constexpr cudaDataType_t data_type<BFloat16> = CUDA_R_16BF;

/// Whether products and convolutions of f32 may round their operands to TF32: SLUICE_TF32=1. Read once.
bool allows_tf32();

}  // namespace sluice::cuda
