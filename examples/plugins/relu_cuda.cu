// A kernel for GPUs, compiled by nvcc into a program or a library that it loads. This one is of relu in f32.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "sluice/operators/define.h"

namespace mine {
namespace {

using namespace sluice;

constexpr Backend kOwn{.name = "mine", .device = DeviceKind::gpu, .rank = 20};

__global__ void relu_all(float* y, const float* x, std::int64_t n) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads) {
    y[i] = x[i] < 0 ? 0 : x[i];
  }
}

/// Runs on the host, issues to the op's stream, and waits for nothing.
void relu(ArrayContext& c) {
  const std::int64_t n = c.output().count();
  if (n == 0) return;
  const auto stream = static_cast<cudaStream_t>(c.stream().native());
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((n + 255) / 256, 1 << 14));
  relu_all<<<blocks, 256, 0, stream>>>(c.output().as<float>(), c.input(0).as<float>(), n);
  if (const cudaError_t error = cudaGetLastError()) throw std::runtime_error(cudaGetErrorString(error));
}

[[maybe_unused]] const bool loaded = [] {
  const Operator& row = Registry::instance().get("relu");
  row.add_kernel(kOwn, {DType::f32}, {.run = relu, .dense_inputs = true, .dense_outputs = true, .issues = true});
  return true;
}();

}  // namespace
}  // namespace mine
