// Attention of f16 and bf16 on tensor cores (after FlashAttention-2, Dao, arXiv 2307.08691): a warp has 16 or 32
// queries in registers, and takes them through tiles of keys and values with a softmax that goes along. Scores,
// probabilities and sums are floats; for the second product the probabilities are rounded to 16 bits.
#include "sluice/operators/backends/cuda/attention_halves.h"

namespace sluice::cuda {
namespace {

template <class T>
struct HalfResult {
  Operands<T> o;
  T* y;
  float* logarithms;
  Scaling scaling;
  bool by_chunks;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(y);
    visit(logarithms);
  }
};

/// A query, in the four lanes that have its scores.
struct Softmax {
  float largest = -INFINITY, total = 0;
};

template <class T, int W>
__global__ void __launch_bounds__(kHalfThreads, W <= 64 ? 3 : 2)
    attend_tiles(HalfResult<T> f, std::int64_t tiles, std::int64_t all) {
  constexpr int R = kTileRows<W>, N = R / 8;
  __shared__ TileRow<W> keys[2][R], values[2][R];
  __shared__ unsigned bad[2][kHalfWarps];
  const AttentionSizes& s = f.o.s;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int size = static_cast<int>(s.size), width = static_cast<int>(s.value_size);
  const bool masked = f.o.mask != nullptr;
  const int mask_step = static_cast<int>(s.mask[3]);   // 0 or 1
  const float unit = masked ? 1.0F : f.scaling.scale;  // what makes exponents of what is kept as scores
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    // Of a head the last queries come first: causal, they have most to do.
    const std::int64_t head = task / tiles, first = (tiles - 1 - task % tiles) * kHalfRows;
    const T *const k = f.o.k + s.group_of(head) * s.m * size, *const v = f.o.v + s.group_of(head) * s.m * width;
    const std::int64_t mine = first + warp * 16, end = s.keys_of(std::min(first + kHalfRows, s.n) - 1);
    const std::int64_t my_end = mine < s.n ? s.keys_of(std::min(mine + 16, s.n) - 1) : 0;
    const auto begin = [&](int stage, std::int64_t key) {
      begin_tile<T, W, R>(keys[stage], k, key, s.m, size, f.by_chunks);
      begin_tile<T, W, R>(values[stage], v, key, s.m, width, f.by_chunks);
    };
    if (end > 0) begin(0, 0);
    unsigned queries[W / 16][4];
    load_rows<T, W>(queries, f.o.q + head * s.n * size, mine, s.n, size, f.by_chunks, f.scaling.flip);
    float sums[W / 8][4] = {};
    Infinities infinities;
    Softmax rows[2];
    int stage = 0;
    for (std::int64_t key = 0; key < end; key += R, stage ^= 1) {
      const bool hides = masked || (s.causal && key + R > s.keys_of(first));
      end_copies();
      if (hides) {
        const bool found = warp_copied_bad<T, W, R>(values[stage]);
        if (lane == 0) bad[stage][warp] = found;
      }
      __syncthreads();
      if (key + R < end) begin(stage ^ 1, key + R);
      if (key >= my_end) continue;
      float scores[N][4];
      set_products<T, W>(scores, queries, keys[stage]);
      if (hides || key + R > s.m) {
        SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
          const std::int64_t query = mine + lane / 4 + i / 2 * 8;
          const std::int64_t left = query < s.n ? s.keys_of(query) - key : 0;
          const int seen = static_cast<int>(std::clamp<std::int64_t>(left, 0, R));
          const T* const mask = masked && seen > 0 ? f.o.mask + s.mask_at(head, query, key) : nullptr;
          SLUICE_UNROLL for (int n = 0; n < N; ++n) {
            const int column = n * 8 + lane % 4 * 2 + i % 2;
            float& score = scores[n][i];
            if (column >= seen) {
              score = -INFINITY;
            } else if (masked) {
              const float added = number(mask[column * mask_step]);
              score = added == -INFINITY ? added : std::fma(score, f.scaling.scale, added * kLog2E);
            }
          }
        }
      }
      unsigned weights[N / 2][4];
      SLUICE_UNROLL for (int half = 0; half < 2; ++half) {
        Softmax& row = rows[half];
        float top = row.largest;
        SLUICE_UNROLL for (int n = 0; n < N; ++n) {
          top = std::fmax(top, std::fmax(scores[n][half * 2], scores[n][half * 2 + 1]));
        }
        top = std::fmax(top, __shfl_xor_sync(kWarp, top, 1));
        top = std::fmax(top, __shfl_xor_sync(kWarp, top, 2));
        const float base = top == -INFINITY ? 0.0F : top * unit;
        const float shrink = power_of_two(std::fma(row.largest, unit, -base));
        row.largest = top;
        row.total *= shrink;
        SLUICE_UNROLL for (int n = 0; n < W / 8; ++n) {
          sums[n][half * 2] *= shrink;
          sums[n][half * 2 + 1] *= shrink;
        }
        SLUICE_UNROLL for (int n = 0; n < N; ++n) {
          SLUICE_UNROLL for (int i = half * 2; i < half * 2 + 2; ++i) {
            float p = power_of_two(std::fma(scores[n][i], unit, -base));
            if (hides && scores[n][i] == -INFINITY) p = kUnseen;
            scores[n][i] = p;
            row.total += p;
          }
        }
      }
      as_left<T>(weights, scores);
      const unsigned* const found = bad[stage];
      add_products<T, W>(sums, weights, values[stage], hides && (found[0] | found[1] | found[2] | found[3]) != 0,
                         infinities);
    }
    SLUICE_UNROLL for (int half = 0; half < 2; ++half) {
      Softmax& row = rows[half];
      row.total += __shfl_xor_sync(kWarp, row.total, 1);
      row.total += __shfl_xor_sync(kWarp, row.total, 2);
      const std::int64_t query = mine + lane / 4 + half * 8;
      if (query >= s.n) continue;
      const std::int64_t at = head * s.n + query;
      const bool sees = row.total != 0;
      const float share = sees ? 1 / row.total : 0.0F;
      SLUICE_UNROLL for (int n = 0; n < W / 8; ++n) {
        const float left = infinities.with(sums[n][half * 2], n, half * 2),
                    right = infinities.with(sums[n][half * 2 + 1], n, half * 2 + 1);
        store_pair(f.y + at * width, n * 8 + lane % 4 * 2, width, sees ? left * share : 0.0F,
                   sees ? right * share : 0.0F, f.by_chunks);
      }
      if (lane % 4 == 0) {
        f.logarithms[at] = sees ? std::fma(row.largest * unit, kLn2, std::log(row.total)) : -INFINITY;
      }
    }
    __syncthreads();
  }
}

}  // namespace

template <class T>
void attend_halves(ArrayContext& c) {
  const Issue issue(c);
  const Operands<T> o(c, 3);
  const AttentionSizes& s = o.s;
  const HalfResult<T> f{o, c.output(0).template as<T>(), c.output(1).template as<float>(), Scaling(s.scale),
                        in_chunks<T>(s, o.q, o.k, o.v, c.output(0).template as<T>())};
  with_width(s, [&]<int W>() {
    const std::int64_t tiles = (s.n + kHalfRows - 1) / kHalfRows, tasks = s.batch * s.heads * tiles;
    if (tasks > 0) issue.launch(attend_tiles<T, W>, grid_of_tasks(tasks), f, tiles, tasks);
  });
}
template void attend_halves<Float16>(ArrayContext& c);
template void attend_halves<BFloat16>(ArrayContext& c);

}  // namespace sluice::cuda
