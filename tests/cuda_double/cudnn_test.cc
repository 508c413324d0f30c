// The double's cuDNN: convolution and pooling against loops, gradients against the forward, and what is refused.
#include "cudnn.h"

#include <cmath>

#include "fixture.h"
#include "sluice/engine/order_observer.h"
#include "sluice/engine/provider.h"

namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

#define CHECK_CUDNN(call) ASSERT_EQ(call, CUDNN_STATUS_SUCCESS) << #call

class Cudnn : public OnDouble {
 protected:
  void SetUp() override {
    OnDouble::SetUp();
    open();
  }
  void TearDown() override {
    cudnnDestroy(handle_);
    for (const auto tensor : tensors_) cudnnDestroyTensorDescriptor(tensor);
    for (const auto filter : filters_) cudnnDestroyFilterDescriptor(filter);
    for (const auto convolution : convolutions_) cudnnDestroyConvolutionDescriptor(convolution);
    for (const auto pooling : poolings_) cudnnDestroyPoolingDescriptor(pooling);
    OnDouble::TearDown();
  }
  void open() {
    CHECK_CUDNN(cudnnCreate(&handle_));
    stream_ = make_stream();
    CHECK_CUDNN(cudnnSetStream(handle_, stream_));
  }
  cudnnTensorDescriptor_t tensor(int n, int c, int h, int w) {
    cudnnTensorDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnCreateTensorDescriptor(&made), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetTensor4dDescriptor(made, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w), CUDNN_STATUS_SUCCESS);
    return tensors_.emplace_back(made);
  }
  cudnnFilterDescriptor_t filter(int k, int c, int h, int w) {
    cudnnFilterDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnCreateFilterDescriptor(&made), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetFilter4dDescriptor(made, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, k, c, h, w), CUDNN_STATUS_SUCCESS);
    return filters_.emplace_back(made);
  }
  cudnnConvolutionDescriptor_t convolution(int pad, int stride, int dilation, int groups,
                                           cudnnMathType_t math = CUDNN_FMA_MATH) {
    cudnnConvolutionDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnCreateConvolutionDescriptor(&made), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetConvolution2dDescriptor(made, pad, pad, stride, stride, dilation, dilation,
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetConvolutionGroupCount(made, groups), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetConvolutionMathType(made, math), CUDNN_STATUS_SUCCESS);
    return convolutions_.emplace_back(made);
  }
  cudnnPoolingDescriptor_t pooling(cudnnPoolingMode_t mode) {
    cudnnPoolingDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnCreatePoolingDescriptor(&made), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetPooling2dDescriptor(made, mode, CUDNN_PROPAGATE_NAN, 3, 3, 1, 1, 2, 2), CUDNN_STATUS_SUCCESS);
    return poolings_.emplace_back(made);
  }
  static std::vector<float> numbers(std::size_t n, int from = 0) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
      x[i] = static_cast<float>(static_cast<int>((i + static_cast<std::size_t>(from)) * 7 % 13) - 5);
    return x;
  }
  static double dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  }

  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<cudnnTensorDescriptor_t> tensors_;
  std::vector<cudnnFilterDescriptor_t> filters_;
  std::vector<cudnnConvolutionDescriptor_t> convolutions_;
  std::vector<cudnnPoolingDescriptor_t> poolings_;
  const float one_ = 1, zero_ = 0;
};

