// Attention. A block takes a tile of queries through the tiles of their keys, which lie in shared memory; for the
// gradients of keys and values, a tile of keys through the tiles of their queries (after FlashAttention, Dao and
// others, arXiv 2205.14135). Sums are those of a tile's terms, added up in double. Heads of more than 128 elements do
// not fit there: of these a thread takes each query or key, with sums in scratch memory.
#include "sluice/operators/backends/cuda/attention.h"
#include "sluice/operators/backends/cuda/kernels.h"

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

constexpr int kRows = 32, kLanes = 8, kTileThreads = kRows * kLanes;  // a tile's rows, and the threads of one

/// `rows` rows of a tile, from row `first` of `count`; what is beyond them, or their width, is 0.
template <int W, class T, class C = compute_of<T>>
__device__ void load_tile(C (*to)[W + 1], int rows, const T* from, std::int64_t first, std::int64_t count,
                          std::int64_t width) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * W; e += kTileThreads) {
    const int row = e / W, column = e % W;
    const bool inside = first + row < count && column < width;
    to[row][column] = inside ? static_cast<C>(number(from[(first + row) * width + column])) : C(0);
  }
}
/// Products of row r of a and rows c, c + kLanes, ... of b.
template <int W, int N, class C>
__device__ void products(const C (*a)[W + 1], const C (*b)[W + 1], int r, int c, std::int64_t width, C (&sums)[N]) {
  for (int j = 0; j < N; ++j) sums[j] = 0;
  for (int t = 0; t < width; ++t) {
    const C x = a[r][t];
    for (int j = 0; j < N; ++j) sums[j] = std::fma(x, b[c + kLanes * j][t], sums[j]);
  }
}
/// Columns c, c + kLanes, ... of a product of a row of weights and a tile are added to sums. A negative weight says
/// that the row of the tile is not seen, whatever is in it.
template <int W, int K, class C>
__device__ void add_rows(const C* weights, const C* seen, const C (*tile)[W + 1], int c, double (&sums)[W / kLanes]) {
  C part[W / kLanes] = {};
  for (int j = 0; j < K; ++j) {
    if (seen[j] < C(0)) continue;
    const C weight = weights[j];
    for (int t = 0; t < W / kLanes; ++t) part[t] = std::fma(weight, tile[j][c + kLanes * t], part[t]);
  }
  for (int t = 0; t < W / kLanes; ++t) sums[t] += static_cast<double>(part[t]);
}

