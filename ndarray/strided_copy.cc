#include "sluice/ndarray/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "sluice/engine/loops.h"

namespace sluice {
namespace {

constexpr std::int64_t kCopyGrain = 1 << 16;  // elements of one chunk

// The axes left after dropping those of size 1 and joining neighbours that both sides step through evenly.
struct Axes {
  Dims shape, from, to;
};

Axes joined(const TensorView& a, const TensorView& b) {
  Axes axes;
  for (int i = 0; i < a.shape.rank(); ++i) {
    if (a.shape[i] == 1) continue;
    const int last = axes.shape.rank() - 1;
    if (last >= 0 && axes.from[last] == a.strides[i] * a.shape[i] && axes.to[last] == b.strides[i] * a.shape[i]) {
      axes.shape[last] *= a.shape[i];
      axes.from[last] = a.strides[i];
      axes.to[last] = b.strides[i];
    } else {
      axes.shape.push_back(a.shape[i]);
      axes.from.push_back(a.strides[i]);
      axes.to.push_back(b.strides[i]);
    }
  }
  if (axes.shape.empty()) {
    axes.shape.push_back(1);
    axes.from.push_back(1);
    axes.to.push_back(1);
  }
  return axes;
}

template <class T>
void copy_rows(const T* from, T* to, const Axes& axes, std::int64_t begin, std::int64_t end) {
  const int last = axes.shape.rank() - 1;
  const std::int64_t n = axes.shape[last], step_from = axes.from[last], step_to = axes.to[last];
  std::array<std::int64_t, kMaxRank> index{};
  std::int64_t a = 0, b = 0, rest = begin;
  for (int i = last - 1; i >= 0; --i) {
    index[static_cast<std::size_t>(i)] = rest % axes.shape[i];
    rest /= axes.shape[i];
    a += index[static_cast<std::size_t>(i)] * axes.from[i];
    b += index[static_cast<std::size_t>(i)] * axes.to[i];
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const T* p = from + a;
    T* q = to + b;
    if (step_from == 1 && step_to == 1) {
      std::memcpy(q, p, static_cast<std::size_t>(n) * sizeof(T));
    } else if (step_from == 0 && step_to == 1) {
      std::fill(q, q + n, *p);
    } else {
      for (std::int64_t i = 0; i < n; ++i) q[i * step_to] = p[i * step_from];
    }
    for (int i = last - 1; i >= 0; --i) {
      auto& k = index[static_cast<std::size_t>(i)];
      a += axes.from[i];
      b += axes.to[i];
      if (++k < axes.shape[i]) break;
      a -= k * axes.from[i];
      b -= k * axes.to[i];
      k = 0;
    }
  }
}

// The axis beside the last along which the side that the last axis strides through lies side by side, where the other
// side lies side by side along the last: a transposition. -1 if there is none, or it is too small to gain.
int turned_axis(const Axes& axes) {
  const int last = axes.shape.rank() - 1;
  const bool reads = axes.to[last] == 1 && axes.from[last] != 1, writes = axes.from[last] == 1 && axes.to[last] != 1;
  if ((!reads && !writes) || axes.shape[last] < 8) return -1;
  for (int i = 0; i < last; ++i) {
    if ((reads ? axes.from[i] : axes.to[i]) == 1 && axes.shape[i] >= 8) return i;
  }
  return -1;
}

// A square of elements goes through a small buffer, so that both sides are walked along their memory, a cache line or
// more at a time.
template <class T>
void copy_turned(const T* from, T* to, const Axes& axes, int turned) {
  constexpr std::int64_t side = 32;
  const int last = axes.shape.rank() - 1;
  const std::int64_t n = axes.shape[turned], m = axes.shape[last], blocks = (n + side - 1) / side;
  std::int64_t outer = 1;
  for (int i = 0; i < last; ++i) outer *= i == turned ? 1 : axes.shape[i];
  const std::int64_t from_n = axes.from[turned], from_m = axes.from[last], to_n = axes.to[turned], to_m = axes.to[last];
  parallel_for(outer * blocks, std::max<std::int64_t>(1, kCopyGrain / (side * m)),
               [&](std::int64_t begin, std::int64_t end) {
                 T square[side][side + 1];
                 for (std::int64_t unit = begin; unit < end; ++unit) {
                   const T* p = from;
                   T* q = to;
                   std::int64_t rest = unit / blocks;
                   for (int i = last - 1; i >= 0; --i) {
                     if (i == turned) continue;
                     p += rest % axes.shape[i] * axes.from[i];
                     q += rest % axes.shape[i] * axes.to[i];
                     rest /= axes.shape[i];
                   }
                   const std::int64_t first = unit % blocks * side, height = std::min(side, n - first);
                   p += first * from_n;
                   q += first * to_n;
                   for (std::int64_t at = 0; at < m; at += side) {
                     const std::int64_t width = std::min(side, m - at);
                     if (to_m == 1) {
                       for (std::int64_t j = 0; j < width; ++j) {
                         for (std::int64_t i = 0; i < height; ++i) square[i][j] = p[i + (at + j) * from_m];
                       }
                       for (std::int64_t i = 0; i < height; ++i) {
                         for (std::int64_t j = 0; j < width; ++j) q[i * to_n + at + j] = square[i][j];
                       }
                     } else {
                       for (std::int64_t i = 0; i < height; ++i) {
                         for (std::int64_t j = 0; j < width; ++j) square[i][j] = p[i * from_n + at + j];
                       }
                       for (std::int64_t j = 0; j < width; ++j) {
                         for (std::int64_t i = 0; i < height; ++i) q[i + (at + j) * to_m] = square[i][j];
                       }
                     }
                   }
                 }
               });
}

template <class T>
void copy_as(const TensorView& from, const TensorView& to, const Axes& axes) {
  const T* p = from.as<T>();
  T* q = to.as<T>();
  if (const int turned = turned_axis(axes); turned >= 0) return copy_turned(p, q, axes, turned);
  if (axes.shape.rank() == 1) {  // one long row: split it
    parallel_for(axes.shape[0], kCopyGrain, [&](std::int64_t begin, std::int64_t end) {
      Axes part = axes;
      part.shape[0] = end - begin;
      copy_rows(p + begin * axes.from[0], q + begin * axes.to[0], part, 0, 1);
    });
    return;
  }
  const std::int64_t rows = axes.shape.count() / axes.shape.back();
  parallel_for(rows, std::max<std::int64_t>(1, kCopyGrain / axes.shape.back()),
               [&](std::int64_t begin, std::int64_t end) { copy_rows(p, q, axes, begin, end); });
}

}  // namespace

void strided_copy(const TensorView& from, const TensorView& to) {
  if (from.count() == 0) return;
  const Axes axes = joined(from, to);
  switch (size_of(from.dtype)) {
    case 1:
      return copy_as<std::uint8_t>(from, to, axes);
    case 2:
      return copy_as<std::uint16_t>(from, to, axes);
    case 4:
      return copy_as<std::uint32_t>(from, to, axes);
    default:
      return copy_as<std::uint64_t>(from, to, axes);
  }
}

}  // namespace sluice