TEST_F(Cudnn, ConvolutionsAreThoseOfLoopsAndGradientsBelongToThem) {
  for (const auto& [pad, stride, dilation, groups] :
       {std::array{0, 1, 1, 1}, std::array{1, 2, 1, 2}, std::array{2, 1, 2, 1}}) {
    const int n = 2, c = 4, k = 6, h = 7, w = 6, r = 3, per_group = c / groups;
    const auto x_desc = tensor(n, c, h, w);
    const auto w_desc = filter(k, per_group, r, r);
    const auto v = convolution(pad, stride, dilation, groups);
    int sizes[4];
    CHECK_CUDNN(cudnnGetConvolution2dForwardOutputDim(v, x_desc, w_desc, sizes, sizes + 1, sizes + 2, sizes + 3));
    const int p = (h + 2 * pad - dilation * (r - 1) - 1) / stride + 1,
              q = (w + 2 * pad - dilation * (r - 1) - 1) / stride + 1;
    ASSERT_EQ(std::vector<int>(sizes, sizes + 4), (std::vector<int>{n, k, p, q}));
    const auto y_desc = tensor(n, k, p, q);
    const auto x = numbers(static_cast<std::size_t>(n * c * h * w)),
               f = numbers(static_cast<std::size_t>(k * per_group * r * r), 3),
               dy = numbers(static_cast<std::size_t>(n * k * p * q), 5);
    float* const on_x = to_device(x, stream_);
    float* const on_f = to_device(f, stream_);
    float* const on_dy = to_device(dy, stream_);
    float* const on_y = allocate<float>(dy.size(), stream_);
    float* const on_dx = allocate<float>(x.size(), stream_);
    float* const on_df = allocate<float>(f.size(), stream_);
    void* const workspace = allocate<char>(2048, stream_);

    cudnnConvolutionFwdAlgoPerf_t found[8];
    int count = 0;
    CHECK_CUDNN(cudnnGetConvolutionForwardAlgorithm_v7(handle_, x_desc, w_desc, v, y_desc, 8, &count, found));
    ASSERT_EQ(count, 3);
    EXPECT_EQ(found[2].status, CUDNN_STATUS_NOT_SUPPORTED);
    std::size_t bytes = 0;
    CHECK_CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle_, x_desc, w_desc, v, y_desc, found[0].algo, &bytes));
    EXPECT_EQ(bytes, found[0].memory);
    CHECK_CUDNN(cudnnConvolutionForward(handle_, &one_, x_desc, on_x, w_desc, on_f, v, found[0].algo, workspace, 2048,
                                        &zero_, y_desc, on_y));
    const auto y = to_host(on_y, dy.size(), stream_);
    for (int in = 0, at = 0; in < n; ++in) {
      for (int out = 0; out < k; ++out) {
        for (int i = 0; i < p; ++i) {
          for (int j = 0; j < q; ++j, ++at) {
            float want = 0;
            for (int channel = 0; channel < per_group; ++channel) {
              for (int a = 0; a < r * r; ++a) {
                const int row = i * stride - pad + a / r * dilation, column = j * stride - pad + a % r * dilation;
                if (row < 0 || row >= h || column < 0 || column >= w) continue;
                const int from = out / (k / groups) * per_group + channel;
                want += x[static_cast<std::size_t>(((in * c + from) * h + row) * w + column)] *
                        f[static_cast<std::size_t>((out * per_group + channel) * r * r + a)];
              }
            }
            ASSERT_EQ(y[static_cast<std::size_t>(at)], want);
          }
        }
      }
    }
    CHECK_CUDNN(cudnnConvolutionBackwardData(handle_, &one_, w_desc, on_f, y_desc, on_dy, v,
                                             CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace, 2048, &zero_, x_desc,
                                             on_dx));
    CHECK_CUDNN(cudnnConvolutionBackwardFilter(handle_, &one_, x_desc, on_x, y_desc, on_dy, v,
                                               CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace, 2048, &zero_, w_desc,
                                               on_df));
    EXPECT_EQ(dot(to_host(on_dx, x.size(), stream_), x), dot(y, dy));
    EXPECT_EQ(dot(to_host(on_df, f.size(), stream_), f), dot(y, dy));
    const auto b_desc = tensor(1, k, 1, 1);
    float* const on_db = allocate<float>(static_cast<std::size_t>(k), stream_);
    CHECK_CUDNN(cudnnConvolutionBackwardBias(handle_, &one_, y_desc, on_dy, &zero_, b_desc, on_db));
    CHECK_CUDNN(cudnnAddTensor(handle_, &one_, b_desc, on_db, &one_, y_desc, on_y));
    const auto db = to_host(on_db, static_cast<std::size_t>(k), stream_);
    const auto with_bias = to_host(on_y, dy.size(), stream_);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      ASSERT_EQ(with_bias[i], y[i] + db[i / static_cast<std::size_t>(p * q) % static_cast<std::size_t>(k)]);
    }
    EXPECT_EQ(dot(db, std::vector<float>(db.size(), 1)), dot(dy, std::vector<float>(dy.size(), 1)));
  }
}

