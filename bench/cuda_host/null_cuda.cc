// CUDA as nothing: one card that is done at once, with memory that is addresses only. A launch is a counter.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cuda.h"
#include "cuda_double/kernel.h"
#include "cuda_runtime.h"

namespace {
std::atomic<std::uintptr_t> next_address{std::uintptr_t{1} << 44};
char any_handle;

CUresult write_value(CUstream, CUdeviceptr word, cuuint64_t value, unsigned) {
  __atomic_store_n(reinterpret_cast<cuuint64_t*>(word), value, __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}
}  // namespace

std::atomic<std::uint64_t> launches{0};

namespace cuda_double {
void count_launch(const void*, dim3, dim3, std::size_t, cudaStream_t, void** arguments) noexcept {
  asm volatile("" : : "r"(arguments) : "memory");  // the compiler writes them
  launches.store(launches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
// No kernel runs.
uint3 thread_index() noexcept { std::abort(); }
uint3 block_index() noexcept { std::abort(); }
dim3 block_size() noexcept { std::abort(); }
dim3 grid_size() noexcept { std::abort(); }
void* dynamic_shared() noexcept { std::abort(); }
void meet_block(const Site&) { std::abort(); }
std::uint64_t meet_warp(Shuffle, unsigned, std::uint64_t, unsigned, int, const Site&) { std::abort(); }
int atomic_add(int*, int) { std::abort(); }
unsigned atomic_add(unsigned*, unsigned) { std::abort(); }
unsigned long long atomic_add(unsigned long long*, unsigned long long) { std::abort(); }
float atomic_add(float*, float) { std::abort(); }
double atomic_add(double*, double) { std::abort(); }
unsigned atomic_max(unsigned*, unsigned) { std::abort(); }
unsigned long long atomic_exchange(unsigned long long*, unsigned long long) { std::abort(); }
unsigned atomic_exchange(unsigned*, unsigned) { std::abort(); }
unsigned atomic_compare_exchange(unsigned*, unsigned, unsigned) { std::abort(); }
unsigned long long atomic_compare_exchange(unsigned long long*, unsigned long long, unsigned long long) {
  std::abort();
}
}  // namespace cuda_double

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "?"; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(static_cast<void*>(properties), 0, sizeof *properties);
  properties->totalGlobalMem = std::size_t{1} << 40;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = reinterpret_cast<cudaMemPool_t>(&any_handle);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&any_handle);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&any_handle);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t) {
  *block = reinterpret_cast<void*>(next_address.fetch_add((bytes + 255) / 256 * 256));
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) {
  *block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *block ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* block) { return std::free(block), cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) { return cudaErrorInvalidValue; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const bool known = std::strcmp(name, "cuStreamWriteValue64") == 0;
  *function = known ? reinterpret_cast<void*>(&write_value) : nullptr;
  *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, std::size_t) { return cudaSuccess; }
