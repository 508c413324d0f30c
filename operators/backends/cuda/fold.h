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
  __device__ std::int64_t at(std::int64_t group, std::int64_t element) const {
    std::int64_t a[1], b[1];
    groups.find(group, a);
    elements.find(element, b);
    return a[0] + b[0];
  }
  /// Neighbouring groups lie side by side, and elements of a group do not.
  bool columns() const {
    const auto step = [](const Walk<1>& w) { return w.rank == 0 ? 0 : w.strides[0][w.rank - 1]; };
    return step(groups) == 1 && step(elements) != 1;
  }
};

/// A policy P of a fold has: Item; load(x, place of the element in its group) -> Item; join(a, b) -> Item, where a is
/// from earlier elements; and empty() -> Item, for groups without elements.
inline constexpr std::int64_t kFoldThreads = 256, kRowChunk = 4096, kColumnChunk = 256;

/// A block for each chunk of each group; results[group * chunks + chunk].
template <class P, class T>
struct RowFold {
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
};
template <class P, class T>
__global__ void fold_rows(RowFold<P, T> f) {
  using Item = typename P::Item;
  __shared__ Item items[kFoldThreads];
  const std::int64_t total = f.places.groups.count * f.chunks;
  for (std::int64_t task = blockIdx.x; task < total; task += gridDim.x) {
    const std::int64_t group = task / f.chunks, begin = task % f.chunks * f.chunk;
    const std::int64_t left = f.places.elements.count - begin, n = left < f.chunk ? left : f.chunk;
    const auto thread = static_cast<std::int64_t>(threadIdx.x);
    Item item = P::empty();
    for (std::int64_t i = thread; i < n; i += kFoldThreads) {
      const Item next = f.policy.load(f.x[f.places.at(group, begin + i)], begin + i);
      item = i == thread ? next : P::join(item, next);
    }
    items[thread] = item;
    __syncthreads();
    const std::int64_t width = n < kFoldThreads ? n : kFoldThreads;
    for (std::int64_t half = kFoldThreads / 2; half > 0; half /= 2) {
      if (thread < half && thread + half < width) items[thread] = P::join(items[thread], items[thread + half]);
      __syncthreads();
    }
    if (thread == 0) f.results[task] = items[0];
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
    typename P::Item item = P::empty();
    for (std::int64_t i = 0; i < n; ++i) {
      const typename P::Item next = policy.load(x[places.at(group, begin + i)], begin + i);
      item = i == 0 ? next : P::join(item, next);
    }
    results[group * chunks + task / groups] = item;
  }
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

/// Issues the folds of all groups of x. Store is a plain struct with each_pointer and store(group, item) as a call.
template <class P, class T, class Store>
void fold(const Issue& issue, const P& policy, const T* x, const Groups& places, const Store& store) {
  const std::int64_t groups = places.groups.count, n = places.elements.count;
  if (groups == 0) return;
  const bool columns = places.columns() || n <= 16;
  const std::int64_t chunk = columns ? kColumnChunk : kRowChunk, chunks = (n + chunk - 1) / chunk;
  auto* const results = issue.scratch<typename P::Item>(std::max<std::int64_t>(1, groups * chunks));
  if (chunks > 0 && columns) {
    for_index(issue, groups * chunks, ColumnFold<P, T>{policy, x, results, places, chunk, chunks});
  } else if (chunks > 0) {
    Grid grid = grid_for(groups * chunks * kFoldThreads);
    grid.barriers = true;
    issue.launch(fold_rows<P, T>, grid, RowFold<P, T>{policy, x, results, places, chunk, chunks});
  }
  for_index(issue, groups, LastFold<P, Store>{results, store, chunks});
}

/// The fold of a value of each of 256 threads, in a fixed tree; every thread
/// gets it. All threads of a block of kFoldThreads call it; `shared` has one place for each.
template <class V, class F>
__device__ V fold_block(V* shared, V value, F f) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = value;
  __syncthreads();
  for (int half = static_cast<int>(kFoldThreads) / 2; half > 0; half /= 2) {
    if (thread < half) shared[thread] = f(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  return shared[0];
}

}  // namespace sluice::cuda
