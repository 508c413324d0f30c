// What a kernel's source may use when the host's compiler compiles it: CUDA's words for functions, threads and blocks,
// and the launch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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
}  // namespace cuda_double

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