/// Queries against tiles of K keys. Heads have at most W elements.
template <class T, int W, int K>
__global__ void attend_by_tiles(QueryResult<T> f, std::int64_t tiles, std::int64_t all) {
  using C = compute_of<T>;
  __shared__ C q[kRows][W + 1], k[K][W + 1], v[K][W + 1], p[kRows][K + 1];
  const AttentionSizes& s = f.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t head = task / tiles, first = task % tiles * kRows, i = first + r, group = s.group_of(head);
    const std::int64_t last = first + kRows < s.n ? first + kRows - 1 : s.n - 1, keys = i < s.n ? s.keys_of(i) : 0;
    load_tile<W>(q, kRows, f.o.q + head * s.n * s.size, first, s.n, s.size);
    double sums[W / kLanes] = {}, total = 0;
    C largest = -C(INFINITY);
    for (std::int64_t key = 0; key < s.keys_of(last); key += K) {
      load_tile<W>(k, K, f.o.k + group * s.m * s.size, key, s.m, s.size);
      load_tile<W>(v, K, f.o.v + group * s.m * s.value_size, key, s.m, s.value_size);
      __syncthreads();
      C scores[K / kLanes];
      products<W>(q, k, r, c, s.size, scores);
      for (int j = 0; j < K / kLanes; ++j) {
        const int at = c + kLanes * j;
        scores[j] = key + at < keys ? f.o.masked(head, i, key + at, scores[j]) : -C(INFINITY);
        p[r][at] = scores[j];
      }
      __syncthreads();
      C top = largest;
      for (int j = 0; j < K; ++j) top = p[r][j] > top ? p[r][j] : top;
      if (top > largest) {
        const auto shrink = static_cast<double>(std::exp(largest - top));
        total *= shrink;
        for (double& sum : sums) sum *= shrink;
        largest = top;
      }
      __syncthreads();
      for (int j = 0; j < K / kLanes; ++j) {
        p[r][c + kLanes * j] = scores[j] == -C(INFINITY) ? C(-1) : std::exp(scores[j] - largest);
      }
      __syncthreads();
      for (int j = 0; j < K; ++j) total += p[r][j] < C(0) ? 0 : static_cast<double>(p[r][j]);
      add_rows<W, K>(p[r], p[r], v, c, sums);
      __syncthreads();
    }
    if (i < s.n) {
      const std::int64_t row = head * s.n + i;
      const bool sees = total != 0;
      for (int t = 0; t < W / kLanes; ++t) {
        const int column = c + kLanes * t;
        if (column < s.value_size) {
          f.y[row * s.value_size + column] = T(sees ? static_cast<C>(sums[t] / total) : C(0));
        }
      }
      if (c == 0) f.logarithms[row] = sees ? largest + static_cast<C>(std::log(total)) : -C(INFINITY);
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
template <class T, int W, int K>
__global__ void query_gradients_by_tiles(QueryGradient<T> f, std::int64_t tiles, std::int64_t all) {
  using C = compute_of<T>;
  __shared__ C q[kRows][W + 1], g[kRows][W + 1], k[K][W + 1], v[K][W + 1], p[kRows][K + 1], ds[kRows][K + 1];
  const AttentionSizes& s = f.gradients.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t head = task / tiles, first = task % tiles * kRows, i = first + r, group = s.group_of(head);
    const std::int64_t last = first + kRows < s.n ? first + kRows - 1 : s.n - 1, row = head * s.n + i;
    const std::int64_t keys = i < s.n && f.gradients.counts(row) ? s.keys_of(i) : 0;
    load_tile<W>(q, kRows, f.gradients.o.q + head * s.n * s.size, first, s.n, s.size);
    load_tile<W>(g, kRows, f.gradients.g + head * s.n * s.value_size, first, s.n, s.value_size);
    double sums[W / kLanes] = {};
    for (std::int64_t key = 0; key < s.keys_of(last); key += K) {
      load_tile<W>(k, K, f.gradients.o.k + group * s.m * s.size, key, s.m, s.size);
      load_tile<W>(v, K, f.gradients.o.v + group * s.m * s.value_size, key, s.m, s.value_size);
      __syncthreads();
      C scores[K / kLanes], dp[K / kLanes];
      products<W>(q, k, r, c, s.size, scores);
      products<W>(g, v, r, c, s.value_size, dp);
      for (int j = 0; j < K / kLanes; ++j) {
        const int at = c + kLanes * j;
        f.gradients.weigh(head, i, key + at, key + at < keys, scores[j], dp[j], &p[r][at], &ds[r][at]);
      }
      __syncthreads();
      add_rows<W, K>(ds[r], p[r], k, c, sums);
      __syncthreads();
    }
    for (int t = 0; t < W / kLanes && i < s.n; ++t) {
      const int column = c + kLanes * t;
      if (column < s.size) f.dq[row * s.size + column] = T(static_cast<C>(sums[t]));
    }
    __syncthreads();
  }
}

/// Gradients of keys and values: keys against tiles of K queries.
template <class T, int W, int K>
__global__ void key_gradients_by_tiles(KeyGradient<T> f, std::int64_t tiles, std::int64_t all) {
  using C = compute_of<T>;
  __shared__ C k[kRows][W + 1], v[kRows][W + 1], q[K][W + 1], g[K][W + 1], p[kRows][K + 1], ds[kRows][K + 1];
  const AttentionSizes& s = f.gradients.o.s;
  const int r = static_cast<int>(threadIdx.x) / kLanes, c = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t of_group = s.heads / s.groups;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t group = task / tiles, first = task % tiles * kRows, key = first + r;
    load_tile<W>(k, kRows, f.gradients.o.k + group * s.m * s.size, first, s.m, s.size);
    load_tile<W>(v, kRows, f.gradients.o.v + group * s.m * s.value_size, first, s.m, s.value_size);
    double of_k[W / kLanes] = {}, of_v[W / kLanes] = {};
    for (std::int64_t h = 0; h < of_group; ++h) {
      const std::int64_t head = group / s.groups * s.heads + group % s.groups * of_group + h;
      for (std::int64_t query = s.first_query_of(first) / K * K; query < s.n; query += K) {
        load_tile<W>(q, K, f.gradients.o.q + head * s.n * s.size, query, s.n, s.size);
        load_tile<W>(g, K, f.gradients.g + head * s.n * s.value_size, query, s.n, s.value_size);
        __syncthreads();
        C scores[K / kLanes], dp[K / kLanes];
        products<W>(k, q, r, c, s.size, scores);
        products<W>(v, g, r, c, s.value_size, dp);
        for (int j = 0; j < K / kLanes; ++j) {
          const int at = c + kLanes * j;
          const std::int64_t i = query + at;
          const bool seen = key < s.m && i < s.n && key < s.keys_of(i) && f.gradients.counts(head * s.n + i);
          f.gradients.weigh(head, i, key, seen, scores[j], dp[j], &p[r][at], &ds[r][at]);
        }
        __syncthreads();
        add_rows<W, K>(p[r], p[r], g, c, of_v);
        add_rows<W, K>(ds[r], p[r], q, c, of_k);
        __syncthreads();
      }
    }
    const std::int64_t row = group * s.m + key;
    for (int t = 0; t < W / kLanes && key < s.m; ++t) {
      const int column = c + kLanes * t;
      if (column < s.size) f.dk[row * s.size + column] = T(static_cast<C>(of_k[t]));
      if (column < s.value_size) f.dv[row * s.value_size + column] = T(static_cast<C>(of_v[t]));
    }
    __syncthreads();
  }
}

