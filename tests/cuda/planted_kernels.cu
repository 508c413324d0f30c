#include "planted_kernels.h"

#include <cstring>
#include <vector>

#include "sluice/engine/order_observer.h"
#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/libraries.h"

namespace sluice::testing {
namespace {

using cuda::Grid;
using cuda::Issue;

bool planted(const ArrayContext& c) { return c.attributes<Planting>().planted; }

constexpr unsigned kThreads = 64;  ///< as many as outputs have elements
constexpr Grid kOneThread{.blocks = 1, .threads = 1};
constexpr Grid kThreadsThatMeet{.blocks = 1, .threads = kThreads, .barriers = true};

template <class T>
__global__ void write_at(T* x, std::int64_t at) {
  x[at] = T(1);
}
__global__ void write_at_32(std::uint8_t* x, std::int64_t at) { x[static_cast<int>(at)] = 1; }
__global__ void read_at(const float* x, std::int64_t at, float* y) { *y = x[at]; }
__global__ void load_vector(const float* x, float* y) {
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(x);
}

__global__ void nothing() {}

/// Writes zeros to all of y.
struct Output {
  float* y;
  bool named;
  template <class Visit>
  void each_pointer(Visit visit) {
    if (named) visit(y);
  }
};
__global__ void clear(Output to) { to.y[threadIdx.x] = 0; }

/// y = the sums of neighbours, one of which another warp has put into shared memory.
template <bool kBarrier>
__global__ void neighbours(const float* x, float* y) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = part[threadIdx.x] + part[kThreads - 1 - threadIdx.x];
}
template <bool kAll>
__global__ void fill_and_turn(const float* x, float* y) {
  __shared__ float part[kThreads];
  if (kAll || threadIdx.x != 5) part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = part[kThreads - 1 - threadIdx.x];
}
template <bool kAll>
__global__ void meet_in_two_places(float* y) {
  if (kAll || threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 0;
}
__global__ void shuffle(unsigned mask, float* y) {
  y[threadIdx.x] = __shfl_sync(mask, static_cast<float>(threadIdx.x), 0);
}

float* out(const ArrayContext& c) { return c.output().as<float>(); }
const float* in(const ArrayContext& c) { return c.input(0).as<float>(); }
std::size_t bytes_out(const ArrayContext& c) { return static_cast<std::size_t>(c.output().count()) * sizeof(float); }

/// Pinned memory as large as the output, full of zeros. It goes when the op's stream has finished.
struct Pinned {
  explicit Pinned(const ArrayContext& c)
      : issue(c), bytes(bytes_out(c)), data(issue.provider().allocate_pinned(bytes)) {
    std::memset(data, 0, bytes);
  }
  ~Pinned() {
    cudaStreamSynchronize(issue.stream());
    issue.provider().free_pinned(data, bytes);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  const Issue issue;
  const std::size_t bytes;
  void* const data;
};

/// A block of the device's memory, as large as the output, that the op takes for itself.
void* take_block(const ArrayContext& c) { return c.provider().allocate(c.device().index, bytes_out(c), &c.stream()); }

}  // namespace

// ---- what a kernel touches

void writes_behind_its_output(ArrayContext& c) {
  Issue(c).launch(write_at<float>, kOneThread, out(c), c.output().count() - (planted(c) ? 0 : 1));
}
void writes_its_input(ArrayContext& c) {
  Issue(c).launch(write_at<float>, kOneThread, planted(c) ? const_cast<float*>(in(c)) : out(c), std::int64_t{0});
}
void reads_what_is_not_declared(ArrayContext& c) {
  Issue(c).launch(read_at, kOneThread, in(c), c.input(0).count() - (planted(c) ? 0 : 1), out(c));
}
void loads_a_misaligned_vector(ArrayContext& c) {
  Issue(c).launch(load_vector, kOneThread, in(c) + (planted(c) ? 1 : 4), out(c));
}
void counts_with_32_bits(ArrayContext& c) {
  Issue(c).launch(planted(c) ? write_at_32 : write_at<std::uint8_t>, kOneThread, c.output().as<std::uint8_t>(),
                  c.output().count() - 1);
}
void hides_a_pointer(ArrayContext& c) {
  Issue(c).launch(clear, {.blocks = 1, .threads = kThreads}, Output{out(c), !planted(c)});
}
void leaves_a_barrier_out(ArrayContext& c) {
  Issue(c).launch(planted(c) ? neighbours<false> : neighbours<true>, kThreadsThatMeet, in(c), out(c));
}
void reads_unwritten_shared_memory(ArrayContext& c) {
  Issue(c).launch(planted(c) ? fill_and_turn<false> : fill_and_turn<true>, kThreadsThatMeet, in(c), out(c));
}

// ---- launches

void lets_some_threads_miss_a_barrier(ArrayContext& c) {
  Issue(c).launch(planted(c) ? meet_in_two_places<false> : meet_in_two_places<true>, kThreadsThatMeet, out(c));
}
void shuffles_out_of_its_mask(ArrayContext& c) {
  Issue(c).launch(shuffle, kThreadsThatMeet, planted(c) ? 1U : 0xffffffffU, out(c));
}
void does_not_say_that_threads_meet(ArrayContext& c) {
  Issue(c).launch(neighbours<true>, {.blocks = 1, .threads = kThreads, .barriers = !planted(c)}, in(c), out(c));
}
void launches_too_many_threads(ArrayContext& c) {
  Issue(c).launch(nothing, {.blocks = 1, .threads = planted(c) ? 1025U : 1024U});
}
void wants_too_much_shared_memory(ArrayContext& c) {
  Issue(c).launch(nothing, {.blocks = 1, .threads = 1, .shared = (48U << 10) + (planted(c) ? 1U : 0U)});
}
void gives_a_kernel_memory_of_the_host(ArrayContext& c) {
  const float number = 0;
  Issue(c).launch(read_at, kOneThread, planted(c) ? &number : in(c), std::int64_t{0}, out(c));
}
void reads_its_input(ArrayContext& c) { Issue(c).launch(read_at, kOneThread, in(c), std::int64_t{0}, out(c)); }

// ---- copies, and memory

void copies_from_pageable_memory(ArrayContext& c) {
  const Issue issue(c);
  const std::vector<std::byte> pageable(bytes_out(c));
  const Pinned pinned(c);
  issue.check(cudaMemcpyAsync(out(c), planted(c) ? pageable.data() : pinned.data, pinned.bytes, cudaMemcpyHostToDevice,
                              issue.stream()),
              "cudaMemcpyAsync");
}
void names_the_wrong_kind_of_copy(ArrayContext& c) {
  const Issue issue(c);
  issue.check(cudaMemcpyAsync(out(c), in(c), bytes_out(c),
                              planted(c) ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice, issue.stream()),
              "cudaMemcpyAsync");
}
void copies_too_much(ArrayContext& c) {
  const Issue issue(c);
  issue.check(cudaMemcpyAsync(out(c), in(c), bytes_out(c) + (planted(c) ? sizeof(float) : 0), cudaMemcpyDeviceToDevice,
                              issue.stream()),
              "cudaMemcpyAsync");
}
void changes_a_pinned_buffer_before_its_copy(ArrayContext& c) {
  const Issue issue(c);
  const Pinned pinned(c);
  issue.check(cudaMemcpyAsync(out(c), pinned.data, pinned.bytes, cudaMemcpyHostToDevice, issue.stream()),
              "cudaMemcpyAsync");
  const auto change = [&] { std::memset(pinned.data, 1, pinned.bytes); };
  if (planted(c)) change();
  *c.attributes<Planting>().issued = true;
  cudaStreamSynchronize(issue.stream());
  if (!planted(c)) change();
}
void frees_a_block_early(ArrayContext& c) {
  void* const block = take_block(c);
  c.provider().fill(block, std::byte{0}, bytes_out(c), &c.stream());
  c.provider().free(c.device().index, block, bytes_out(c), planted(c) ? nullptr : &c.stream());
}
void uses_a_block_after_its_free(ArrayContext& c) {
  void* const block = take_block(c);
  const auto free = [&] { c.provider().free(c.device().index, block, bytes_out(c), &c.stream()); };
  if (planted(c)) free();
  const MemoryUse use{block, bytes_out(c), true};
  const MemoryUses declared({&use, 1});
  Issue(c).launch(write_at<float>, kOneThread, static_cast<float*>(block), std::int64_t{0});
  if (!planted(c)) free();
}

// ---- streams, events, and calls that wait for a whole card

void issues_to_the_null_stream(ArrayContext& c) {
  const Issue issue(c);
  issue.check(cudaMemsetAsync(out(c), 0, bytes_out(c), planted(c) ? nullptr : issue.stream()), "cudaMemsetAsync");
}
void makes_a_blocking_stream(ArrayContext& c) {
  cudaStream_t made = nullptr;
  Issue(c).check(cudaStreamCreateWithFlags(&made, planted(c) ? cudaStreamDefault : cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags");
  cudaStreamDestroy(made);
}
void destroys_a_stream_in_flight(ArrayContext& c) {
  cudaStream_t made = nullptr;
  SLUICE_CUDA(cudaStreamCreateWithFlags, &made, cudaStreamNonBlocking);
  void* block = nullptr;
  SLUICE_CUDA(cudaMallocAsync, &block, bytes_out(c), made);
  SLUICE_CUDA(cudaMemsetAsync, block, 0, bytes_out(c), made);
  SLUICE_CUDA(cudaFreeAsync, block, made);
  if (!planted(c)) SLUICE_CUDA(cudaStreamSynchronize, made);
  cudaStreamDestroy(made);
}
void records_an_event_of_another_card(ArrayContext& c) {
  const Issue issue(c);
  cudaEvent_t made = nullptr;
  SLUICE_CUDA(cudaSetDevice, planted(c) ? 1 : 0);
  const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  SLUICE_CUDA(cudaSetDevice, 0);
  issue.check(error, "cudaEventCreateWithFlags");
  const cudaError_t recorded = cudaEventRecord(made, issue.stream());
  cudaEventDestroy(made);
  issue.check(recorded, "cudaEventRecord");
}
void allocates_with_a_wait(ArrayContext& c) {
  const Issue issue(c);
  void* block = nullptr;
  issue.check(planted(c) ? cudaMalloc(&block, bytes_out(c)) : cudaMallocAsync(&block, bytes_out(c), issue.stream()),
              "cudaMalloc");
  cudaFreeAsync(block, issue.stream());
}
void waits_for_the_whole_card(ArrayContext& c) {
  const Issue issue(c);
  issue.check(planted(c) ? cudaDeviceSynchronize() : cudaStreamSynchronize(issue.stream()), "cudaDeviceSynchronize");
}
void makes_a_handle(ArrayContext& c) {
  cublasLtHandle_t made = Issue(c).libraries().blas;
  if (!planted(c)) return;
  cuda::check(cublasLtCreate(&made), "cublasLtCreate");
  cublasLtDestroy(made);
}

void gives_a_wrong_leading_dimension(ArrayContext& c) {
  const Issue issue(c);
  const auto n = static_cast<std::uint64_t>(c.input(0).shape[0]);
  const auto leading = static_cast<std::int64_t>(n);
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, others = nullptr;
  cuda::check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  cuda::check(cublasLtMatrixLayoutCreate(&first, CUDA_R_32F, n, n, leading + (planted(c) ? 1 : 0)), "layout");
  cuda::check(cublasLtMatrixLayoutCreate(&others, CUDA_R_32F, n, n, leading), "layout");
  const float one = 1, zero = 0;
  const cublasStatus_t status =
      cublasLtMatmul(issue.libraries().blas, product, &one, in(c), first, in(c), others, &zero, out(c), others, out(c),
                     others, nullptr, nullptr, 0, issue.stream());
  cublasLtMatrixLayoutDestroy(first);
  cublasLtMatrixLayoutDestroy(others);
  cublasLtMatmulDescDestroy(product);
  cuda::check(status, "cublasLtMatmul");
}

}  // namespace sluice::testing
