// Attention. A block takes a tile of queries through the tiles of their keys, which lie in shared memory; for the
// gradients of keys and values, a tile of keys through the tiles of their queries (after FlashAttention, Dao and
// others, arXiv 2205.14135). Sums are those of a tile's terms, added up in double. Heads of more than 128 elements do
// not fit there: of these a thread takes each query or key, with sums in scratch memory. f16 and bf16 have kernels of
// their own up to that size (attention_halves.cu).
#include "sluice/operators/backends/cuda/attention.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/backends/cuda/tensor_cores.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

template <class T>
struct QueryResult {
  using C = compute_of<T>;
  Operands<T> o;
  T* y;
  C* logarithms;
  double* sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(y);
    visit(logarithms);
    visit(sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = o.s;
    const std::int64_t head = row / s.n, i = row % s.n, width = s.value_size, keys = s.keys_of(i);
    double* const sum = sums + row * width;
    for (std::int64_t t = 0; t < width; ++t) sum[t] = 0;
    C largest = -C(INFINITY);
    double total = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const C score = o.score(head, i, j);
      if (score == -C(INFINITY)) continue;
      if (score > largest) {
        const double shrink = static_cast<double>(std::exp(largest - score));
        total *= shrink;
        for (std::int64_t t = 0; t < width; ++t) sum[t] *= shrink;
        largest = score;
      }
      const auto p = static_cast<double>(std::exp(score - largest));
      total += p;
      const T* const value = o.v + (s.group_of(head) * s.m + j) * width;
      for (std::int64_t t = 0; t < width; ++t) sum[t] += p * static_cast<double>(number(value[t]));
    }
    const bool sees = total != 0;
    for (std::int64_t t = 0; t < width; ++t) y[row * width + t] = T(sees ? static_cast<C>(sum[t] / total) : C(0));
    logarithms[row] = sees ? largest + static_cast<C>(std::log(total)) : -C(INFINITY);
  }
};

/// What the gradients of queries and of keys use.
template <class T>
struct Gradients {
  using C = compute_of<T>;
  Operands<T> o;
  const T* g;
  const C* logarithms;
  C* deltas;             ///< the products of each query's result and its gradient
  std::uint8_t* unused;  ///< whether that gradient is 0: then nothing depends on the query
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(g);
    visit(logarithms);
    visit(deltas);
    visit(unused);
  }
  /// What is known of a query's gradient before the others.
  __device__ void begin(std::int64_t row, const T* y) const {
    const AttentionSizes& s = o.s;
    deltas[row] = product(g + row * s.value_size, y + row * s.value_size, s.value_size);
    std::uint8_t zero = 1;
    for (std::int64_t t = 0; t < s.value_size; ++t) {
      if (number(g[row * s.value_size + t]) != C(0)) zero = 0;
    }
    unused[row] = zero;
  }
  /// Whether anything depends on a query.
  __device__ bool counts(std::int64_t row) const { return logarithms[row] != -C(INFINITY) && unused[row] == 0; }
  /// From the products of a query and a key, and of the gradient and the value, for a pair that may be seen: the weight
  /// p, -1 if it is not, and the gradient ds of their score.
  __device__ void weigh(std::int64_t head, std::int64_t i, std::int64_t j, bool seen, C dot, C dp, C* p, C* ds) const {
    const C score = seen ? o.masked(head, i, j, dot) : -C(INFINITY);
    *p = -1;
    *ds = 0;
    if (score == -C(INFINITY)) return;
    const std::int64_t row = head * o.s.n + i;
    *p = std::exp(score - logarithms[row]);
    *ds = *p * (dp - deltas[row]) * static_cast<C>(o.s.scale);
  }
  /// Whether query i of a head sees key j; then the weight p of the key, and the gradient ds of their score.
  __device__ bool at(std::int64_t head, std::int64_t i, std::int64_t j, C* p, C* ds) const {
    const AttentionSizes& s = o.s;
    const std::int64_t row = head * s.n + i, width = s.value_size;
    const C score = counts(row) ? o.score(head, i, j) : -C(INFINITY);
    if (score == -C(INFINITY)) return false;
    *p = std::exp(score - logarithms[row]);
    const C dp = product(g + row * width, o.v + (s.group_of(head) * s.m + j) * width, width);
    *ds = *p * (dp - deltas[row]) * static_cast<C>(s.scale);
    return true;
  }
};

