#include "sluice/operators/backends/cuda/convolution_library.h"

#include <array>
#include <limits>
#include <memory>

#include "sluice/operators/backends/cuda/libraries.h"
#include "sluice/resources/cuda/backend/ends.h"

namespace sluice::cuda {
namespace {

/// A descriptor of cuDNN, destroyed with its function.
template <class D, cudnnStatus_t (*make)(D*), cudnnStatus_t (*destroy)(D)>
class Descriptor {
 public:
  Descriptor() { check(make(&it_), "cudnnCreate...Descriptor"); }
  ~Descriptor() { destroy(it_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator D() const { return it_; }  // NOLINT: as the library's functions take it

 private:
  D it_ = nullptr;
};
using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

/// What cuDNN may compute with: TF32 only where it is asked for.
bool is_allowed(cudnnMathType_t math, DType dtype) {
  if (dtype == DType::f32) return allows_tf32() || math == CUDNN_FMA_MATH;
  return true;
}

/// The first algorithm of the library's list that is deterministic and fits, under its number.
template <class Result>
std::optional<int> choose(const std::array<Result, 8>& results, int count, DType dtype) {
  for (int i = 0; i < count; ++i) {
    const Result& r = results[static_cast<std::size_t>(i)];
    if (r.status == CUDNN_STATUS_SUCCESS && r.determinism == CUDNN_DETERMINISTIC && r.memory <= kWorkspace &&
        is_allowed(r.mathType, dtype)) {
      return static_cast<int>(r.algo);
    }
  }
  return std::nullopt;
}

}  // namespace

bool convolve(const Issue& issue, DType dtype, ConvolutionPass pass, const ConvolutionSizes& s, const void* first,
              const void* second, void* result) {
  for (const std::int64_t n : {s.batch * s.channels * s.height * s.width, s.batch * s.out_channels * s.out_h * s.out_w,
                               s.out_channels * s.channels * s.kernel_h * s.kernel_w, s.stride, s.padding}) {
    if (n > std::numeric_limits<int>::max()) return false;  // its sizes are ints
  }
  Libraries& with = issue.libraries();
  const cudnnDataType_t type = type_of(dtype);
  const cudnnDataType_t compute = dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const auto number = [](std::int64_t n) { return static_cast<int>(n); };
  const TensorDescriptor x, y;
  const FilterDescriptor w;
  const ConvolutionDescriptor convolution;
  check(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, type, number(s.batch), number(s.channels), number(s.height),
                                   number(s.width)),
        "cudnnSetTensor4dDescriptor");
  check(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, type, number(s.batch), number(s.out_channels), number(s.out_h),
                                   number(s.out_w)),
        "cudnnSetTensor4dDescriptor");
  check(cudnnSetFilter4dDescriptor(w, type, CUDNN_TENSOR_NCHW, number(s.out_channels), number(s.channels),
                                   number(s.kernel_h), number(s.kernel_w)),
        "cudnnSetFilter4dDescriptor");
  check(cudnnSetConvolution2dDescriptor(convolution, number(s.padding), number(s.padding), number(s.stride),
                                        number(s.stride), 1, 1, CUDNN_CROSS_CORRELATION, compute),
        "cudnnSetConvolution2dDescriptor");
  const bool tensor_cores = dtype == DType::f16 || dtype == DType::bf16;
  check(cudnnSetConvolutionMathType(convolution, tensor_cores                           ? CUDNN_TENSOR_OP_MATH
                                                 : dtype == DType::f32 && allows_tf32() ? CUDNN_DEFAULT_MATH
                                                                                        : CUDNN_FMA_MATH),
        "cudnnSetConvolutionMathType");

  const ShapeKey key{static_cast<int>(pass),
                     static_cast<int>(dtype),
                     s.batch,
                     s.channels,
                     s.height,
                     s.width,
                     s.out_channels,
                     s.kernel_h,
                     s.kernel_w,
                     s.stride,
                     s.padding};
  auto found = with.convolutions.find(key);
  if (found == with.convolutions.end()) {
    std::optional<int> chosen;
    int count = 0;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (pass == ConvolutionPass::forward) {
      std::array<cudnnConvolutionFwdAlgoPerf_t, 8> results{};
      status = cudnnGetConvolutionForwardAlgorithm_v7(with.dnn, x, w, convolution, y, 8, &count, results.data());
      if (status == CUDNN_STATUS_SUCCESS) chosen = choose(results, count, dtype);
    } else if (pass == ConvolutionPass::input_grad) {
      std::array<cudnnConvolutionBwdDataAlgoPerf_t, 8> results{};
      status = cudnnGetConvolutionBackwardDataAlgorithm_v7(with.dnn, w, y, convolution, x, 8, &count, results.data());
      if (status == CUDNN_STATUS_SUCCESS) chosen = choose(results, count, dtype);
    } else {
      std::array<cudnnConvolutionBwdFilterAlgoPerf_t, 8> results{};
      status = cudnnGetConvolutionBackwardFilterAlgorithm_v7(with.dnn, x, y, convolution, w, 8, &count, results.data());
      if (status == CUDNN_STATUS_SUCCESS) chosen = choose(results, count, dtype);
    }
    if (!is_unsupported(status)) check(status, "cudnnGetConvolutionAlgorithm_v7");
    found = with.convolutions.emplace(key, chosen).first;
  }
  if (!found->second) return false;
  const int algorithm = *found->second;
  const double one = 1, zero = 0;
  const float one_f32 = 1, zero_f32 = 0;
  const void* const alpha = dtype == DType::f64 ? static_cast<const void*>(&one) : &one_f32;
  const void* const beta = dtype == DType::f64 ? static_cast<const void*>(&zero) : &zero_f32;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const char* call = "";
  if (pass == ConvolutionPass::forward) {
    call = "cudnnConvolutionForward";
    status = cudnnConvolutionForward(with.dnn, alpha, x, first, w, second, convolution,
                                     static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), with.workspace, kWorkspace,
                                     beta, y, result);
  } else if (pass == ConvolutionPass::input_grad) {
    call = "cudnnConvolutionBackwardData";
    status = cudnnConvolutionBackwardData(with.dnn, alpha, w, second, y, first, convolution,
                                          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), with.workspace,
                                          kWorkspace, beta, x, result);
  } else {
    call = "cudnnConvolutionBackwardFilter";
    status = cudnnConvolutionBackwardFilter(with.dnn, alpha, x, first, y, second, convolution,
                                            static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), with.workspace,
                                            kWorkspace, beta, w, result);
  }
  if (is_unsupported(status)) return false;
  check(status, call);
  // cuDNN loads what it needs at the first convolution.
  static const bool once = (Ending::before_what_is_loaded(), true);
  (void)once;
  return true;
}

}  // namespace sluice::cuda
