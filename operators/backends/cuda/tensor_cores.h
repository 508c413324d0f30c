// A seam between CUDA and its double. A warp's products of small matrices of 16-bit elements, on tensor cores:
// mma.sync.m16n8k16 and what it takes to feed it, as the PTX ISA has them. Without tensor cores that know both 16-bit
// types (before compute capability 8, and on the double) the same functions exchange elements between lanes: the same
// results but for roundings of sums, slowly. All lanes of a warp call them together.
//
// A lane's elements: with row = lane / 4 and column = lane % 4 * 2, two elements in each register, of a left matrix (16
// x 16) those from (row, column), (row + 8, column), (row, column + 8) and (row + 8, column + 8) on; of a right matrix
// (16 x 8), whose columns are read, those below (column, row) and (column + 8, row); of the sums (16 x 8) the numbers
// (row, column), (row, column + 1), (row + 8, column) and (row + 8, column + 1).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "sluice/ndarray/half.h"
#include "sluice/operators/backends/cuda/kernel.h"

/// Before a loop over what lies in registers, whose indices the compiler must know; and before one that is to stay a
/// loop.
#ifdef __CUDACC__
#define SLUICE_UNROLL _Pragma("unroll")
#define SLUICE_NO_UNROLL _Pragma("unroll 1")
#define SLUICE_SOME_UNROLL _Pragma("unroll 4")
#else
#define SLUICE_NO_UNROLL
#define SLUICE_SOME_UNROLL
#define SLUICE_UNROLL
#endif
#if defined(__CUDA_ARCH__)
#define SLUICE_TENSOR_CORES (__CUDA_ARCH__ >= 800)
#else
#define SLUICE_TENSOR_CORES 0
#endif

namespace sluice::cuda {

inline constexpr unsigned kWarp = 0xffffffffU;

/// What is copied at once to shared memory: 8 elements of 16 bits. It has no constructor, as shared memory wants.
struct alignas(16) Chunk {
  unsigned words[4];
};

/// Two numbers as elements of T, the first in the lower half.
template <class T>
__device__ inline unsigned pair_of(float low, float high) {
#if SLUICE_TENSOR_CORES
  unsigned both;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
#else
  return T(low).bits | static_cast<unsigned>(T(high).bits) << 16U;
#endif
}
/// The lower or the upper element of two, as a number.
template <class T>
__device__ inline float number_in(unsigned pair, bool upper) {
  T x;
  x.bits = static_cast<std::uint16_t>(upper ? pair >> 16U : pair);
  return static_cast<float>(x);
}

/// 2^x, to some 2 units in the last place of a float; what is below 2^-126 is 0.
__device__ inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// sums += left . right, for elements of T.
template <class T>
__device__ inline void add_product(float (&sums)[4], const unsigned (&left)[4], unsigned right, unsigned right_below) {
#if SLUICE_TENSOR_CORES
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(right_below));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right), "r"(right_below));
  }
#else
  const auto both = [](unsigned a, unsigned b) { return a | static_cast<unsigned long long>(b) << 32U; };
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, column = lane % 4 * 2;
  for (int from = 0; from < 4; ++from) {  // the lanes that share rows of the left matrix, and columns of the right
    const unsigned long long a = __shfl_sync(kWarp, both(left[0], left[1]), row * 4 + from),
                             after = __shfl_sync(kWarp, both(left[2], left[3]), row * 4 + from),
                             b = __shfl_sync(kWarp, both(right, right_below), column * 4 + from),
                             next = __shfl_sync(kWarp, both(right, right_below), column * 4 + 4 + from);
    for (int i = 0; i < 4; ++i) {
      const unsigned long long of_column = i % 2 == 0 ? b : next;
      const int shift = i / 2 * 32;
      for (int k = 0; k < 4; ++k) {
        const unsigned x = static_cast<unsigned>((k < 2 ? a : after) >> shift),
                       y = static_cast<unsigned>(of_column >> (k / 2 * 32));
        sums[i] = std::fma(number_in<T>(x, k % 2 != 0), number_in<T>(y, k % 2 != 0), sums[i]);
      }
    }
  }
#endif
}

/// Four matrices of 8 x 8 elements in shared memory: lane 8 i + r has the address of row r of matrix i, which is
/// aligned to 16 bytes. A lane gets of each the elements from (lane / 4, lane % 4 * 2) on; of the transposed one, if
/// that is asked for.
template <bool Transposed>
__device__ inline void load_matrices(unsigned (&to)[4], const Chunk* row) {
#if SLUICE_TENSOR_CORES
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#else
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane / 4, second = lane % 4 * 2;
  const auto mine = reinterpret_cast<unsigned long long>(row);
  const auto element = [](unsigned long long address, int column) {
    std::uint16_t bits;
    std::memcpy(&bits, reinterpret_cast<const char*>(address) + column * 2, sizeof bits);
    return static_cast<unsigned>(bits);
  };
  for (int i = 0; i < 4; ++i) {
    if constexpr (Transposed) {
      const unsigned long long above = __shfl_sync(kWarp, mine, i * 8 + second),
                               below = __shfl_sync(kWarp, mine, i * 8 + second + 1);
      to[i] = element(above, first) | element(below, first) << 16U;
    } else {
      const unsigned long long from = __shfl_sync(kWarp, mine, i * 8 + first);
      to[i] = element(from, second) | element(from, second + 1) << 16U;
    }
  }
#endif
}

/// Begins to copy a chunk from global to shared memory, both aligned to 16 bytes; zeros, where it is not inside of what
/// is copied. `from` is an address of that in any case.
__device__ inline void begin_copy(Chunk* to, const void* from, bool inside) {
#if SLUICE_TENSOR_CORES
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)),
                 "r"(inside ? 16 : 0)
               : "memory");
#else
  *to = inside ? *static_cast<const Chunk*>(from) : Chunk{};
#endif
}
/// Waits for the copies that the calling thread began.
__device__ inline void end_copies() {
#if SLUICE_TENSOR_CORES
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

/// Of two elements of T: ones in the places of those that are not finite and, if they are numbers, have the sign.
template <class T>
__device__ inline unsigned ones_where_infinite(unsigned pair, bool negative) {
  constexpr unsigned exponent = std::is_same_v<T, BFloat16> ? 0x7f80U : 0x7c00U;
  constexpr unsigned one = std::is_same_v<T, BFloat16> ? 0x3f80U : 0x3c00U;
  unsigned ones = 0;
  for (unsigned shift = 0; shift < 32; shift += 16) {
    const unsigned bits = pair >> shift & 0xffffU;
    const bool nan = (bits & 0x7fffU) > exponent;
    if (nan || bits == (negative ? exponent | 0x8000U : exponent)) ones |= one << shift;
  }
  return ones;
}
/// Whether both elements are finite numbers: 0, or a bit for each that is not.
template <class T>
__device__ inline unsigned not_finite(unsigned pair) {
  constexpr unsigned exponents = std::is_same_v<T, BFloat16> ? 0x7f807f80U : 0x7c007c00U;
  constexpr unsigned last = std::is_same_v<T, BFloat16> ? 0x00800080U : 0x04000400U;
  return ((pair & exponents) + last) & 0x80008000U;
}
/// The two elements, zeros in the places of those that are not finite.
template <class T>
__device__ inline unsigned finite_of(unsigned pair) {
  const unsigned bad = not_finite<T>(pair) >> 15U;  // 1 in the lowest place of each
  return pair & ~(bad * 0xffffU);
}

}  // namespace sluice::cuda