/// Launches one of the kernels above for `heads` heads of `rows` rows.
template <class F>
void launch_tiles(const Issue& issue, void (*kernel)(F, std::int64_t, std::int64_t), const F& f, std::int64_t heads,
                  std::int64_t rows) {
  const std::int64_t tiles = (rows + kRows - 1) / kRows;
  if (heads * tiles == 0) return;
  Grid grid = grid_for(heads * tiles * kTileThreads);
  grid.barriers = true;
  issue.launch(kernel, grid, f, tiles, heads * tiles);
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
    const int width = tile_width<T>(s);
    constexpr bool narrow = sizeof(C) == 4;
    if (width == 64) return launch_tiles(issue, attend_by_tiles < T, 64, narrow ? 32 : 16 >, f, s.batch * s.heads, s.n);
    if constexpr (narrow) {
      if (width == 128) return launch_tiles(issue, attend_by_tiles<T, 128, 16>, f, s.batch * s.heads, s.n);
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
    const auto by_tiles = [&]<int W, int K>() {
      for_index(issue, s.query_rows(), Deltas<T>{gradients, y});
      launch_tiles(issue, query_gradients_by_tiles<T, W, K>, of_queries, s.batch * s.heads, s.n);
      launch_tiles(issue, key_gradients_by_tiles<T, W, K>, of_keys, s.batch * s.groups, s.m);
    };
    const int width = tile_width<T>(s);
    constexpr bool narrow = sizeof(C) == 4;
    if (width == 64) return by_tiles.template operator() < 64, narrow ? 16 : 8 > ();
    if constexpr (narrow) {
      if (width == 128) return by_tiles.template operator()<128, 8>();
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
