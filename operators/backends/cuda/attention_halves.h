// What the kernels of attention on tensor cores share. A block's warps go together through tiles of rows in shared
// memory, of which the next is copied while one is worked on; each warp keeps rows of its own in registers, as left
// matrices (tensor_cores.h).
#pragma once

#include "sluice/operators/backends/cuda/attention.h"
#include "sluice/operators/backends/cuda/tensor_cores.h"

namespace sluice::cuda {

inline constexpr int kHalfWarps = 4, kHalfThreads = kHalfWarps * 32;
/// Rows of a block, 16 for each warp.
inline constexpr int kHalfRows = kHalfWarps * 16;
inline constexpr float kLog2E = 1.44269504088896341F, kLn2 = 0.693147180559945309F;
/// The probability of a key that a query does not see. It counts as 0 in sums, and can be told from a small one.
inline constexpr float kUnseen = -0.0F;

/// A row of a tile: W elements, and a chunk beside them, so that the rows that load_matrices() reads together lie in
/// different banks.
template <int W>
using TileRow = Chunk[W / 8 + 1];
/// Rows of a tile in shared memory.
template <int W>
inline constexpr int kTileRows = W <= 64 ? 64 : 32;

/// Calls f(row, chunk) for the chunks of a tile of R rows that are the calling thread's to copy.
template <int W, int R, class F>
__device__ void each_chunk(F f) {
  static_assert(R * (W / 8) % kHalfThreads == 0);
  SLUICE_UNROLL for (int i = 0; i < R * (W / 8) / kHalfThreads; ++i) {
    const int e = i * kHalfThreads + static_cast<int>(threadIdx.x);
    f(e / (W / 8), e % (W / 8));
  }
}
/// Begins to copy rows from `first` on, of `count` rows of `width` elements; zeros where there are none. By chunks if
/// rows are aligned to them.
template <class T, int W, int R>
__device__ void begin_tile(TileRow<W>* to, const T* from, std::int64_t first, std::int64_t count, int width,
                           bool by_chunks) {
  const T* const rows = from + first * width;
  const int left = static_cast<int>(std::min<std::int64_t>(count - first, R));
  each_chunk<W, R>([&](int row, int chunk) {
    const bool inside = row < left && chunk * 8 < width;
    const T* const at = inside ? rows + (row * width + chunk * 8) : from;
    if (by_chunks) return begin_copy(&to[row][chunk], at, inside);
    Chunk elements{};
    SLUICE_UNROLL for (int k = 0; k < 8; ++k) {
      if (inside && chunk * 8 + k < width) elements.words[k / 2] |= static_cast<unsigned>(at[k].bits) << (k % 2 * 16);
    }
    to[row][chunk] = elements;
  });
}
/// Whether a chunk that the calling thread copied, or one of another lane of its warp, has what is no finite number.
template <class T, int W, int R>
__device__ bool warp_copied_bad(const TileRow<W>* tile) {
  unsigned bad = 0;
  each_chunk<W, R>([&](int row, int chunk) {
    const Chunk elements = tile[row][chunk];
    SLUICE_UNROLL for (int k = 0; k < 4; ++k) bad |= not_finite<T>(elements.words[k]);
  });
  return __any_sync(kWarp, bad != 0) != 0;
}

/// 16 rows from `first` on as a left matrix of W columns; zeros where there are none. The bits of `flip` are turned.
template <class T, int W>
__device__ void load_rows(unsigned (&to)[W / 16][4], const T* from, std::int64_t first, std::int64_t count, int width,
                          bool by_chunks, unsigned flip) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SLUICE_UNROLL for (int k = 0; k < W / 16; ++k) {
    SLUICE_UNROLL for (int part = 0; part < 4; ++part) {
      const std::int64_t row = first + lane / 4 + part % 2 * 8;
      const int column = k * 16 + lane % 4 * 2 + part / 2 * 8;
      unsigned pair = 0;
      if (row < count && column < width) {
        const T* const at = from + row * width + column;
        if (by_chunks) {
          pair = *reinterpret_cast<const unsigned*>(at);
        } else {
          pair = at[0].bits | (column + 1 < width ? static_cast<unsigned>(at[1].bits) << 16U : 0U);
        }
      }
      to[k][part] = pair ^ flip;
    }
  }
}

/// Sets sums to the products of 16 rows, of W columns, and N * 8 rows of a tile.
template <class T, int W, int N>
__device__ void set_products(float (&sums)[N][4], const unsigned (&left)[W / 16][4], const TileRow<W>* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SLUICE_UNROLL for (int n = 0; n < N; ++n) { SLUICE_UNROLL for (float& sum : sums[n]) sum = 0; }
  SLUICE_UNROLL for (int k = 0; k < W / 16; ++k) {
    SLUICE_UNROLL for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      load_matrices<false>(right, &tile[n * 8 + lane / 16 * 8 + lane % 8][k * 2 + lane / 8 % 2]);
      add_product<T>(sums[n], left[k], right[0], right[1]);
      add_product<T>(sums[n + 1], left[k], right[2], right[3]);
    }
  }
}

/// Numbers of sums as a left matrix of twice as many columns as each has.
template <class T, int N>
__device__ void as_left(unsigned (&to)[N / 2][4], const float (&sums)[N][4]) {
  SLUICE_UNROLL for (int k = 0; k < N / 2; ++k) {
    SLUICE_UNROLL for (int part = 0; part < 4; ++part) {
      const float* const two = &sums[k * 2 + part / 2][part % 2 * 2];
      to[k][part] = pair_of<T>(two[0], two[1]);
    }
  }
}

