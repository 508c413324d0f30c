// Gradients of attention of f16 and bf16 on tensor cores. One kernel takes queries through the tiles of their keys, for
// the gradients of queries; one takes keys through the tiles of their queries, for those of keys and values. So each
// sum belongs to one block, which adds in a fixed order, and no memory is added to by several. Both compute the scores
// again, from the logarithms that were kept.
#include "sluice/operators/backends/cuda/attention_halves.h"

namespace sluice::cuda {
namespace {

/// Scores that are in registers at once: those of 16 rows and so many of a tile.
constexpr int kStep = 32, kSteps = kStep / 8;

template <class T>
struct HalfGradients {
  Operands<T> o;
  const T *y, *g;
  const float* logarithms;
  /// Of each query the logarithm, as an exponent of 2, and the product of its result and gradient. Infinity instead of
  /// the first says that nothing depends on the query: it sees no key, or its result has no gradient.
  float2* rows;
  unsigned* some_unused;  ///< whether there are such queries
  T *dq, *dk, *dv;
  Scaling scaling;
  bool by_chunks;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(y);
    visit(g);
    visit(logarithms);
    visit(rows);
    visit(some_unused);
    visit(dq);
    visit(dk);
    visit(dv);
  }
};

struct Nothing {
  unsigned* flag;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(flag);
  }
  __device__ void operator()(std::int64_t) const { *flag = 0; }
};

/// Sets rows and some_unused. Eight lanes take a query.
template <class T>
__global__ void prepare_rows(HalfGradients<T> f, std::int64_t count) {
  constexpr int kLanes = 8, kAtOnce = kHalfThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t width = f.o.s.value_size;
  for (std::int64_t first = blockIdx.x * std::int64_t{kAtOnce}; first < count; first += gridDim.x * kAtOnce) {
    const std::int64_t row = first + threadIdx.x / kLanes;
    double delta = 0;
    int used = 0;
    for (std::int64_t t = lane; t < width && row < count; t += kLanes) {
      const float g = number(f.g[row * width + t]);
      if (g != 0) used = 1;
      delta += static_cast<double>(g) * static_cast<double>(number(f.y[row * width + t]));
    }
    for (int step = kLanes / 2; step > 0; step /= 2) {
      delta += __shfl_xor_sync(kWarp, delta, step);
      used |= __shfl_xor_sync(kWarp, used, step);
    }
    if (lane != 0 || row >= count) continue;
    const float logarithm = f.logarithms[row];
    const bool counts = used != 0 && logarithm != -INFINITY;
    // An infinite score makes all of its query NaN.
    const float exponent = logarithm == INFINITY ? NAN : logarithm * kLog2E;
    f.rows[row] = float2{counts ? exponent : INFINITY, counts ? static_cast<float>(delta) : 0.0F};
    if (!counts) atomicExch(f.some_unused, 1U);
  }
}

/// The score of a pair with what the mask adds, from the product of query and key.
template <class T>
__device__ inline float with_mask(const T* at, float score, float scale) {
  const float added = number(*at);
  return added == -INFINITY ? added : std::fma(score, scale, added * kLog2E);
}