template <class T>
struct QueryGradient {
  using C = compute_of<T>;
  Gradients<T> gradients;
  const T* y;
  T* dq;
  double* sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    gradients.each_pointer(visit);
    visit(y);
    visit(dq);
    visit(sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = gradients.o.s;
    const std::int64_t head = row / s.n, i = row % s.n, keys = s.keys_of(i);
    gradients.begin(row, y);
    double* const sum = sums + row * s.size;
    for (std::int64_t t = 0; t < s.size; ++t) sum[t] = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      C p, ds;
      if (!gradients.at(head, i, j, &p, &ds)) continue;
      const T* const key = gradients.o.k + (s.group_of(head) * s.m + j) * s.size;
      for (std::int64_t t = 0; t < s.size; ++t) sum[t] += static_cast<double>(ds * number(key[t]));
    }
    for (std::int64_t t = 0; t < s.size; ++t) dq[row * s.size + t] = T(static_cast<C>(sum[t]));
  }
};

template <class T>
struct KeyGradient {
  using C = compute_of<T>;
  Gradients<T> gradients;
  T *dk, *dv;
  double *key_sums, *value_sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    gradients.each_pointer(visit);
    visit(dk);
    visit(dv);
    visit(key_sums);
    visit(value_sums);
  }
  __device__ void operator()(std::int64_t row) const {
    const AttentionSizes& s = gradients.o.s;
    const std::int64_t group = row / s.m, j = row % s.m, width = s.value_size, of_group = s.heads / s.groups;
    double *const of_k = key_sums + row * s.size, *const of_v = value_sums + row * width;
    for (std::int64_t t = 0; t < s.size; ++t) of_k[t] = 0;
    for (std::int64_t t = 0; t < width; ++t) of_v[t] = 0;
    for (std::int64_t h = 0; h < of_group; ++h) {
      const std::int64_t head = group / s.groups * s.heads + group % s.groups * of_group + h;
      for (std::int64_t i = s.first_query_of(j); i < s.n; ++i) {
        C p, ds;
        if (!gradients.at(head, i, j, &p, &ds)) continue;
        const std::int64_t query = head * s.n + i;
        for (std::int64_t t = 0; t < s.size; ++t)
          of_k[t] += static_cast<double>(ds * number(gradients.o.q[query * s.size + t]));
        for (std::int64_t t = 0; t < width; ++t)
          of_v[t] += static_cast<double>(p * number(gradients.g[query * width + t]));
      }
    }
    for (std::int64_t t = 0; t < s.size; ++t) dk[row * s.size + t] = T(static_cast<C>(of_k[t]));
    for (std::int64_t t = 0; t < width; ++t) dv[row * width + t] = T(static_cast<C>(of_v[t]));
  }
};

// ---- by tiles

/// A tile's rows are taken by 16 groups of 8 lanes. A thread of group r and lane c has rows r, r + 16, ... of a tile of
/// its block, and of products those with rows c, c + 8, ... of a tile that the block goes through; of sums it has
/// columns in packs of 16 bytes: pack c, c + 8, ... of each row.
constexpr int kGroups = 16, kLanes = 8, kTileThreads = kGroups * kLanes;

template <class C>
constexpr int kPack = 16 / static_cast<int>(sizeof(C));
/// W elements, and a pack so that the rows which are read together lie in different banks.
template <class C, int W>
using Row = Pack<C, kPack<C>>[W / kPack<C> + 1];

