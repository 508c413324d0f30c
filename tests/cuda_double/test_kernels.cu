#include "test_kernels.h"

namespace test_kernels {
namespace {

constexpr unsigned kThreads = 128;

__device__ int index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
unsigned blocks_for(int n) { return (static_cast<unsigned>(n) + kThreads - 1) / kThreads; }

__global__ void add_kernel(const float* a, const float* b, float* sum, int n) {
  const int i = index();
  if (i < n) sum[i] = a[i] + b[i];
}

__global__ void add_vectors_kernel(Vectors v, float* sum, int n) {
  const int i = index();
  if (i < n) sum[i] = v.a[i] + v.b[i];
}

template <bool kBarrier>
__global__ void block_sums_kernel(const float* x, float* sums, int n) {
  __shared__ float part[kThreads];
  const int i = index();
  part[threadIdx.x] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    if (kBarrier) __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

__global__ void warp_sums_kernel(const float* x, float* sums, int n) {
  __shared__ float part[kThreads / 32];
  const int i = index();
  float sum = i < n ? x[i] : 0.0f;
  for (unsigned delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < kThreads / 32 ? part[threadIdx.x] : 0.0f;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void histogram_kernel(const int* x, int* counts, int n) {
  __shared__ int own[16];
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  __syncthreads();
  const int i = index();
  if (i < n) atomicAdd(&own[x[i] % 16], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

__global__ void reverse_kernel(int* x) {
  __shared__ int turned[1024];
  const unsigned n = blockDim.x;
  turned[n - 1 - threadIdx.x] = x[blockIdx.x * n + threadIdx.x];
  __syncthreads();
  x[blockIdx.x * n + threadIdx.x] = turned[threadIdx.x];
}

__global__ void reverse_dynamic_kernel(int* x) {
  int* const turned = static_cast<int*>(cuda_double::dynamic_shared());
  const unsigned n = blockDim.x;
  turned[n - 1 - threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = turned[threadIdx.x];
}

__global__ void write_at_kernel(float* x, long long at) { x[at] = 1.0f; }
__global__ void write_through_const_kernel(const float* x) { *const_cast<float*>(x) = 1.0f; }
__global__ void read_vector_kernel(const float* x, float* y) {
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x);
}
__global__ void barrier_kernel() { __syncthreads(); }
__global__ void missed_barrier_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void mask_kernel() { __shfl_sync(1u, 1.0f, 0); }
__global__ void unwritten_kernel(float* y) {
  __shared__ float part[kThreads];
  if (threadIdx.x != 5) part[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = part[threadIdx.x];
}
__global__ void hidden_kernel(float** table) { *table[0] = 1.0f; }
__global__ void empty_kernel() {}
struct Large {
  char bytes[4097];
};
__global__ void large_kernel(Large) {}

}  // namespace

using cuda_double::launch;

void add(const float* a, const float* b, float* sum, int n, cudaStream_t stream) {
  launch(add_kernel, blocks_for(n), kThreads, 0, stream, false, a, b, sum, n);
}
void add(const Vectors& vectors, float* sum, int n, cudaStream_t stream) {
  launch(add_vectors_kernel, blocks_for(n), kThreads, 0, stream, false, vectors, sum, n);
}
void block_sums(const float* x, float* sums, int n, unsigned blocks, cudaStream_t stream, bool barrier) {
  launch(barrier ? block_sums_kernel<true> : block_sums_kernel<false>, blocks, kThreads, 0, stream, true, x, sums, n);
}
void warp_sums(const float* x, float* sums, int n, unsigned blocks, cudaStream_t stream) {
  launch(warp_sums_kernel, blocks, kThreads, 0, stream, true, x, sums, n);
}
void histogram(const int* x, int* counts, int n, cudaStream_t stream) {
  launch(histogram_kernel, blocks_for(n), kThreads, 0, stream, true, x, counts, n);
}
void reverse_in_block(int* x, unsigned threads, cudaStream_t stream) {
  launch(reverse_kernel, 1, threads, 0, stream, true, x);
}
void reverse_in_dynamic(int* x, unsigned threads, cudaStream_t stream) {
  launch(reverse_dynamic_kernel, 1, threads, threads * sizeof(int), stream, true, x);
}
cudaError_t allow_shared(int bytes) {
  return cudaFuncSetAttribute(empty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
void write_at(float* x, long long at, cudaStream_t stream) { launch(write_at_kernel, 1, 1, 0, stream, false, x, at); }
void write_through_const(const float* x, cudaStream_t stream) {
  launch(write_through_const_kernel, 1, 1, 0, stream, false, x);
}
void read_vector(const float* x, float* y, cudaStream_t stream) {
  launch(read_vector_kernel, 1, 1, 0, stream, false, x, y);
}
void barrier_without_barriers(cudaStream_t stream) { launch(barrier_kernel, 2, 32, 0, stream, false); }
void barrier_that_some_miss(cudaStream_t stream) { launch(missed_barrier_kernel, 1, 64, 0, stream, true); }
void shuffle_out_of_mask(cudaStream_t stream) { launch(mask_kernel, 1, 32, 0, stream, true); }
void read_unwritten_shared(float* y, cudaStream_t stream) { launch(unwritten_kernel, 1, kThreads, 0, stream, true, y); }
void hidden_pointer(float** table, cudaStream_t stream) { launch(hidden_kernel, 1, 1, 0, stream, false, table); }
void configured(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  launch(empty_kernel, grid, block, shared_bytes, stream, false);
}
void many_arguments(cudaStream_t stream) { launch(large_kernel, 1, 1, 0, stream, false, Large{}); }

}  // namespace test_kernels