TEST_F(Cudnn, PoolingIsThatOfLoopsAndItsGradientBelongsToIt) {
  for (const auto mode : {CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING,
                          CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING}) {
    const auto x_desc = tensor(1, 2, 5, 6), y_desc = tensor(1, 2, 3, 3);
    const auto pool = pooling(mode);
    const auto x = numbers(60), dy = numbers(18, 4);
    float* const on_x = to_device(x, stream_);
    float* const on_dy = to_device(dy, stream_);
    float* const on_y = allocate<float>(18, stream_);
    float* const on_dx = allocate<float>(60, stream_);
    CHECK_CUDNN(cudnnPoolingForward(handle_, pool, &one_, x_desc, on_x, &zero_, y_desc, on_y));
    CHECK_CUDNN(
        cudnnPoolingBackward(handle_, pool, &one_, y_desc, on_y, y_desc, on_dy, x_desc, on_x, &zero_, x_desc, on_dx));
    const auto y = to_host(on_y, 18, stream_), dx = to_host(on_dx, 60, stream_);
    for (int c = 0, at = 0; c < 2; ++c) {
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j, ++at) {
          float most = -100, sum = 0, count = 0;
          for (int row = std::max(0, 2 * i - 1); row < std::min(5, 2 * i + 2); ++row) {
            for (int column = std::max(0, 2 * j - 1); column < std::min(6, 2 * j + 2); ++column) {
              const float value = x[static_cast<std::size_t>((c * 5 + row) * 6 + column)];
              most = std::max(most, value);
              sum += value;
              count += 1;
            }
          }
          const float want = mode == CUDNN_POOLING_MAX_DETERMINISTIC               ? most
                             : mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING ? sum / 9
                                                                                   : sum / count;
          ASSERT_FLOAT_EQ(y[static_cast<std::size_t>(at)], want);
        }
      }
    }
    EXPECT_NEAR(dot(dx, x), dot(dy, y), 1e-4);
  }
}

TEST_F(Cudnn, WithoutFmaMathFloatsAreRounded) {
  const auto x_desc = tensor(1, 1, 1, 1);
  const auto w_desc = filter(1, 1, 1, 1);
  const float value = 1 + 1.0f / 4096;
  float* const x = to_device(std::vector<float>{value}, stream_);
  float* const w = to_device(std::vector<float>{1}, stream_);
  float* const y = allocate<float>(1, stream_);
  for (const auto math : {CUDNN_FMA_MATH, CUDNN_DEFAULT_MATH}) {
    CHECK_CUDNN(cudnnConvolutionForward(handle_, &one_, x_desc, x, w_desc, w, convolution(0, 1, 1, 1, math),
                                        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &zero_, x_desc, y));
    EXPECT_EQ(to_host(y, 1, stream_)[0] == value, math == CUDNN_FMA_MATH);
  }
}

TEST_F(Cudnn, WrongCallsAreRefusedByName) {
  const auto x_desc = tensor(1, 1, 4, 4), y_desc = tensor(1, 1, 2, 2), wrong = tensor(1, 1, 3, 2);
  const auto w_desc = filter(1, 1, 3, 3);
  const auto v = convolution(0, 1, 1, 1);
  float* const x = to_device(numbers(16), stream_);
  float* const w = to_device(numbers(9), stream_);
  float* const y = allocate<float>(4, stream_);
  const auto forward = [&](cudnnTensorDescriptor_t to, cudnnConvolutionFwdAlgo_t algo) {
    return cudnnConvolutionForward(handle_, &one_, x_desc, x, w_desc, w, v, algo, nullptr, 0, &zero_, to, y);
  };
  EXPECT_EQ(forward(wrong, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  expect_report({"cudnnConvolutionForward", "x (1, 1, 4, 4), w (1, 1, 3, 3), y (1, 1, 3, 2)"});
  EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
            CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  expect_report({"a workspace of 0 bytes"});
  EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM), CUDNN_STATUS_SUCCESS);
  CHECK_CUDNN(cudnnConvolutionBackwardData(handle_, &one_, w_desc, w, y_desc, y, v, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
                                           nullptr, 0, &zero_, x_desc, x));
  expect_report({"cudnnConvolutionBackwardData", "not deterministic"});
  {
    const sluice::MemoryUse uses[] = {{x, 64, false}, {w, 36, false}};
    const sluice::MemoryUses declared(uses);
    EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM), CUDNN_STATUS_SUCCESS);
    expect_report({"writes 16 bytes that its op did not declare"});
  }
  CHECK_CUDA(cudaSetDevice(1));
  EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
  expect_report({"while the current device is 1"});
  CHECK_CUDA(cudaSetDevice(0));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  const cudaStream_t other = make_stream();
  CHECK_CUDNN(cudnnSetStream(handle_, other));
  EXPECT_EQ(forward(y_desc, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM), CUDNN_STATUS_SUCCESS);
  expect_report({"a handle is shared by two streams"});
  CHECK_CUDA(cudaStreamSynchronize(other));
}

}  // namespace
