// Folds of groups of elements, in a tree that depends on the shape and the strides alone, never on the grid.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/walk.h"

namespace sluice::cuda {

/// Where the elements of groups are: element i of group g is at groups(g) + elements(i).
struct Groups {
  Walk<1> groups, elements;

  /// Of a window, whose axes with bits in `reduced` are those of the elements.
  static Groups of(const TensorView& x, std::uint32_t reduced) {
    TensorView kept = x, gone = x;
    kept.shape = kept.strides = gone.shape = gone.strides = Dims{};
    for (int i = 0; i < x.shape.rank(); ++i) {
      TensorView& side = (reduced >> i & 1U) != 0 ? gone : kept;
      side.shape.push_back(x.shape[i]);
      side.strides.push_back(x.strides[i]);
    }
    const TensorView* const k[] = {&kept};
    const TensorView* const g[] = {&gone};
    return {Walk<1>(k), Walk<1>(g)};
  }
  __device__ std::int64_t at(std::int64_t group, std::int64_t element) const { return begin(group) + step(element); }
  /// Where a group begins, and how far from there its elements are.
  __device__ std::int64_t begin(std::int64_t group) const {
    std::int64_t at[1];
    groups.find(group, at);
    return at[0];
  }
  __device__ std::int64_t step(std::int64_t element) const {
    if (elements.rank < 2) return elements.rank == 0 ? 0 : element * elements.strides[0][0];
    std::int64_t at[1];
    elements.find(element, at);
    return at[0];
  }
  /// Neighbouring groups lie side by side, and elements of a group do not.
  bool columns() const {
    const auto step = [](const Walk<1>& w) { return w.rank == 0 ? 0 : w.strides[0][w.rank - 1]; };
    return step(groups) == 1 && step(elements) != 1;
  }
};

/// A policy P of a fold has: Item; load(x, place of the element in its group) -> Item; join(a, b) -> Item, where a is
/// from earlier elements; and empty() -> Item, for groups without elements.
inline constexpr std::int64_t kFoldThreads = 256, kRowChunk = 4096, kLongRowChunk = 16384, kColumnChunk = 256;

/// How many of a block's threads work on one row of n: all for long rows, few for short ones.
inline int lanes_for(std::int64_t n) { return n <= 32 ? 1 : n <= 1024 ? 32 : static_cast<int>(kFoldThreads); }

/// Joins elements begin, begin + step, ... below end, in order. Four are loaded at once.
template <class P, class T>
__device__ typename P::Item fold_some(const P& policy, const T* x, const Groups& places, std::int64_t first,
                                      std::int64_t begin, std::int64_t end, std::int64_t step) {
  using Item = typename P::Item;
  const auto load = [&](std::int64_t i) { return policy.load(x[first + places.step(i)], i); };
  if (begin >= end) return P::empty();
  Item item = load(begin);
  std::int64_t i = begin + step;
  for (; i + 3 * step < end; i += 4 * step) {
    const Item a = load(i), b = load(i + step), c = load(i + 2 * step), d = load(i + 3 * step);
    item = P::join(P::join(P::join(P::join(item, a), b), c), d);
  }
  for (; i < end; i += step) item = P::join(item, load(i));
  return item;
}

/// Some threads of a block for each chunk of each group; results[group * chunks + chunk].
template <class P, class T>
struct RowFold {
  P policy;
  const T* x;
  typename P::Item* results;
  Groups places;
  std::int64_t chunk, chunks;
  int lanes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(results);
  }
};
template <class P, class T>
__global__ void fold_rows(RowFold<P, T> f) {
  using Item = typename P::Item;
  __shared__ Item items[kFoldThreads];
  const std::int64_t total = f.places.groups.count * f.chunks, at_once = kFoldThreads / f.lanes;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % f.lanes;
  for (std::int64_t first = blockIdx.x * at_once; first < total; first += gridDim.x * at_once) {
    const std::int64_t task = first + thread / f.lanes;
    std::int64_t n = 0;
    Item item = P::empty();
    if (task < total) {
      const std::int64_t group = task / f.chunks, begin = task % f.chunks * f.chunk;
      const std::int64_t left = f.places.elements.count - begin;
      n = left < f.chunk ? left : f.chunk;
      item = fold_some(f.policy, f.x, f.places, f.places.begin(group), begin + lane, begin + n, f.lanes);
    }
    items[thread] = item;
    __syncthreads();
    for (int half = f.lanes / 2; half > 0; half /= 2) {
      if (lane < half && lane + half < n) items[thread] = P::join(items[thread], items[thread + half]);
      __syncthreads();
    }
    if (lane == 0 && task < total) f.results[task] = items[thread];
    __syncthreads();
  }
}