/// `rows` rows of a tile, from row `first` of `count`; what is beyond them, or their width, is 0.
template <int W, class C>
__device__ void load_tile(Row<C, W>* to, int rows, const C* from, std::int64_t first, std::int64_t count,
                          std::int64_t width, bool by_packs) {
  constexpr int kPacks = W / kPack<C>;
  for (int e = static_cast<int>(threadIdx.x); e < rows * kPacks; e += kTileThreads) {
    const int row = e / kPacks, column = e % kPacks * kPack<C>;
    const C* const at = from + (first + row) * width + column;
    Pack<C, kPack<C>> pack{};
    if (by_packs) {
      if (first + row < count && column < width) pack = *reinterpret_cast<const Pack<C, kPack<C>>*>(at);
    } else {
      SLUICE_UNROLL for (int i = 0; i < kPack<C>; ++i) {
        if (first + row < count && column + i < width) pack.v[i] = at[i];
      }
    }
    to[row][e % kPacks] = pack;
  }
}
/// Products of the thread's rows of a and its rows of b.
template <int W, int M, int N, class C>
__device__ void products(const Row<C, W>* a, const Row<C, W>* b, int r, int c, C (&sums)[M][N]) {
  SLUICE_UNROLL for (int i = 0; i < M; ++i) { SLUICE_UNROLL for (int j = 0; j < N; ++j) sums[i][j] = 0; }
  SLUICE_SOME_UNROLL for (int t = 0; t < W / kPack<C>; ++t) {
    Pack<C, kPack<C>> x[M];
    SLUICE_UNROLL for (int i = 0; i < M; ++i) x[i] = a[r + i * kGroups][t];
    SLUICE_UNROLL for (int j = 0; j < N; ++j) {
      const Pack<C, kPack<C>> y = b[c + j * kLanes][t];
      SLUICE_UNROLL for (int i = 0; i < M; ++i) {
        SLUICE_UNROLL for (int k = 0; k < kPack<C>; ++k) sums[i][j] = std::fma(x[i].v[k], y.v[k], sums[i][j]);
      }
    }
  }
}
/// The thread's columns of the products of its rows of weights and the tile's K rows are added to sums. A negative
/// number in `seen` says that the row of the tile is not seen, whatever is in it; there is none unless `hides`.
template <int W, int K, int M, class C>
__device__ void add_rows(const Row<C, K>* weights, const Row<C, K>* seen, bool hides, const Row<C, W>* tile, int r,
                         int c, double (&sums)[M][W / kLanes]) {
  constexpr int kPacks = W / kPack<C> / kLanes;
  C part[M][W / kLanes] = {};
  SLUICE_NO_UNROLL for (int j = 0; j < K; j += kPack<C>) {
    Pack<C, kPack<C>> x[M], mark[M] = {};
    SLUICE_UNROLL for (int i = 0; i < M; ++i) {
      x[i] = weights[r + i * kGroups][j / kPack<C>];
      if (hides) mark[i] = seen[r + i * kGroups][j / kPack<C>];
    }
    SLUICE_UNROLL for (int k = 0; k < kPack<C>; ++k) {
      SLUICE_UNROLL for (int t = 0; t < kPacks; ++t) {
        const Pack<C, kPack<C>> y = tile[j + k][c + t * kLanes];
        SLUICE_UNROLL for (int i = 0; i < M; ++i) {
          if (mark[i].v[k] < C(0)) continue;
          SLUICE_UNROLL for (int e = 0; e < kPack<C>; ++e) {
            C& sum = part[i][t * kPack<C> + e];
            sum = std::fma(x[i].v[k], y.v[e], sum);
          }
        }
      }
    }
  }
  SLUICE_UNROLL for (int i = 0; i < M; ++i) {
    SLUICE_UNROLL for (int t = 0; t < W / kLanes; ++t) sums[i][t] += static_cast<double>(part[i][t]);
  }
}
/// Stores a row's sums, divided by a number.
template <class C, int N>
__device__ void store_row(C* to, const double (&sums)[N], int c, std::int64_t width, double by) {
  SLUICE_UNROLL for (int t = 0; t < N; ++t) {
    const int column = (t / kPack<C> * kLanes + c) * kPack<C> + t % kPack<C>;
    if (column < width) to[column] = static_cast<C>(sums[t] / by);
  }
}
/// The largest of eight lanes.
template <class C>
__device__ C largest_of_lanes(C x) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const C other = __shfl_xor_sync(kWarp, x, step);
    x = other > x ? other : x;
  }
  return x;
}

