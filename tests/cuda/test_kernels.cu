// Bodies of ops of the tests' own, for GPUs.
#include "test_kernels.h"

#include <vector>

#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/libraries.h"

namespace sluice::testing {
namespace {

using cuda::Issue;

struct SumInto {
  const float* x;
  float* y;
  std::int64_t count, filled;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(y);
  }
  __device__ void operator()(std::int64_t) const {
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += x[i];
    for (std::int64_t i = 0; i < filled; ++i) y[i] = sum;
  }
};

struct WriteAt {
  float* x;
  std::int64_t at;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
  }
  __device__ void operator()(std::int64_t) const { x[at] = 1; }
};

/// y = the sums of neighbours, one of which another warp has put into shared memory.
__global__ void neighbours(const float* x, float* y) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = part[threadIdx.x] + part[63 - threadIdx.x];
}

}  // namespace

void writes_behind_its_output(ArrayContext& c) {
  Issue(c).launch(cuda::indexed<WriteAt>, {.blocks = 1, .threads = 1}, std::int64_t{1},
                  WriteAt{c.output().as<float>(), c.output().count()});
}
void writes_its_input(ArrayContext& c) {
  Issue(c).launch(cuda::indexed<WriteAt>, {.blocks = 1, .threads = 1}, std::int64_t{1},
                  WriteAt{c.input(0).as<float>(), 0});
}
void copies_from_pageable_memory(ArrayContext& c) {
  const Issue issue(c);
  const std::vector<float> values(static_cast<std::size_t>(c.output().count()), 1.0F);
  issue.check(cudaMemcpyAsync(c.output().data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice,
                              issue.stream()),
              "cudaMemcpyAsync");
}
void leaves_a_barrier_out(ArrayContext& c) {
  Issue(c).launch(neighbours, {.blocks = 1, .threads = 64, .barriers = true}, c.input(0).as<float>(),
                  c.output().as<float>());
}
void gives_a_wrong_leading_dimension(ArrayContext& c) {
  const Issue issue(c);
  const auto n = static_cast<std::uint64_t>(c.input(0).shape[0]);
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t wrong = nullptr, right = nullptr;
  cuda::check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  cuda::check(cublasLtMatrixLayoutCreate(&wrong, CUDA_R_32F, n, n, static_cast<std::int64_t>(n) + 1), "layout");
  cuda::check(cublasLtMatrixLayoutCreate(&right, CUDA_R_32F, n, n, static_cast<std::int64_t>(n)), "layout");
  const float one = 1, zero = 0;
  const cublasStatus_t status =
      cublasLtMatmul(issue.libraries().blas, product, &one, c.input(0).data, wrong, c.input(0).data, right, &zero,
                     c.output().data, right, c.output().data, right, nullptr, nullptr, 0, issue.stream());
  cublasLtMatrixLayoutDestroy(wrong);
  cublasLtMatrixLayoutDestroy(right);
  cublasLtMatmulDescDestroy(product);
  cuda::check(status, "cublasLtMatmul");
}

void fill_with_sums(ArrayContext& c) {
  const Issue issue(c);
  for (int k = 0; k < 2; ++k) {
    const TensorView &x = c.input(k), &y = c.output(k);
    issue.launch(cuda::indexed<SumInto>, {.blocks = 1, .threads = 1}, std::int64_t{1},
                 SumInto{x.as<float>(), y.as<float>(), x.count(), y.count()});
  }
}

}  // namespace sluice::testing
