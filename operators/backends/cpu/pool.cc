#include "sluice/operators/backends/cpu/pool.h"

#include <algorithm>
#include <type_traits>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/dispatch.h"

namespace sluice::cpu_backend {
namespace {

using std::int32_t;
using std::int64_t;

[[maybe_unused]] bool is_two_by_two(const PoolShape& s) {
  return s.kernel_h == 2 && s.kernel_w == 2 && s.stride_h == 2 && s.stride_w == 2 && s.pad_h == 0 && s.pad_w == 0 &&
         2 * s.out_height() <= s.height && 2 * s.out_width() <= s.width;
}

template <class T>
bool beats(T challenger, T best) {
  return (challenger > best) | ((challenger != challenger) & (best == best));
}

struct Functions {
  void (*forward)(const float* x, long width, long rows, long columns, float* y, int* where);
  void (*grad)(const float* dy, const int* where, long height, long width, long rows, long columns, float* dx);
};

#if SLUICE_X86_KERNELS && !defined(__clang__)
namespace plain {
#include "sluice/operators/backends/cpu/pool_vectors.inc"
constexpr Functions k4 = {&forward_plane<4>, &grad_plane<4>};
}  // namespace plain
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "sluice/operators/backends/cpu/pool_vectors.inc"
constexpr Functions k4 = {&forward_plane<4>, &grad_plane<4>};
constexpr Functions k8 = {&forward_plane<8>, &grad_plane<8>};
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
namespace avx512 {
#include "sluice/operators/backends/cpu/pool_vectors.inc"
constexpr Functions k4 = {&forward_plane<4>, &grad_plane<4>};
constexpr Functions k8 = {&forward_plane<8>, &grad_plane<8>};
constexpr Functions k16 = {&forward_plane<16>, &grad_plane<16>};
}  // namespace avx512
#pragma GCC pop_options

// The widest vectors that a row of y fills; null where the plain loops serve.
const Functions* vectors_for(const PoolShape& s, float) {
  const int64_t columns = s.out_width();
  if (!is_two_by_two(s) || columns < 4) return nullptr;
  switch (instruction_set_in_use()) {
    case InstructionSet::avx512:
      return columns >= 16 ? &avx512::k16 : columns >= 8 ? &avx512::k8 : &avx512::k4;
    case InstructionSet::avx2:
      return columns >= 8 ? &avx2::k8 : &avx2::k4;
    case InstructionSet::plain:
      break;
  }
  return &plain::k4;
}
#else
const Functions* vectors_for(const PoolShape&, float) { return nullptr; }
#endif
const Functions* vectors_for(const PoolShape&, double) { return nullptr; }

template <class T>
void any_window(const PoolShape& s, const T* x, T* y, int32_t* where) {
  const int64_t out_h = s.out_height(), out_w = s.out_width();
  for (int64_t i = 0; i < out_h; ++i) {
    const int64_t top = std::max<int64_t>(i * s.stride_h - s.pad_h, 0);
    const int64_t bottom = std::min(i * s.stride_h - s.pad_h + s.kernel_h, s.height);
    for (int64_t j = 0; j < out_w; ++j) {
      const int64_t left = std::max<int64_t>(j * s.stride_w - s.pad_w, 0);
      const int64_t right = std::min(j * s.stride_w - s.pad_w + s.kernel_w, s.width);
      int64_t best = top * s.width + left;
      for (int64_t r = top; r < bottom; ++r) {
        for (int64_t c = left; c < right; ++c) {
          if (beats(x[r * s.width + c], x[best])) best = r * s.width + c;
        }
      }
      y[i * out_w + j] = x[best];
      if (where != nullptr) where[i * out_w + j] = static_cast<int32_t>(best);
    }
  }
}

// Planes of one chunk: some 32 K elements of the larger array.
int64_t planes_per_chunk(const PoolShape& s) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, s.height * s.width));
}

}  // namespace

template <class T>
void max_pool2d(const PoolShape& s, const T* x, T* y, int32_t* where) {
  const int64_t in = s.height * s.width, out = s.out_height() * s.out_width();
  const Functions* vectors = vectors_for(s, T{});
  parallel_for(s.planes, planes_per_chunk(s), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      int32_t* places = where == nullptr ? nullptr : where + p * out;
      if constexpr (std::is_same_v<T, float>) {
        if (vectors != nullptr) {
          vectors->forward(x + p * in, s.width, s.out_height(), s.out_width(), y + p * out, places);
          continue;
        }
      }
      any_window(s, x + p * in, y + p * out, places);
    }
  });
}

template <class T>
void max_pool2d_grad(const PoolShape& s, const T* dy, const int32_t* where, T* dx) {
  const int64_t in = s.height * s.width, out = s.out_height() * s.out_width();
  const Functions* vectors = vectors_for(s, T{});
  parallel_for(s.planes, planes_per_chunk(s), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      if constexpr (std::is_same_v<T, float>) {
        if (vectors != nullptr) {
          vectors->grad(dy + p * out, where + p * out, s.height, s.width, s.out_height(), s.out_width(), dx + p * in);
          continue;
        }
      }
      std::fill(dx + p * in, dx + (p + 1) * in, T{});
      for (int64_t i = 0; i < out; ++i) dx[p * in + where[p * out + i]] += dy[p * out + i];
    }
  });
}

template void max_pool2d(const PoolShape&, const float*, float*, int32_t*);
template void max_pool2d(const PoolShape&, const double*, double*, int32_t*);
template void max_pool2d_grad(const PoolShape&, const float*, const int32_t*, float*);
template void max_pool2d_grad(const PoolShape&, const double*, const int32_t*, double*);

}  // namespace sluice::cpu_backend