/// M * 16 queries against tiles of K keys. Heads have at most W elements.
template <class C, int W, int M, int K>
__global__ void __launch_bounds__(kTileThreads, 3)
    attend_by_tiles(QueryResult<C> f, std::int64_t tiles, std::int64_t all, bool by_packs) {
  constexpr int kRows = M * kGroups, N = K / kLanes;
  __shared__ Row<C, W> q[kRows], k[K], v[K];
  __shared__ Row<C, K> p[kRows];
  const AttentionSizes& s = f.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t head = task / tiles, first = (tiles - 1 - task % tiles) * kRows, group = s.group_of(head);
    const std::int64_t end = s.keys_of(std::min<std::int64_t>(first + kRows, s.n) - 1);
    load_tile<W>(q, kRows, f.o.q + head * s.n * s.size, first, s.n, s.size, by_packs);
    double sums[M][W / kLanes] = {}, total[M] = {};
    C largest[M];
    SLUICE_UNROLL for (C& each : largest) each = -C(INFINITY);
    for (std::int64_t key = 0; key < end; key += K) {
      load_tile<W>(k, K, f.o.k + group * s.m * s.size, key, s.m, s.size, by_packs);
      load_tile<W>(v, K, f.o.v + group * s.m * s.value_size, key, s.m, s.value_size, by_packs);
      __syncthreads();
      const bool hides = f.o.mask || key + K > s.keys_of(first) || key + K > s.m;
      C scores[M][N];
      products<W>(q, k, r, c, scores);
      SLUICE_UNROLL for (int i = 0; i < M; ++i) {
        const std::int64_t query = first + r + i * kGroups, keys = query < s.n ? s.keys_of(query) : 0;
        C top = largest[i];
        SLUICE_UNROLL for (int j = 0; j < N; ++j) {
          const std::int64_t at = key + c + kLanes * j;
          scores[i][j] = at < keys ? f.o.masked(head, query, at, scores[i][j]) : -C(INFINITY);
          top = scores[i][j] > top ? scores[i][j] : top;
        }
        top = largest_of_lanes(top);
        if (top > largest[i]) {
          const auto shrink = static_cast<double>(std::exp(largest[i] - top));
          total[i] *= shrink;
          SLUICE_UNROLL for (double& sum : sums[i]) sum *= shrink;
          largest[i] = top;
        }
        SLUICE_UNROLL for (int j = 0; j < N; ++j) {
          const C weight = scores[i][j] == -C(INFINITY) ? C(-1) : std::exp(scores[i][j] - largest[i]);
          const int column = c + kLanes * j;
          p[r + i * kGroups][column / kPack<C>].v[column % kPack<C>] = !hides && weight < C(0) ? C(0) : weight;
          total[i] += weight < C(0) ? 0 : static_cast<double>(weight);
        }
      }
      __syncwarp();
      add_rows<W, K>(p, p, hides, v, r, c, sums);
      __syncthreads();
    }
    SLUICE_UNROLL for (int i = 0; i < M; ++i) {
      for (int step = kLanes / 2; step > 0; step /= 2) total[i] += __shfl_xor_sync(kWarp, total[i], step);
      const std::int64_t query = first + r + i * kGroups, row = head * s.n + query;
      if (query >= s.n) continue;
      const bool sees = total[i] != 0;
      store_row(f.y + row * s.value_size, sums[i], c, s.value_size, sees ? total[i] : 1);
      if (c == 0) f.logarithms[row] = sees ? largest[i] + static_cast<C>(std::log(total[i])) : -C(INFINITY);
    }
    __syncthreads();
  }
}

template <class T>
struct Deltas {
  Gradients<T> gradients;
  const T* y;
  template <class Visit>
  void each_pointer(Visit visit) {
    gradients.each_pointer(visit);
    visit(y);
  }
  __device__ void operator()(std::int64_t row) const { gradients.begin(row, y); }
};

/// Gradients of queries, as attend_by_tiles.
template <class C, int W, int M, int K>
__global__ void __launch_bounds__(kTileThreads)
    query_gradients_by_tiles(QueryGradient<C> f, std::int64_t tiles, std::int64_t all, bool by_packs) {
  constexpr int kRows = M * kGroups, N = K / kLanes;
  __shared__ Row<C, W> q[kRows], g[kRows], k[K], v[K];
  __shared__ Row<C, K> p[kRows], ds[kRows];
  const AttentionSizes& s = f.gradients.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t head = task / tiles, first = (tiles - 1 - task % tiles) * kRows, group = s.group_of(head);
    const std::int64_t end = s.keys_of(std::min<std::int64_t>(first + kRows, s.n) - 1);
    load_tile<W>(q, kRows, f.gradients.o.q + head * s.n * s.size, first, s.n, s.size, by_packs);
    load_tile<W>(g, kRows, f.gradients.g + head * s.n * s.value_size, first, s.n, s.value_size, by_packs);
    double sums[M][W / kLanes] = {};
    for (std::int64_t key = 0; key < end; key += K) {
      load_tile<W>(k, K, f.gradients.o.k + group * s.m * s.size, key, s.m, s.size, by_packs);
      load_tile<W>(v, K, f.gradients.o.v + group * s.m * s.value_size, key, s.m, s.value_size, by_packs);
      __syncthreads();
      C scores[M][N], dp[M][N];
      products<W>(q, k, r, c, scores);
      products<W>(g, v, r, c, dp);
      SLUICE_UNROLL for (int i = 0; i < M; ++i) {
        const int mine = r + i * kGroups;
        const std::int64_t query = first + mine;
        const std::int64_t keys = query < s.n && f.gradients.counts(head * s.n + query) ? s.keys_of(query) : 0;
        SLUICE_UNROLL for (int j = 0; j < N; ++j) {
          const int at = c + kLanes * j;
          f.gradients.weigh(head, query, key + at, key + at < keys, scores[i][j], dp[i][j],
                            &p[mine][at / kPack<C>].v[at % kPack<C>], &ds[mine][at / kPack<C>].v[at % kPack<C>]);
        }
      }
      __syncwarp();
      add_rows<W, K>(ds, p, true, k, r, c, sums);
      __syncthreads();
    }
    SLUICE_UNROLL for (int i = 0; i < M; ++i) {
      const std::int64_t query = first + r + i * kGroups;
      if (query < s.n) store_row(f.dq + (head * s.n + query) * s.size, sums[i], c, s.size, 1);
    }
    __syncthreads();
  }
}

