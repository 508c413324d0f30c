// cuDNN: handles, descriptors, and what its calls have in common.
#include <cmath>
#include <new>

#include "cudnn_double.h"

namespace cuda_double {

cudaDataType_t element_type(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
      return CUDA_R_64F;
    case CUDNN_DATA_HALF:
      return CUDA_R_16F;
    case CUDNN_DATA_BFLOAT16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

std::size_t extent(const Tensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (tensor.sizes[i] == 0) return 0;
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return static_cast<std::size_t>(last + 1) * element_bytes(element_type(tensor.type));
}

std::string in_words(const Tensor& tensor) {
  std::string words = "(";
  for (std::size_t i = 0; i < 4; ++i) words += (i ? ", " : "") + std::to_string(tensor.sizes[i]);
  return words + ")";
}

cudnnStatus_t cudnn_status(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return CUDNN_STATUS_SUCCESS;
    case cudaErrorInvalidValue:
      return CUDNN_STATUS_BAD_PARAM;
    case cudaErrorInvalidResourceHandle:
      return CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
    case cudaErrorMemoryAllocation:
      return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    case cudaErrorNotSupported:
      return CUDNN_STATUS_NOT_SUPPORTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return CUDNN_STATUS_NOT_INITIALIZED;
    default:
      return CUDNN_STATUS_EXECUTION_FAILED;
  }
}

CudnnWork::CudnnWork(World& world, ThreadState& thread, cudnnHandle_t handle, const char* name)
    : world_(world),
      handle_(handle ? *handle : throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER}),
      name_(name),
      stream_(library_stream(world, thread, handle->handle, handle->stream, name)) {
  if (handle_.users.fetch_add(1) > 0) world.report(std::string(name) + ": a handle is used by two threads at once");
}
CudnnWork::~CudnnWork() { handle_.users.fetch_sub(1); }

const void* CudnnWork::reads(const Tensor& tensor, const void* at) {
  if (!at) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  operands_.push_back({at, extent(tensor), false});
  return detail::resolve(at);
}
void* CudnnWork::writes(const Tensor& tensor, void* at) {
  if (!at) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  operands_.push_back({at, extent(tensor), true});
  return detail::resolve(at);
}
void* CudnnWork::workspace(void* at, std::size_t given, std::size_t needed) {
  if (needed == 0) return nullptr;
  if (!at || given < needed) {
    refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "a workspace of " + std::to_string(at ? given : 0) +
                                                         " bytes where its algorithm needs " + std::to_string(needed));
  }
  operands_.push_back({at, needed, true, false});
  return detail::resolve(at);
}
void CudnnWork::refuse(cudnnStatus_t status, const std::string& what) {
  world_.report(std::string(name_) + " with " + what);
  throw RefusedByCudnn{status};
}
void CudnnWork::issue(std::function<void()> run) {
  refuse_at_random(world_);
  issue_library_kernel(world_, stream_, name_, operands_, std::move(run));
}

void refuse_at_random(World& world) {
  constexpr cudnnStatus_t kWays[] = {CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED_SHAPE,
                                     CUDNN_STATUS_NOT_SUPPORTED_PADDING};
  if (const std::uint64_t way = is_refused_at_random(world)) throw RefusedByCudnn{kWays[way / 2 % 3]};
}

double factor(const void* at, const Tensor& tensor) {
  if (!at) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
  return load(at, 0, tensor.type == CUDNN_DATA_DOUBLE ? CUDA_R_64F : CUDA_R_32F);
}

double Elements::operator()(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
  const auto& s = tensor.strides;
  const double value =
      load(base, static_cast<std::size_t>(n * s[0] + c * s[1] + h * s[2] + w * s[3]), element_type(tensor.type));
  return tf32 ? to_tf32(static_cast<float>(value)) : value;
}

void Results::put(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, double value) const {
  const auto& s = tensor.strides;
  const auto at = static_cast<std::size_t>(n * s[0] + c * s[1] + h * s[2] + w * s[3]);
  const cudaDataType_t type = element_type(tensor.type);
  // With beta 0 the old value does not count, not even where it is NaN.
  store(base, at, type, beta == 0 ? alpha * value : alpha * value + beta * load(base, at, type));
}