template <class T, int W>
__global__ void __launch_bounds__(kHalfThreads, W < 64 ? 3 : 2)
    query_gradients(HalfGradients<T> f, std::int64_t tiles, std::int64_t all) {
  constexpr int R = kTileRows<W>;
  __shared__ TileRow<W> keys[2][R], values[2][R];
  __shared__ unsigned bad[2][kHalfWarps];
  const AttentionSizes& s = f.o.s;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int size = static_cast<int>(s.size), width = static_cast<int>(s.value_size);
  const bool masked = f.o.mask != nullptr;
  const int mask_step = static_cast<int>(s.mask[3]);  // 0 or 1
  const float unit = masked ? 1.0F : f.scaling.scale;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t head = task / tiles, first = (tiles - 1 - task % tiles) * kHalfRows;
    const T *const k = f.o.k + s.group_of(head) * s.m * size, *const v = f.o.v + s.group_of(head) * s.m * width;
    const std::int64_t mine = first + warp * 16, end = s.keys_of(std::min(first + kHalfRows, s.n) - 1);
    const std::int64_t my_end = mine < s.n ? s.keys_of(std::min(mine + 16, s.n) - 1) : 0;
    const auto begin = [&](int stage, std::int64_t key) {
      begin_tile<T, W, R>(keys[stage], k, key, s.m, size, f.by_chunks);
      begin_tile<T, W, R>(values[stage], v, key, s.m, width, f.by_chunks);
    };
    if (end > 0) begin(0, 0);
    unsigned queries[W / 16][4], of_result[W / 16][4];
    load_rows<T, W>(queries, f.o.q + head * s.n * size, mine, s.n, size, f.by_chunks, f.scaling.flip);
    load_rows<T, W>(of_result, f.g + head * s.n * width, mine, s.n, width, f.by_chunks, 0);
    float2 rows[2];
    SLUICE_UNROLL for (int half = 0; half < 2; ++half) {
      const std::int64_t query = mine + lane / 4 + half * 8;
      rows[half] = query < s.n ? f.rows[head * s.n + query] : float2{INFINITY, 0.0F};
    }
    float sums[W / 8][4] = {};
    Infinities infinities;
    int stage = 0;
    for (std::int64_t key = 0; key < end; key += R, stage ^= 1) {
      const bool hides = masked || (s.causal && key + R > s.keys_of(first));
      end_copies();
      if (hides) {
        const bool found = warp_copied_bad<T, W, R>(keys[stage]);
        if (lane == 0) bad[stage][warp] = found;
      }
      __syncthreads();
      if (key + R < end) begin(stage ^ 1, key + R);
      const unsigned* const found = bad[stage];
      const bool hidden = hides && (found[0] | found[1] | found[2] | found[3]) != 0;
      SLUICE_NO_UNROLL for (int part = 0; part < R; part += kStep) {
        if (key + part >= my_end) break;
        float scores[kSteps][4], of_weights[kSteps][4];
        set_products<T, W>(scores, queries, keys[stage] + part);
        set_products<T, W>(of_weights, of_result, values[stage] + part);
        const bool looks = hides || key + part + kStep > s.m;
        if (looks) {
          SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
            const std::int64_t query = mine + lane / 4 + i / 2 * 8, at = key + part;
            const int seen =
                static_cast<int>(std::clamp<std::int64_t>(query < s.n ? s.keys_of(query) - at : 0, 0, kStep));
            const T* const mask = masked && seen > 0 ? f.o.mask + s.mask_at(head, query, at) : nullptr;
            SLUICE_UNROLL for (int n = 0; n < kSteps; ++n) {
              const int column = n * 8 + lane % 4 * 2 + i % 2;
              if (column >= seen) {
                scores[n][i] = -INFINITY;
              } else if (masked) {
                scores[n][i] = with_mask(mask + column * mask_step, scores[n][i], f.scaling.scale);
              }
            }
          }
        }
        SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
          const float2 row = rows[i / 2];
          SLUICE_UNROLL for (int n = 0; n < kSteps; ++n) {
            const float p = power_of_two(std::fma(scores[n][i], unit, -row.x));
            scores[n][i] = looks && scores[n][i] == -INFINITY ? kUnseen : p * (of_weights[n][i] - row.y);
          }
        }
        unsigned weights[kSteps / 2][4];
        as_left<T>(weights, scores);
        add_products<T, W>(sums, weights, keys[stage] + part, hidden, infinities);
      }
    }
    const float scale = static_cast<float>(s.scale);
    SLUICE_UNROLL for (int half = 0; half < 2; ++half) {
      const std::int64_t query = mine + lane / 4 + half * 8;
      if (query >= s.n) continue;
      const bool counts = rows[half].x != INFINITY;
      SLUICE_UNROLL for (int n = 0; n < W / 8; ++n) {
        const float left = infinities.with(sums[n][half * 2], n, half * 2),
                    right = infinities.with(sums[n][half * 2 + 1], n, half * 2 + 1);
        store_pair(f.dq + (head * s.n + query) * size, n * 8 + lane % 4 * 2, size, counts ? left * scale : 0.0F,
                   counts ? right * scale : 0.0F, f.by_chunks);
      }
    }
    __syncthreads();
  }
}

