// A seam between CUDA and its double: what kernels are made of, and how they are launched. Kernels themselves are
// written in CUDA's words (threadIdx, __shared__, __syncthreads, __shfl_down_sync), which the double has too.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "sluice/ndarray/push.h"
#include "sluice/operators/backends/cuda/grid.h"
#include "sluice/resources/cuda/backend/cuda_provider.h"

#ifndef __CUDACC__
#include <cuda_double/kernel.h>
#endif

namespace sluice::cuda {

/// What a body of this backend issues to.
class Issue {
 public:
  explicit Issue(Issuing& issuing)
      : issuing_(issuing), provider_(working_provider(issuing.provider())), stream_(working_stream(issuing.stream())) {}
  explicit Issue(const ArrayContext& context) : Issue(context.issuing()) {}

  /// For calls other than launch().
  cudaStream_t stream() const {
    issuing_.issued = true;
    return stream_.stream();
  }
  CudaProvider& provider() const { return provider_; }
  Reporter reporter() const { return provider_.reporter(stream_.device()); }
  Issuing& issuing() const { return issuing_; }
  Libraries& libraries() const {
    issuing_.issued = true;
    return stream_.libraries();
  }
  template <class T>
  T* scratch(std::int64_t count) const {
    return static_cast<T*>(issuing_.scratch(static_cast<std::size_t>(count) * sizeof(T)));
  }
  /// For the calls of CUDA and its libraries.
  void check(cudaError_t code, const char* call) const { provider_.core().check(code, call, stream_.card()); }

  /// Launches a kernel. Arguments are numbers, pointers, and plain structs that name their pointers (each_pointer).
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const Grid& grid, const A&... arguments) const {
    cudaError_t error = try_launch(kernel, grid, arguments...);
    for (int failures = 1; error != cudaSuccess; ++failures) [[unlikely]] {
        issuing_.refused = true;
        if (is_sticky(error) || !issuing_.again(failures)) check(error, "cudaLaunchKernelEx");
        cudaGetLastError();
        error = try_launch(kernel, grid, arguments...);
      }
    issuing_.issued = true;
  }

 private:
  template <class... P, class... A>
  cudaError_t try_launch(void (*kernel)(P...), const Grid& grid, const A&... arguments) const {
#ifdef __CUDACC__
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid.blocks);
    config.blockDim = dim3(grid.threads);
    config.dynamicSmemBytes = grid.shared;
    config.stream = stream_.stream();
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
#else
    cudaGetLastError();  // a library's call that was refused may have left one
    cuda_double::launch(kernel, dim3(grid.blocks), dim3(grid.threads), grid.shared, stream_.stream(), grid.barriers,
                        static_cast<P>(arguments)...);
    return cudaGetLastError();
#endif
  }

  Issuing& issuing_;
  CudaProvider& provider_;
  CudaStream& stream_;
};

/// The calling thread's number in its grid, and the number of threads.
__device__ inline std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t thread_count() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

/// Calls f(i) for 0 <= i < count. F is a plain struct that names its pointers (each_pointer).
template <class F>
__global__ void indexed(std::int64_t count, F f) {
  for (std::int64_t i = thread_number(); i < count; i += thread_count()) f(i);
}
template <class F>
void for_index(const Issue& issue, std::int64_t count, const F& f) {
  if (count > 0) issue.launch(indexed<F>, grid_for(count), count, f);
}

/// Puts an error into the device's ring: the op fails with it. The kernel goes on. Of the errors of one op the first is
/// kept. Where kernels of two streams report in turn, some of them write more: none is lost by that.
__device__ inline void report(const Reporter& to, Finding finding, std::int64_t a = 0, std::int64_t b = 0,
                              std::int64_t c = 0, bool wrote_nothing = false) {
  KernelErrors& ring = *to.errors;
  // Nearly all threads of a kernel that finds many errors end here, with one read for a warp.
  if (*const_cast<volatile unsigned long long*>(&ring.reporter) == to.number) return;
  if (atomicExch(&ring.reporter, to.number) == to.number) return;
  const unsigned long long number = atomicAdd_system(&ring.taken, 1ULL);
  KernelError& entry = ring.entries[number % KernelErrors::kEntries];
  // The host takes an entry whose lap is the same before and after it has read the rest.
  *const_cast<volatile std::uint32_t*>(&entry.lap) = 0;
  __threadfence_system();
  entry.op = to.op;
  entry.part = to.part;
  entry.finding = finding;
  entry.a = a;
  entry.b = b;
  entry.c = c;
  entry.wrote_nothing = wrote_nothing ? 1 : 0;
  __threadfence_system();
  *const_cast<volatile std::uint32_t*>(&entry.lap) = static_cast<std::uint32_t>(number / KernelErrors::kEntries + 1);
  __threadfence_system();
  atomicAdd_system(&ring.count, 1ULL);
}

}  // namespace sluice::cuda
