// Kernels of the double's own tests, and programs that launch them rightly and wrongly.
#pragma once

#include "cuda_runtime.h"

namespace test_kernels {

struct Vectors {
  const float* a = nullptr;
  const float* b = nullptr;
  template <class F>
  void each_pointer(F&& f) {
    f(a);
    f(b);
  }
};

// Each launches one kernel on the stream.
void add(const float* a, const float* b, float* sum, int n, cudaStream_t stream);
void add(const Vectors& vectors, float* sum, int n, cudaStream_t stream);
/// sums[block] = the block's sum by a tree in shared memory; `barrier`: with its barriers.
void block_sums(const float* x, float* sums, int n, unsigned blocks, cudaStream_t stream, bool barrier = true);
/// The same by shuffles.
void warp_sums(const float* x, float* sums, int n, unsigned blocks, cudaStream_t stream);
/// counts[x[i] % 16] += 1
void histogram(const int* x, int* counts, int n, cudaStream_t stream);
void reverse_in_block(int* x, unsigned threads, cudaStream_t stream);
/// The same, in dynamic shared memory.
void reverse_in_dynamic(int* x, unsigned threads, cudaStream_t stream);
/// Allows its empty kernel that much dynamic shared memory.
cudaError_t allow_shared(int bytes);

// Mistakes.
void write_at(float* x, long long index, cudaStream_t stream);
void write_through_const(const float* x, cudaStream_t stream);
void read_vector(const float* x, float* y, cudaStream_t stream);  ///< 16 bytes at x, which may be misaligned
void barrier_without_barriers(cudaStream_t stream);
void barrier_that_some_miss(cudaStream_t stream);
void shuffle_out_of_mask(cudaStream_t stream);
void read_unwritten_shared(float* y, cudaStream_t stream);
void hidden_pointer(float** table, cudaStream_t stream);  ///< through a pointer in the device's memory
void configured(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream);
void many_arguments(cudaStream_t stream);

}  // namespace test_kernels