/// The gradients of keys, of values, or of both.
template <class T, int W, bool Keys, bool Values>
__global__ void __launch_bounds__(kHalfThreads, 2)
    key_gradients(HalfGradients<T> f, std::int64_t tiles, std::int64_t all) {
  constexpr int R = kTileRows<W>;
  __shared__ TileRow<W> queries[2][R], of_results[2][R];
  __shared__ float2 of_rows[2][R];
  __shared__ unsigned bad[2][kHalfWarps];
  const AttentionSizes& s = f.o.s;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int size = static_cast<int>(s.size), width = static_cast<int>(s.value_size);
  const bool masked = f.o.mask != nullptr, some_unused = *f.some_unused != 0;
  const float unit = masked ? 1.0F : f.scaling.scale;
  const std::int64_t of_group = s.heads / s.groups;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t group = task / tiles, first = task % tiles * kHalfRows, mine = first + warp * 16;
    const std::int64_t first_head = group / s.groups * s.heads + group % s.groups * of_group;
    // All tiles of queries that see the block's keys, of one head after the other.
    const std::int64_t from = s.first_query_of(first) / R * R, of_head = from < s.n ? (s.n - from + R - 1) / R : 0,
                       turns = of_group * of_head, my_first = s.first_query_of(mine);
    unsigned keys[W / 16][4], values[W / 16][4];
    load_rows<T, W>(keys, f.o.k + group * s.m * size, mine, s.m, size, f.by_chunks, f.scaling.flip);
    if constexpr (Keys) load_rows<T, W>(values, f.o.v + group * s.m * width, mine, s.m, width, f.by_chunks, 0);
    const auto begin = [&](int stage, std::int64_t turn) {
      const std::int64_t head = first_head + turn / of_head, query = from + turn % of_head * R;
      begin_tile<T, W, R>(queries[stage], f.o.q + head * s.n * size, query, s.n, size, f.by_chunks);
      begin_tile<T, W, R>(of_results[stage], f.g + head * s.n * width, query, s.n, width, f.by_chunks);
      const int row = static_cast<int>(threadIdx.x);
      if (row >= R) return;
      of_rows[stage][row] = query + row < s.n ? f.rows[head * s.n + query + row] : float2{INFINITY, 0.0F};
    };
    if (turns > 0) begin(0, 0);
    float of_keys[W / 8][4] = {}, of_values[W / 8][4] = {};
    Infinities key_infinities, value_infinities;
    int stage = 0;
    for (std::int64_t turn = 0; turn < turns; ++turn, stage ^= 1) {
      const std::int64_t head = first_head + turn / of_head, query = from + turn % of_head * R;
      const bool hides =
          masked || some_unused || (s.causal && s.keys_of(query) < std::min<std::int64_t>(first + kHalfRows, s.m));
      end_copies();
      if (hides) {
        const bool of_queries = warp_copied_bad<T, W, R>(queries[stage]),
                   of_gradients = warp_copied_bad<T, W, R>(of_results[stage]);
        if (lane == 0) bad[stage][warp] = of_queries || of_gradients;
      }
      __syncthreads();
      if (turn + 1 < turns) begin(stage ^ 1, turn + 1);
      const unsigned* const found = bad[stage];
      const bool hidden = hides && (found[0] | found[1] | found[2] | found[3]) != 0;
      SLUICE_NO_UNROLL for (int part = 0; part < R; part += kStep) {
        if (query + part + kStep <= my_first || query + part >= s.n) continue;
        float scores[kSteps][4], of_weights[kSteps][4];
        set_products<T, W>(scores, keys, queries[stage] + part);
        if constexpr (Keys) set_products<T, W>(of_weights, values, of_results[stage] + part);
        const float2* const rows = of_rows[stage] + part;
        if (hides) {
          SLUICE_UNROLL for (int n = 0; n < kSteps; ++n) {
            SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
              const int column = n * 8 + lane % 4 * 2 + i % 2;
              const std::int64_t key = mine + lane / 4 + i / 2 * 8, at = query + part + column;
              if (rows[column].x == INFINITY || key >= s.keys_of(at)) {
                scores[n][i] = -INFINITY;
              } else if (masked) {
                scores[n][i] = with_mask(f.o.mask + s.mask_at(head, at, key), scores[n][i], f.scaling.scale);
              }
            }
          }
        }
        SLUICE_UNROLL for (int n = 0; n < kSteps; ++n) {
          SLUICE_UNROLL for (int i = 0; i < 4; ++i) {
            const float2 row = rows[n * 8 + lane % 4 * 2 + i % 2];
            float p = power_of_two(std::fma(scores[n][i], unit, -row.x)), ds = 0;
            if constexpr (Keys) ds = p * (of_weights[n][i] - row.y);
            if (hides && scores[n][i] == -INFINITY) p = ds = kUnseen;
            scores[n][i] = p;
            of_weights[n][i] = ds;
          }
        }
        unsigned weights[kSteps / 2][4];
        if constexpr (Values) {
          as_left<T>(weights, scores);
          add_products<T, W>(of_values, weights, of_results[stage] + part, hidden, value_infinities);
        }
        if constexpr (Keys) {
          as_left<T>(weights, of_weights);
          add_products<T, W>(of_keys, weights, queries[stage] + part, hidden, key_infinities);
        }
      }
    }
    const float scale = static_cast<float>(s.scale);
    const auto store = [&](T* to, int columns, const float(&sums)[W / 8][4], const Infinities& infinities,
                           float times) {
      SLUICE_UNROLL for (int half = 0; half < 2; ++half) {
        const std::int64_t key = mine + lane / 4 + half * 8;
        if (key >= s.m) continue;
        SLUICE_UNROLL for (int n = 0; n < W / 8; ++n) {
          const float left = infinities.with(sums[n][half * 2], n, half * 2),
                      right = infinities.with(sums[n][half * 2 + 1], n, half * 2 + 1);
          store_pair(to + (group * s.m + key) * columns, n * 8 + lane % 4 * 2, columns, left * times, right * times,
                     f.by_chunks);
        }
      }
    };
    if constexpr (Keys) store(f.dk, size, of_keys, key_infinities, scale);
    if constexpr (Values) store(f.dv, width, of_values, value_infinities, 1.0F);
    __syncthreads();
  }
}

