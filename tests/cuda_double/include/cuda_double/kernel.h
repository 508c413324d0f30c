// What a kernel's source may use when the host's compiler compiles it: CUDA's words for functions, threads and blocks,
// and the launch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "cuda_double/launch.h"
#include "cuda_double/types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
/// The blocks of a grid run one after the other on one thread of the host, all threads of a block on that one.
#define __shared__ static thread_local

// By value, so that reading them is no access to memory.
#define threadIdx (::cuda_double::thread_index())
#define blockIdx (::cuda_double::block_index())
#define blockDim (::cuda_double::block_size())
#define gridDim (::cuda_double::grid_size())

inline constexpr int warpSize = 32;

namespace cuda_double {
uint3 thread_index() noexcept;
uint3 block_index() noexcept;
dim3 block_size() noexcept;
dim3 grid_size() noexcept;

/// The launch's shared memory beside what the kernel declares: `extern __shared__` has no other form here.
void* dynamic_shared() noexcept;

/// Where in its source a thread meets others.
using Site = std::source_location;
enum class Shuffle : std::uint8_t { sync, down, up, exclusive_or, index, ballot };
void meet_block(const Site& site);
/// What the lane gets of the values that the lanes of the mask bring.
std::uint64_t meet_warp(Shuffle kind, unsigned mask, std::uint64_t value, unsigned parameter, int width,
                        const Site& site);

template <class T>
T shuffle(Shuffle kind, unsigned mask, T value, unsigned parameter, int width, const Site& site) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "a shuffle moves at most 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet_warp(kind, mask, bits, parameter, width, site);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int atomic_add(int* at, int value);
unsigned atomic_add(unsigned* at, unsigned value);
unsigned long long atomic_add(unsigned long long* at, unsigned long long value);
float atomic_add(float* at, float value);
double atomic_add(double* at, double value);
unsigned atomic_max(unsigned* at, unsigned value);
unsigned long long atomic_exchange(unsigned long long* at, unsigned long long value);
unsigned atomic_exchange(unsigned* at, unsigned value);
unsigned atomic_compare_exchange(unsigned* at, unsigned expected, unsigned value);
unsigned long long atomic_compare_exchange(unsigned long long* at, unsigned long long expected,
                                           unsigned long long value);
}  // namespace cuda_double

inline void __syncthreads(cuda_double::Site site = cuda_double::Site::current()) { cuda_double::meet_block(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, cuda_double::Site site = cuda_double::Site::current()) {
  cuda_double::meet_warp(cuda_double::Shuffle::sync, mask, 0, 0, 32, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, cuda_double::Site site = cuda_double::Site::current()) {
  return cuda_double::shuffle(cuda_double::Shuffle::index, mask, value, static_cast<unsigned>(lane), width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_double::Site site = cuda_double::Site::current()) {
  return cuda_double::shuffle(cuda_double::Shuffle::down, mask, value, delta, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_double::Site site = cuda_double::Site::current()) {
  return cuda_double::shuffle(cuda_double::Shuffle::up, mask, value, delta, width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  cuda_double::Site site = cuda_double::Site::current()) {
  return cuda_double::shuffle(cuda_double::Shuffle::exclusive_or, mask, value, static_cast<unsigned>(lanes), width,
                              site);
}
inline unsigned __ballot_sync(unsigned mask, int holds, cuda_double::Site site = cuda_double::Site::current()) {
  return static_cast<unsigned>(
      cuda_double::meet_warp(cuda_double::Shuffle::ballot, mask, holds != 0 ? 1 : 0, 0, 32, site));
}
inline int __any_sync(unsigned mask, int holds, cuda_double::Site site = cuda_double::Site::current()) {
  return __ballot_sync(mask, holds, site) != 0;
}
inline int __all_sync(unsigned mask, int holds, cuda_double::Site site = cuda_double::Site::current()) {
  return (__ballot_sync(mask, holds, site) & mask) == mask;
}

inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// The double's threads make real atomic accesses, because kernels of other streams run at the same time.
inline int atomicAdd(int* at, int value) { return cuda_double::atomic_add(at, value); }
inline unsigned atomicAdd(unsigned* at, unsigned value) { return cuda_double::atomic_add(at, value); }
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return cuda_double::atomic_add(at, value);
}
inline unsigned long long atomicAdd_system(unsigned long long* at, unsigned long long value) {
  return atomicAdd(at, value);
}
inline float atomicAdd(float* at, float value) { return cuda_double::atomic_add(at, value); }
inline double atomicAdd(double* at, double value) { return cuda_double::atomic_add(at, value); }
inline unsigned atomicMax(unsigned* at, unsigned value) { return cuda_double::atomic_max(at, value); }
inline unsigned atomicExch(unsigned* at, unsigned value) { return cuda_double::atomic_exchange(at, value); }
inline unsigned long long atomicExch(unsigned long long* at, unsigned long long value) {
  return cuda_double::atomic_exchange(at, value);
}
inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned value) {
  return cuda_double::atomic_compare_exchange(at, expected, value);
}
inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  return cuda_double::atomic_compare_exchange(at, expected, value);
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  for (unsigned old = *static_cast<volatile unsigned*>(at);;) {
    const unsigned seen = atomicCAS(at, old, old >= last ? 0 : old + 1);
    if (seen == old) return old;
    old = seen;
  }
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

inline std::int32_t __float_as_int(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __int_as_float(std::int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
