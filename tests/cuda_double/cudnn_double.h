// The descriptors of the double's cuDNN, and what its calls have in common.
#pragma once

#include <array>
#include <string>

#include "cudnn.h"
#include "libraries.h"

/// A tensor, or a filter, of four dimensions.
struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> sizes{}, strides{};
};
struct cudnnFilterStruct : cudnnTensorStruct {};
struct cudnnConvolutionStruct {
  std::array<int, 2> pads{}, strides{1, 1}, dilations{1, 1};
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  int groups = 1;
};
struct cudnnPoolingStruct {
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  cudnnNanPropagation_t nans = CUDNN_NOT_PROPAGATE_NAN;
  std::array<int, 2> window{1, 1}, pads{}, strides{1, 1};
};
struct cudnnContext {
  cuda_double::LibraryHandle handle;
  cudaStream_t stream = nullptr;
  std::atomic<int> users{0};
};

namespace cuda_double {

/// Thrown for a status that no error of CUDA stands for.
struct RefusedByCudnn {
  cudnnStatus_t status;
};

using Tensor = cudnnTensorStruct;

cudaDataType_t element_type(cudnnDataType_t type);
std::size_t extent(const Tensor& tensor);
std::string in_words(const Tensor& tensor);
cudnnStatus_t cudnn_status(cudaError_t error);

/// As call(), for a call of cuDNN.
template <class F>
cudnnStatus_t cudnn_call(F f) noexcept {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const cudaError_t error = call(Fault::library, [&](World& world, ThreadState& thread) {
    try {
      f(world, thread);
    } catch (const RefusedByCudnn& refused) {
      status = refused.status;
    }
  });
  return status != CUDNN_STATUS_SUCCESS ? status : cudnn_status(error);
}

/// A call that works on the handle's stream.
class CudnnWork {
 public:
  CudnnWork(World& world, ThreadState& thread, cudnnHandle_t handle, const char* name);
  ~CudnnWork();
  CudnnWork(const CudnnWork&) = delete;
  CudnnWork& operator=(const CudnnWork&) = delete;

  /// An operand; returns the address for the kernel. What is added to its old value is read, too.
  const void* reads(const Tensor& tensor, const void* at);
  void* writes(const Tensor& tensor, void* at);
  void* workspace(void* at, std::size_t given, std::size_t needed);
  [[noreturn]] void refuse(cudnnStatus_t status, const std::string& what);
  void issue(std::function<void()> run);

 private:
  World& world_;
  cudnnContext& handle_;
  const char* const name_;
  const StreamHandle stream_;
  std::vector<Operand> operands_;
};

/// Refuses a call as the options say, in one of the ways in which cuDNN says that it has no such function.
void refuse_at_random(World& world);

/// alpha or beta: a double for doubles, else a float.
double factor(const void* at, const Tensor& tensor);

/// Reads elements of a tensor, and writes them as alpha * value + beta * old.
struct Elements {
  const Tensor tensor;
  const void* base;
  bool tf32 = false;
  double operator()(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const;
};
struct Results {
  const Tensor tensor;
  void* base;
  double alpha, beta;
  void put(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, double value) const;
};

}  // namespace cuda_double