namespace {

template <class T>
cudnnStatus_t make(T** made) {
  if (!made) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *made = new (std::nothrow) T{};
  return *made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}
template <class T>
cudnnStatus_t destroy(T* made) {
  delete made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set(Tensor* tensor, cudnnDataType_t type, cudnnTensorFormat_t format, std::array<int, 4> sizes) {
  if (!tensor) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  for (const int size : sizes) {
    if (size < 1) return CUDNN_STATUS_BAD_PARAM;
  }
  tensor->type = type;
  const std::int64_t c = sizes[1], h = sizes[2], w = sizes[3];
  for (std::size_t i = 0; i < 4; ++i) tensor->sizes[i] = sizes[i];
  if (format == CUDNN_TENSOR_NCHW) {
    tensor->strides = {c * h * w, h * w, w, 1};
  } else {
    tensor->strides = {h * w * c, 1, w * c, c};
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace cuda_double

using namespace cuda_double;

std::size_t cudnnGetVersion() { return 91300; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
#define STATUS(name) \
  case name:         \
    return #name
    STATUS(CUDNN_STATUS_SUCCESS);
    STATUS(CUDNN_STATUS_NOT_INITIALIZED);
    STATUS(CUDNN_STATUS_BAD_PARAM);
    STATUS(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    STATUS(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    STATUS(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
    STATUS(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    STATUS(CUDNN_STATUS_NOT_SUPPORTED);
    STATUS(CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    STATUS(CUDNN_STATUS_NOT_SUPPORTED_PADDING);
    STATUS(CUDNN_STATUS_INTERNAL_ERROR);
    STATUS(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    STATUS(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
    STATUS(CUDNN_STATUS_EXECUTION_FAILED);
#undef STATUS
  }
  return "CUDNN_UNKNOWN_STATUS";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return cudnn_call([&](World& world, ThreadState& thread) {
    if (!handle) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
    auto made = std::make_unique<cudnnContext>();
    make_library_handle(world, thread, made->handle, "cudnnCreate");
    keep_handle(world, made.get());
    *handle = made.release();
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (!handle || !end_handle(handle->handle, handle, "cudnnDestroy")) return CUDNN_STATUS_NOT_INITIALIZED;
  return destroy(handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return cudnn_call([&](World& world, ThreadState&) {
    if (!handle) throw RefusedByCudnn{CUDNN_STATUS_BAD_PARAM_NULL_POINTER};
    if (world.stream(stream, "cudnnSetStream")->device != handle->handle.device) {
      world.refuse(cudaErrorInvalidResourceHandle, "cudnnSetStream with a stream of another device");
    }
    handle->stream = stream;
  });
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (!handle || !stream) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) { return make(tensor); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy(tensor); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return set(tensor, type, format, {n, c, h, w});
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int count,
                                         const int sizes[], const int strides[]) {
  if (count != 4) return CUDNN_STATUS_NOT_SUPPORTED;
  const cudnnStatus_t status = set(tensor, type, CUDNN_TENSOR_NCHW, {sizes[0], sizes[1], sizes[2], sizes[3]});
  for (std::size_t i = 0; i < 4 && status == CUDNN_STATUS_SUCCESS; ++i) tensor->strides[i] = strides[i];
  return status;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) { return make(filter); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return destroy(filter); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return set(filter, type, format, {k, c, h, w});
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int count, const int sizes[]) {
  if (count != 4) return CUDNN_STATUS_NOT_SUPPORTED;
  return set(filter, type, format, {sizes[0], sizes[1], sizes[2], sizes[3]});
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) { return make(convolution); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy(convolution);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  if (!convolution) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  convolution->pads = {pad_h, pad_w};
  convolution->strides = {stride_h, stride_w};
  convolution->dilations = {dilation_h, dilation_w};
  convolution->mode = mode;
  convolution->compute = compute;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int count, const int pads[],
                                              const int strides[], const int dilations[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (count != 2) return CUDNN_STATUS_NOT_SUPPORTED;
  return cudnnSetConvolution2dDescriptor(convolution, pads[0], pads[1], strides[0], strides[1], dilations[0],
                                         dilations[1], mode, compute);
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  if (!convolution) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  if (!convolution) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (groups < 1) return CUDNN_STATUS_BAD_PARAM;
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) { return make(pooling); }
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) { return destroy(pooling); }
cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nans, int window_h, int window_w, int pad_h, int pad_w,
                                          int stride_h, int stride_w) {
  if (!pooling) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (window_h < 1 || window_w < 1 || pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  *pooling = {mode, nans, {window_h, window_w}, {pad_h, pad_w}, {stride_h, stride_w}};
  return CUDNN_STATUS_SUCCESS;
}