/// A thread for each chunk of each group, in order.
template <class P, class T>
struct ColumnFold {
  P policy;
  const T* x;
  typename P::Item* results;
  Groups places;
  std::int64_t chunk, chunks;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(results);
  }
  __device__ void operator()(std::int64_t task) const {
    const std::int64_t groups = places.groups.count;
    const std::int64_t group = task % groups, begin = task / groups * chunk;
    const std::int64_t left = places.elements.count - begin, n = left < chunk ? left : chunk;
    results[group * chunks + task / groups] =
        fold_some(policy, x, places, places.begin(group), begin, begin + n, std::int64_t{1});
  }
};

/// Joins what is joined already.
template <class P>
struct JoinItems {
  using Item = typename P::Item;
  __device__ Item load(const Item& item, std::int64_t) const { return item; }
  __device__ static Item join(const Item& a, const Item& b) { return P::join(a, b); }
  __device__ static Item empty() { return P::empty(); }
};

/// The chunks' results of each group, in order; then store(group, item).
template <class P, class Store>
struct LastFold {
  const typename P::Item* items;
  Store store;
  std::int64_t chunks;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(items);
    store.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t group) const {
    typename P::Item item = chunks > 0 ? items[group * chunks] : P::empty();
    for (std::int64_t i = 1; i < chunks; ++i) item = P::join(item, items[group * chunks + i]);
    store(group, item);
  }
};

/// `count` rows of n numbers that lie side by side.
inline Groups dense_rows(std::int64_t count, std::int64_t n) {
  return Groups::of(TensorView{nullptr, DType::u8, {count, n}, {n, 1}}, 2);
}

template <class P, class T>
void fold_chunks(const Issue& issue, const P& policy, const T* x, const Groups& places, std::int64_t chunk,
                 std::int64_t chunks, typename P::Item* results) {
  const int lanes = lanes_for(std::min(places.elements.count, chunk));
  Grid grid = grid_for(places.groups.count * chunks * lanes);
  grid.barriers = true;
  issue.launch(fold_rows<P, T>, grid, RowFold<P, T>{policy, x, results, places, chunk, chunks, lanes});
}

/// Issues the folds of all groups of x. Store is a plain struct with each_pointer and store(group, item) as a call.
template <class P, class T, class Store>
void fold(const Issue& issue, const P& policy, const T* x, const Groups& places, const Store& store) {
  using Item = typename P::Item;
  constexpr std::int64_t kLong = std::int64_t{1} << 22, kInOrder = 32;  // elements of all groups; chunks of a thread
  const std::int64_t groups = places.groups.count, n = places.elements.count;
  if (groups == 0) return;
  const bool columns = places.columns();
  const std::int64_t chunk = columns ? kColumnChunk : groups * n < kLong ? kRowChunk : kLongRowChunk;
  std::int64_t chunks = (n + chunk - 1) / chunk;
  auto* items = issue.scratch<Item>(std::max<std::int64_t>(1, groups * chunks));
  if (chunks > 0 && columns) {
    for_index(issue, groups * chunks, ColumnFold<P, T>{policy, x, items, places, chunk, chunks});
  } else if (chunks > 0) {
    fold_chunks(issue, policy, x, places, chunk, chunks, items);
  }
  while (chunks > kInOrder) {
    const std::int64_t fewer = (chunks + kRowChunk - 1) / kRowChunk;
    auto* const joined = issue.scratch<Item>(groups * fewer);
    fold_chunks(issue, JoinItems<P>{}, static_cast<const Item*>(items), dense_rows(groups, chunks), kRowChunk, fewer,
                joined);
    items = joined;
    chunks = fewer;
  }
  for_index(issue, groups, LastFold<P, Store>{items, store, chunks});
}

/// The fold of a value of each of `lanes` threads that follow each other, in a fixed tree; each of them gets it. All
/// threads of a block of kFoldThreads call it; `shared` has one place for each.
template <class V, class F>
__device__ V fold_lanes(V* shared, V value, int lanes, F f) {
  if (lanes == 1) return value;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % lanes;
  __syncthreads();
  shared[thread] = value;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) shared[thread] = f(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  return shared[thread - lane];
}

/// The fold of a value of each thread of a block, in a fixed tree; every thread gets it, and all of them call it.
/// `shared` has one place for each.
template <int threads, class V, class F>
__device__ V fold_block(V* shared, V value, F f) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = value;
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (thread < half) shared[thread] = f(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  return shared[0];
}

}  // namespace sluice::cuda
