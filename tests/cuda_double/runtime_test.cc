// The runtime of the double: streams, events, memory, copies and launches of correct programs.
#include <gtest/gtest.h>

#include <vector>

#include "cuda_double/cuda_double.h"
#include "cuda_runtime.h"

namespace {

#define CHECK_CUDA(call) ASSERT_EQ(call, cudaSuccess) << #call

__global__ void add(const float* a, const float* b, float* sum, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) sum[i] = a[i] + b[i];
}

class Runtime : public ::testing::Test {
 protected:
  void SetUp() override { begin({}); }
  void TearDown() override {
    EXPECT_EQ(cuda_double::take_reports(), std::vector<std::string>{});
    cuda_double::reset();
  }
  static void begin(cuda_double::Options options) {
    options.random_delay = std::chrono::microseconds(50);
    cuda_double::reset(options);
  }
};

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

TEST_F(Runtime, CopiesAddsAndCopiesBackOverTwoStreamsWithAnEvent) {
  constexpr int n = 1000;
  constexpr std::size_t bytes = n * sizeof(float);
  CHECK_CUDA(cudaSetDevice(0));
  const cudaStream_t in = make_stream(), compute = make_stream();
  cudaEvent_t copied = nullptr;
  CHECK_CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  float *host = nullptr, *a = nullptr, *b = nullptr, *sum = nullptr;
  CHECK_CUDA(cudaHostAlloc(&host, 3 * bytes, cudaHostAllocDefault));
  for (int i = 0; i < 2 * n; ++i) host[i] = static_cast<float>(i);
  CHECK_CUDA(cudaMallocAsync(&a, bytes, in));
  CHECK_CUDA(cudaMallocAsync(&b, bytes, in));
  CHECK_CUDA(cudaMallocAsync(&sum, bytes, compute));
  CHECK_CUDA(cudaMemcpyAsync(a, host, bytes, cudaMemcpyHostToDevice, in));
  CHECK_CUDA(cudaMemcpyAsync(b, host + n, bytes, cudaMemcpyHostToDevice, in));
  CHECK_CUDA(cudaEventRecord(copied, in));
  CHECK_CUDA(cudaStreamWaitEvent(compute, copied));
  cuda_double::launch(add, dim3(8), dim3(128), 0, compute, false, a, b, sum, n);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpyAsync(host + 2 * n, sum, bytes, cudaMemcpyDeviceToHost, compute));
  CHECK_CUDA(cudaFreeAsync(a, compute));
  CHECK_CUDA(cudaFreeAsync(b, compute));
  CHECK_CUDA(cudaFreeAsync(sum, compute));
  CHECK_CUDA(cudaStreamSynchronize(compute));
  for (int i = 0; i < n; ++i) ASSERT_EQ(host[2 * n + i], static_cast<float>(2 * i + n)) << i;
  CHECK_CUDA(cudaFreeHost(host));
  CHECK_CUDA(cudaEventDestroy(copied));
  CHECK_CUDA(cudaStreamSynchronize(in));
  CHECK_CUDA(cudaStreamDestroy(in));
  CHECK_CUDA(cudaStreamDestroy(compute));
  const auto live = cuda_double::live();
  EXPECT_EQ(live.blocks + live.pinned + live.streams + live.events, 0u);
}

}  // namespace