/// Gradients of keys and values: M * 16 keys against tiles of K queries.
template <class C, int W, int M, int K>
__global__ void __launch_bounds__(kTileThreads)
    key_gradients_by_tiles(KeyGradient<C> f, std::int64_t tiles, std::int64_t all, bool by_packs) {
  constexpr int kRows = M * kGroups, N = K / kLanes;
  __shared__ Row<C, W> k[kRows], v[kRows], q[K], g[K];
  __shared__ Row<C, K> p[kRows], ds[kRows];
  const AttentionSizes& s = f.gradients.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t of_group = s.heads / s.groups;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t group = task / tiles, first = task % tiles * kRows;
    load_tile<W>(k, kRows, f.gradients.o.k + group * s.m * s.size, first, s.m, s.size, by_packs);
    load_tile<W>(v, kRows, f.gradients.o.v + group * s.m * s.value_size, first, s.m, s.value_size, by_packs);
    double of_k[M][W / kLanes] = {}, of_v[M][W / kLanes] = {};
    for (std::int64_t h = 0; h < of_group; ++h) {
      const std::int64_t head = group / s.groups * s.heads + group % s.groups * of_group + h;
      for (std::int64_t query = s.first_query_of(first) / K * K; query < s.n; query += K) {
        load_tile<W>(q, K, f.gradients.o.q + head * s.n * s.size, query, s.n, s.size, by_packs);
        load_tile<W>(g, K, f.gradients.g + head * s.n * s.value_size, query, s.n, s.value_size, by_packs);
        __syncthreads();
        C scores[M][N], dp[M][N];
        products<W>(k, q, r, c, scores);
        products<W>(v, g, r, c, dp);
        SLUICE_UNROLL for (int j = 0; j < N; ++j) {
          const int at = c + kLanes * j;
          const std::int64_t i = query + at, keys = i < s.n && f.gradients.counts(head * s.n + i) ? s.keys_of(i) : 0;
          SLUICE_UNROLL for (int row = 0; row < M; ++row) {
            const int mine = r + row * kGroups;
            f.gradients.weigh(head, i, first + mine, first + mine < keys, scores[row][j], dp[row][j],
                              &p[mine][at / kPack<C>].v[at % kPack<C>], &ds[mine][at / kPack<C>].v[at % kPack<C>]);
          }
        }
        __syncwarp();
        add_rows<W, K>(p, p, true, g, r, c, of_v);
        add_rows<W, K>(ds, p, true, q, r, c, of_k);
        __syncthreads();
      }
    }
    SLUICE_UNROLL for (int row = 0; row < M; ++row) {
      const std::int64_t key = first + r + row * kGroups, at = group * s.m + key;
      if (key >= s.m) continue;
      store_row(f.dk + at * s.size, of_k[row], c, s.size, 1);
      store_row(f.dv + at * s.value_size, of_v[row], c, s.value_size, 1);
    }
    __syncthreads();
  }
}

