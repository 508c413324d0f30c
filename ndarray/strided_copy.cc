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

// Of the squares that are turned: 256 bytes, of which 64 gave half the speed.
template <class T>
constexpr std::int64_t kSide = sizeof(T) < 8 ? 64 : 32;

// to[c * step + r] = from[r * from_step + c] for as many rows and columns as a vector of 16 bytes has elements.
template <class T>
void turn_vectors(const T* from, std::int64_t from_step, T* to, std::int64_t step) {
  constexpr std::size_t lanes = 16 / sizeof(T);
  using Vector [[gnu::vector_size(16)]] = T;
  Vector in[lanes], out[lanes];
  for (std::size_t r = 0; r < lanes; ++r) std::memcpy(&in[r], from + static_cast<std::int64_t>(r) * from_step, 16);
  if constexpr (lanes == 2) {
    out[0] = __builtin_shufflevector(in[0], in[1], 0, 2);
    out[1] = __builtin_shufflevector(in[0], in[1], 1, 3);
  } else {
    const Vector a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
                 b = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    const Vector c = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5),
                 d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
  }
  for (std::size_t r = 0; r < lanes; ++r) std::memcpy(to + static_cast<std::int64_t>(r) * step, &out[r], 16);
}

// to[c * to_step + r] = from[r * from_step + c], for at most kSide rows and columns. It goes through a small buffer, so
// that both sides are walked along their memory, a cache line or more at a time.
template <class T>
void turn_square(const T* from, std::int64_t from_step, std::int64_t rows, std::int64_t columns, T* to,
                 std::int64_t to_step) {
  constexpr std::int64_t lanes = sizeof(T) < 4 ? 1 : 16 / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t side = kSide<T>;
  alignas(64) T square[side][side + 16 / sizeof(T)];  // [column][row]; lines of a power of two share few cache sets
  std::int64_t r = 0;
  for (; lanes > 1 && r + lanes <= rows; r += lanes) {
    const T* row = from + r * from_step;
    std::int64_t c = 0;
    if constexpr (lanes > 1) {
      for (; c + lanes <= columns; c += lanes) {
        turn_vectors(row + c, from_step, &square[c][r], side + 16 / static_cast<std::int64_t>(sizeof(T)));
      }
    }
    for (; c < columns; ++c) {
      for (std::int64_t i = 0; i < lanes; ++i) square[c][r + i] = row[i * from_step + c];
    }
  }
  for (; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) square[c][r] = from[r * from_step + c];
  }
  if (rows == side) {  // of a size that the compiler knows
    for (std::int64_t c = 0; c < columns; ++c) std::memcpy(to + c * to_step, &square[c][0], side * sizeof(T));
  } else {
    for (std::int64_t c = 0; c < columns; ++c) std::copy_n(&square[c][0], rows, to + c * to_step);
  }
}

// Asks for the lines of rows: they lie in pages of their own, where the processor does not look ahead by itself.
template <bool writes, class T>
void ask_for(const T* row, std::int64_t step, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t at = 0; at < columns; at += line) __builtin_prefetch(row + i * step + at, writes, 2);
  }
}

// In units of one row of squares, of which a long one is cut.
template <class T>
void copy_turned(const T* from, T* to, const Axes& axes, int turned) {
  constexpr std::int64_t side = kSide<T>, longest = 64 * side;
  const int last = axes.shape.rank() - 1;
  const std::int64_t n = axes.shape[turned], m = axes.shape[last];
  const std::int64_t blocks = (n + side - 1) / side, parts = (m + longest - 1) / longest;
  std::int64_t outer = 1;
  for (int i = 0; i < last; ++i) outer *= i == turned ? 1 : axes.shape[i];
  const std::int64_t from_n = axes.from[turned], from_m = axes.from[last], to_n = axes.to[turned], to_m = axes.to[last];
  const auto copy = [&](const T* p, T* q, std::int64_t height, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += side) {
      const std::int64_t width = std::min(side, end - at), next = std::min(side, end - at - width);
      if (to_m == 1) {
        if (next > 0) ask_for<false>(p + (at + side) * from_m, from_m, next, height);
        turn_square(p + at * from_m, from_m, width, height, q + at, to_n);
      } else {
        if (next > 0) ask_for<true>(q + (at + side) * to_m, to_m, next, height);
        turn_square(p + at, from_n, height, width, q + at * to_m, to_m);
      }
    }
  };
  parallel_for(outer * blocks * parts, std::max<std::int64_t>(1, kCopyGrain / (side * std::min(m, longest))),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t unit = begin; unit < end; ++unit) {
                   const T* p = from;
                   T* q = to;
                   std::int64_t rest = unit / (blocks * parts);
                   for (int i = last - 1; i >= 0; --i) {
                     if (i == turned) continue;
                     p += rest % axes.shape[i] * axes.from[i];
                     q += rest % axes.shape[i] * axes.to[i];
                     rest /= axes.shape[i];
                   }
                   const std::int64_t first = unit / parts % blocks * side, part = unit % parts * longest;
                   copy(p + first * from_n, q + first * to_n, std::min(side, n - first), part,
                        std::min(m, part + longest));
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