/// The sums, by bits, that have infinity as a term, or its negative; NaN counts as both.
struct Infinities {
  unsigned long long up = 0, down = 0;
  /// A sum with what it has.
  __device__ float with(float sum, int n, int i) const {
    if ((up >> (n * 4 + i) & 1U) != 0) sum += INFINITY;
    if ((down >> (n * 4 + i) & 1U) != 0) sum -= INFINITY;
    return sum;
  }
};

/// Of the products of weights and K * 16 rows of a tile: for which sums a row that is no finite number has a weight
/// other than kUnseen. It is seldom called; its loop is one for the sake of registers.
template <class T, int W, int K>
__device__ void find_infinities(Infinities& found, const unsigned (&weights)[K][4], const TileRow<W>* tile) {
  constexpr unsigned one = std::is_same_v<T, BFloat16> ? 0x3f80U : 0x3c00U;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SLUICE_NO_UNROLL for (int turn = 0; turn < W / 4; ++turn) {  // 8 columns, and a sign
    const int n = turn / 2;
    const bool negative = turn % 2 != 0;
    float counts[4] = {};
    SLUICE_UNROLL for (int k = 0; k < K; ++k) {
      unsigned right[4], seen[4];
      load_matrices<true>(right, &tile[k * 16 + lane % 16][n / 2 * 2 + lane / 16]);
      SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
        const unsigned pair = weights[k][i];
        seen[i] = ((pair & 0xffffU) != 0x8000U ? one : 0U) | (pair >> 16U != 0x8000U ? one << 16U : 0U);
      }
      add_product<T>(counts, seen, ones_where_infinite<T>(n % 2 == 0 ? right[0] : right[2], negative),
                     ones_where_infinite<T>(n % 2 == 0 ? right[1] : right[3], negative));
    }
    unsigned long long some = 0;
    SLUICE_UNROLL for (int i = 0; i < 4; ++i) some |= static_cast<unsigned long long>(counts[i] > 0) << i;
    found.up |= negative ? 0 : some << (n * 4);
    found.down |= negative ? some << (n * 4) : 0;
  }
}

/// Adds products of weights and K * 16 rows of a tile. `hidden`: some rows have what is no finite number, and some
/// weights may be kUnseen: of those nothing must come into the sums, though 0 times such a number is none. What others
/// bring is kept aside.
template <class T, int W, int K>
__device__ void add_products(float (&sums)[W / 8][4], const unsigned (&weights)[K][4], const TileRow<W>* tile,
                             bool hidden, Infinities& infinities) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (hidden) find_infinities<T, W, K>(infinities, weights, tile);
  SLUICE_UNROLL for (int k = 0; k < K; ++k) {
    SLUICE_UNROLL for (int n = 0; n < W / 8; n += 2) {
      unsigned right[4];
      load_matrices<true>(right, &tile[k * 16 + lane % 16][n + lane / 16]);
      if (hidden) {
        SLUICE_UNROLL for (unsigned& pair : right) pair = finite_of<T>(pair);
      }
      add_product<T>(sums[n], weights[k], right[0], right[1]);
      add_product<T>(sums[n + 1], weights[k], right[2], right[3]);
    }
  }
}

/// Stores two neighbours of a row of `width` elements.
template <class T>
__device__ void store_pair(T* row, int column, int width, float left, float right, bool by_chunks) {
  if (column >= width) return;
  const unsigned pair = pair_of<T>(left, right);
  if (by_chunks) {
    *reinterpret_cast<unsigned*>(row + column) = pair;
    return;
  }
  row[column].bits = static_cast<std::uint16_t>(pair);
  if (column + 1 < width) row[column + 1].bits = static_cast<std::uint16_t>(pair >> 16U);
}

/// How scores come from products of queries and keys: as exponents of 2.
struct Scaling {
  float scale;    ///< its size; the sign is in the rows
  unsigned flip;  ///< turns the signs of two elements, or does not

  explicit Scaling(double of_scores)
      : scale(static_cast<float>(std::abs(of_scores)) * kLog2E), flip(of_scores < 0 ? 0x80008000U : 0U) {}
};

/// Whether all these rows are aligned to chunks.
template <class T, class... P>
bool in_chunks(const AttentionSizes& s, const P*... rows) {
  return s.size % 8 == 0 && s.value_size % 8 == 0 && ((reinterpret_cast<std::uintptr_t>(rows) % 16 == 0) && ...);
}

/// Calls f<W>() with a width for heads of so many elements.
template <class F>
void with_width(const AttentionSizes& s, F f) {
  const std::int64_t width = std::max(s.size, s.value_size);
  if (width <= 32) return f.template operator()<32>();
  if (width <= 64) return f.template operator()<64>();
  if (width <= 96) return f.template operator()<96>();
  f.template operator()<128>();
}

/// A grid for blocks that take tasks by turns.
inline Grid grid_of_tasks(std::int64_t tasks) {
  const std::int64_t most = most_blocks.load(std::memory_order_relaxed);
  return {.blocks = static_cast<unsigned>(std::clamp<std::int64_t>(tasks, 1, most)),
          .threads = static_cast<unsigned>(kHalfThreads),
          .barriers = true};
}

}  // namespace sluice::cuda