/// Launches one of the kernels above for `heads` heads of `rows` rows, of which a block takes M * 16.
template <int M, class F>
void launch_tiles(const Issue& issue, void (*kernel)(F, std::int64_t, std::int64_t, bool), const F& f,
                  std::int64_t heads, std::int64_t rows, bool by_packs) {
  const std::int64_t tiles = (rows + M * kGroups - 1) / (M * kGroups);
  if (heads * tiles == 0) return;
  Grid grid = grid_for(heads * tiles * kTileThreads);
  grid.blocks = static_cast<unsigned>(std::min(heads * tiles, most_blocks.load(std::memory_order_relaxed)));
  grid.threads = kTileThreads;
  grid.barriers = true;
  issue.launch(kernel, grid, f, tiles, heads * tiles, by_packs);
}
/// Whether the operands' rows are aligned to packs.
template <class C>
bool in_packs(const Operands<C>& o, const C* g) {
  const auto aligned = [](const C* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  return o.s.size % kPack<C> == 0 && o.s.value_size % kPack<C> == 0 && aligned(o.q) && aligned(o.k) && aligned(o.v) &&
         aligned(g);
}
/// 64, 128, or 0 where tiles do not fit into shared memory.
template <class T>
int tile_width(const AttentionSizes& s) {
  const std::int64_t width = std::max(s.size, s.value_size);
  return width <= 64 ? 64 : width <= 128 && sizeof(compute_of<T>) == 4 ? 128 : 0;
}

template <class C>
C* numbers(const Issue& issue, std::int64_t count) {
  return issue.scratch<C>(std::max<std::int64_t>(1, count));
}

template <class T>
struct Attention {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const Issue issue(c);
    const Operands<T> operands(c, 3);
    if constexpr (sizeof(T) == 2) {
      if (std::max(operands.s.size, operands.s.value_size) <= kWidestHalves) return attend_halves<T>(c);
    }
    const AttentionSizes& s = operands.s;
    QueryResult<T> f{operands, c.output(0).template as<T>(), c.output(1).template as<C>(), nullptr};
    if constexpr (sizeof(T) > 2) {
      const int width = tile_width<T>(s);
      constexpr bool narrow = sizeof(C) == 4;
      const auto by_tiles = [&]<int W, int M, int K>() {
        launch_tiles<M>(issue, attend_by_tiles<T, W, M, K>, f, s.batch * s.heads, s.n,
                        in_packs<T>(operands, operands.q));
      };
      if (width == 64) return by_tiles.template operator() < 64, narrow ? 4 : 2, narrow ? 32 : 16 > ();
      if constexpr (narrow) {
        if (width == 128) return by_tiles.template operator()<128, 2, 16>();
      }
    }
    f.sums = numbers<double>(issue, c.output(0).count());
    for_index(issue, s.query_rows(), f);
  }
};
template <class T>
struct AttentionGrad {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const Issue issue(c);
    const Operands<T> operands(c, 6);
    if constexpr (sizeof(T) == 2) {
      if (std::max(operands.s.size, operands.s.value_size) <= kWidestHalves) return attend_halves_grad<T>(c);
    }
    const AttentionSizes& s = operands.s;
    const Gradients<T> gradients{operands, c.input(5).template as<T>(), c.input(4).template as<C>(),
                                 numbers<C>(issue, s.query_rows()), numbers<std::uint8_t>(issue, s.query_rows())};
    const T* const y = c.input(3).template as<T>();
    QueryGradient<T> of_queries{gradients, y, c.output(0).template as<T>(), nullptr};
    KeyGradient<T> of_keys{gradients, c.output(1).template as<T>(), c.output(2).template as<T>(), nullptr, nullptr};
    if constexpr (sizeof(T) > 2) {
      const auto by_tiles = [&]<int W, int M, int K>() {
        const bool by_packs = in_packs<T>(operands, gradients.g);
        for_index(issue, s.query_rows(), Deltas<T>{gradients, y});
        launch_tiles<M>(issue, query_gradients_by_tiles<T, W, M, K>, of_queries, s.batch * s.heads, s.n, by_packs);
        launch_tiles<M>(issue, key_gradients_by_tiles<T, W, M, K>, of_keys, s.batch * s.groups, s.m, by_packs);
      };
      const int width = tile_width<T>(s);
      constexpr bool narrow = sizeof(C) == 4;
      if (width == 64) return by_tiles.template operator() < 64, 2, narrow ? 32 : 8 > ();
      if constexpr (narrow) {
        if (width == 128) return by_tiles.template operator()<128, 2, 8>();
      }
    }
    of_queries.sums = numbers<double>(issue, c.output(0).count());
    of_keys.key_sums = numbers<double>(issue, c.output(1).count());
    of_keys.value_sums = numbers<double>(issue, c.output(2).count());
    for_index(issue, s.query_rows(), of_queries);
    for_index(issue, s.key_rows(), of_keys);
  }
};

}  // namespace

void add_attention_kernels(const Rows& rows) {
  rows.add<Attention>("attention", backends::Floating{}, kDense);
  rows.add<AttentionGrad>("attention_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