template <class T>
void launch_tasks(const Issue& issue, void (*kernel)(HalfGradients<T>, std::int64_t, std::int64_t),
                  const HalfGradients<T>& f, std::int64_t heads, std::int64_t rows) {
  const std::int64_t tiles = (rows + kHalfRows - 1) / kHalfRows;
  if (heads * tiles > 0) issue.launch(kernel, grid_of_tasks(heads * tiles), f, tiles, heads * tiles);
}

}  // namespace

template <class T>
void attend_halves_grad(ArrayContext& c) {
  const Issue issue(c);
  const Operands<T> o(c, 6);
  const AttentionSizes& s = o.s;
  const T *const y = c.input(3).template as<T>(), *const g = c.input(5).template as<T>();
  T *const dq = c.output(0).template as<T>(), *const dk = c.output(1).template as<T>(),
           *const dv = c.output(2).template as<T>();
  const HalfGradients<T> f{o,
                           y,
                           g,
                           c.input(4).template as<float>(),
                           issue.scratch<float2>(std::max<std::int64_t>(1, s.query_rows())),
                           issue.scratch<unsigned>(1),
                           dq,
                           dk,
                           dv,
                           Scaling(s.scale),
                           in_chunks<T>(s, o.q, o.k, o.v, g, dq, dk, dv)};
  for_index(issue, 1, Nothing{f.some_unused});
  if (s.query_rows() > 0) issue.launch(prepare_rows<T>, grid_of_tasks((s.query_rows() + 15) / 16), f, s.query_rows());
  with_width(s, [&]<int W>() {
    launch_tasks(issue, query_gradients<T, W>, f, s.batch * s.heads, s.n);
    if constexpr (W <= 64) {
      launch_tasks(issue, key_gradients<T, W, true, true>, f, s.batch * s.groups, s.m);
    } else {  // the sums of both do not fit into registers
      launch_tasks(issue, key_gradients<T, W, true, false>, f, s.batch * s.groups, s.m);
      launch_tasks(issue, key_gradients<T, W, false, true>, f, s.batch * s.groups, s.m);
    }
  });
}
template void attend_halves_grad<Float16>(ArrayContext& c);
template void attend_halves_grad<BFloat16>(ArrayContext& c);

}  // namespace sluice::cuda
