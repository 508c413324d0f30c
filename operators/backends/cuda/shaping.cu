// Copies, conversions and what else moves elements.
#include <algorithm>
#include <cstdlib>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/convert.h"
#include "sluice/operators/backends/cuda/copy.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/backends/cuda/sorted.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

template <class T>
struct Same {
  __device__ T operator()(T x) const { return x; }
};

/// A copy of which one side's elements follow each other along the last axis, and the other's along another one: by
/// tiles of shared memory, so that both are read and written in whole lines.
constexpr int kTile = 32, kTileRows = 8;
template <class W>
struct Tiles {
  W* y;
  const W* x;
  Walk<2> rest;                 ///< of the other axes: y, x
  std::int64_t rows, columns;   ///< y's elements follow each other along columns, x's along rows
  std::int64_t y_step, x_step;  ///< of y from row to row, of x from column to column
  std::int64_t down, across;    ///< tiles
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
  }
};
template <class W>
__global__ void copy_tiles(Tiles<W> t) {
  __shared__ W tile[kTile][kTile + 1];
  const int lane = static_cast<int>(threadIdx.x) % kTile, line = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t of_matrix = t.down * t.across, all = t.rest.count * of_matrix;
  for (std::int64_t task = blockIdx.x; task < all; task += gridDim.x) {
    const std::int64_t matrix = task / of_matrix, in_matrix = task % of_matrix;
    const std::int64_t row = in_matrix / t.across * kTile, column = in_matrix % t.across * kTile;
    std::int64_t at[2];
    t.rest.find(matrix, at);
    for (int i = line; i < kTile; i += kTileRows) {
      if (row + lane < t.rows && column + i < t.columns) {
        tile[i][lane] = t.x[at[1] + (column + i) * t.x_step + row + lane];
      }
    }
    __syncthreads();
    for (int i = line; i < kTile; i += kTileRows) {
      if (row + i < t.rows && column + lane < t.columns) {
        t.y[at[0] + (row + i) * t.y_step + column + lane] = tile[lane][i];
      }
    }
    __syncthreads();
  }
}

/// Issues such a copy, if it is one with enough elements along both axes.
template <class W>
bool copy_by_tiles(const Issue& issue, const TensorView& from, const TensorView& to) {
  int row_axis = -1, column_axis = -1;
  for (int i = 0; i < to.shape.rank(); ++i) {
    if (to.shape[i] < kTile / 2) continue;
    if (to.strides[i] == 1 && from.strides[i] != 1) column_axis = i;
    if (from.strides[i] == 1 && to.strides[i] != 1) row_axis = i;
  }
  if (row_axis < 0 || column_axis < 0) return false;
  TensorView y = to, x = from;
  y.shape[row_axis] = y.shape[column_axis] = x.shape[row_axis] = x.shape[column_axis] = 1;
  const TensorView* const views[] = {&y, &x};
  Tiles<W> t{.y = to.as<W>(),
             .x = from.as<W>(),
             .rest = Walk<2>(views),
             .rows = to.shape[row_axis],
             .columns = to.shape[column_axis],
             .y_step = to.strides[row_axis],
             .x_step = from.strides[column_axis],
             .down = (to.shape[row_axis] + kTile - 1) / kTile,
             .across = (to.shape[column_axis] + kTile - 1) / kTile};
  if (t.rest.count == 0) return true;
  Grid grid = grid_for(t.rest.count * t.down * t.across * kTile * kTileRows);
  grid.barriers = true;
  issue.launch(copy_tiles<W>, grid, t);
  return true;
}

template <class W>
void copy_words(const Issue& issue, const TensorView& from, const TensorView& to) {
  if (!copy_by_tiles<W>(issue, from, to)) for_elements<W, W>(issue, Same<W>{}, to, from);
}
void copy_same(const Issue& issue, const TensorView& from, const TensorView& to) {
  switch (size_of(to.dtype)) {
    case 1:
      return copy_words<std::uint8_t>(issue, from, to);
    case 2:
      return copy_words<std::uint16_t>(issue, from, to);
    case 4:
      return copy_words<std::uint32_t>(issue, from, to);
    default:
      return copy_words<std::uint64_t>(issue, from, to);
  }
}

template <class To, class From>
struct Converted {
  __device__ To operator()(From x) const { return converted<To>(x); }
};

void copy(ArrayContext& c) { copy_window(Issue(c), c.input(0), c.output()); }

/// Adds to elements of y, in order.
template <class T>
struct AddInOrder {
  T* y;
  const T* x;
  Walk<2> walk;  // x, and the window in y
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
  }
  __device__ void operator()(std::int64_t) const {
    for (std::int64_t i = 0; i < walk.count; ++i) {
      std::int64_t at[2];
      walk.find(i, at);
      y[at[1]] = T(static_cast<compute_of<T>>(y[at[1]]) + static_cast<compute_of<T>>(x[at[0]]));
    }
  }
};

/// True if no two elements of a window are one. It may say false of windows where it is so.
bool is_plain(const TensorView& view) {
  std::int64_t reach = 0;
  // Axis by axis, from the smallest stride to the largest.
  for (std::int64_t last = 0;;) {
    std::int64_t stride = 0, size = 1;
    for (int i = 0; i < view.shape.rank(); ++i) {
      const std::int64_t step = std::abs(view.strides[i]);
      if (view.shape[i] < 2 || step < last || (step == last && last != 0)) continue;
      if (size == 1 || step < stride) {
        stride = step;
        size = view.shape[i];
      } else if (step == stride) {
        return false;
      }
    }
    if (size == 1) return true;
    if (stride <= reach) return false;
    reach += stride * (size - 1);
    last = stride;
  }
}

/// y = 0, and the input added to a window of it.
template <class T>
struct Scatter {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const auto& window = c.attributes<WindowAttributes>();
    TensorView y = c.output(), target = y;
    const std::size_t bytes = static_cast<std::size_t>(y.count()) * sizeof(T);
    if (bytes == 0) return;
    issue.check(cudaMemsetAsync(y.data, 0, bytes, issue.stream()), "cudaMemsetAsync");
    if (c.input(0).count() == 0) return;
    target.shape = c.input(0).shape;
    target.strides = window.strides;
    target.data += window.offset * static_cast<std::int64_t>(sizeof(T));
    if (is_plain(target)) return copy_window(issue, c.input(0), target);
    // Some elements get several terms: one thread adds them, in order.
    const TensorView* const views[] = {&c.input(0), &target};
    issue.launch(indexed<AddInOrder<T>>, {.blocks = 1, .threads = 1}, std::int64_t{1},
                 AddInOrder<T>{target.as<T>(), c.input(0).template as<T>(), Walk<2>(views)});
  }
};

void concat(ArrayContext& c) {
  const Issue issue(c);
  const int axis = c.attributes<AxisAttributes>().axis;
  TensorView part = c.output();
  for (int k = 0; k < c.inputs(); ++k) {
    const TensorView& x = c.input(k);
    part.shape[axis] = x.shape[axis];
    copy_window(issue, x, part);
    part.data += x.shape[axis] * part.strides[axis] * static_cast<std::int64_t>(size_of(part.dtype));
  }
}

template <class T>
struct OneHotAt {
  T* y;
  const void* labels;
  DType dtype;
  std::int64_t classes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(labels);
  }
  __device__ void operator()(std::int64_t i) const {
    y[i] = converted<T>(label_at(dtype, labels, i / classes) == i % classes);
  }
};
void one_hot(ArrayContext& c) {
  with_type(c.output().dtype, [&]<class T>() {
    for_index(Issue(c), c.output().count(),
              OneHotAt<T>{c.output().as<T>(), c.input(0).data, c.input(0).dtype,
                          std::max<std::int64_t>(1, c.attributes<AxisAttributes>().size)});
  });
}

/// Moves row labels[i] of x to row i of y, in words of W.
template <class W>
struct TakeRow {
  W* y;
  const W* x;
  const void* labels;
  DType dtype;
  std::int64_t here, begin, rows, width;
  W elsewhere;  ///< elements of rows of other parts: -0.0, which added to anything leaves it as it is
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
    visit(labels);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t label = label_at(dtype, labels, i / width), row = label - begin;
    if (row >= 0 && row < here) {
      y[i] = x[row * width + i % width];
    } else if (label >= 0 && label < rows) {
      y[i] = elsewhere;
    } else if (i % width == 0) {
      report(reporter, Finding::index_outside, label, rows, i / width);
    }
  }
};
void take_rows(ArrayContext& c) {
  const TensorView &x = c.input(0), &y = c.output();
  const std::int64_t n = y.shape[0];
  if (n == 0) return;
  const Issue issue(c);
  const auto& part = c.attributes<RowsAttributes>();
  const std::int64_t rows = part.of > 0 ? part.of : x.shape[0];
  const auto take = [&]<class W>(W) {
    const W sign = static_cast<W>(W(1) << (8 * sizeof(W) - 1));
    for_index(issue, y.count(),
              TakeRow<W>{y.as<W>(), x.as<W>(), c.input(1).data, c.input(1).dtype, x.shape[0], part.begin, rows,
                         y.count() / n, is_floating(y.dtype) ? sign : W(0), issue.reporter()});
  };
  switch (size_of(y.dtype)) {
    case 1:
      return take(std::uint8_t{});
    case 2:
      return take(std::uint16_t{});
    case 4:
      return take(std::uint32_t{});
    default:
      return take(std::uint64_t{});
  }
}

/// One column of the rows that have one label, which stand side by side in `order`: the thread of their first adds them
/// in their order; sums of floating elements are in double. A label out of range is reported, as take_rows did, and
/// left out: errors are known late, and kernels must stay within their arrays until then.
template <class T>
struct AddRun {
  T* y;
  const T* g;
  const void* labels;
  DType dtype;
  const std::int64_t* order;
  std::int64_t n, width, rows;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(g);
    visit(labels);
    visit(order);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t first = i / width, column = i - first * width;
    const std::int64_t row = label_at(dtype, labels, order[first]);
    if (first > 0 && label_at(dtype, labels, order[first - 1]) == row) return;
    if (row < 0 || row >= rows) {
      if (column == 0) report(reporter, Finding::index_outside, row, rows, order[first]);
      return;
    }
    TotalOf<T> sum = 0;
    for (std::int64_t k = first; k < n && label_at(dtype, labels, order[k]) == row; ++k) {
      sum = functors::plus(sum, static_cast<TotalOf<T>>(number(g[order[k] * width + column])));
    }
    y[row * width + column] = T(static_cast<compute_of<T>>(sum));
  }
};
template <class T>
struct AddRows {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const TensorView &g = c.input(0), &labels = c.input(1), &y = c.output();
    const std::int64_t n = g.shape[0], width = n == 0 ? 0 : g.count() / n;
    if (y.count() == 0) return;
    issue.check(cudaMemsetAsync(y.data, 0, static_cast<std::size_t>(y.count()) * sizeof(T), issue.stream()),
                "cudaMemsetAsync");
    if (n * width == 0) return;
    const Lines line{1, n, 1};
    const std::int64_t* const order =
        labels.dtype == DType::i64   ? order_of(issue, labels.as<const std::int64_t>(), line, false)
        : labels.dtype == DType::i32 ? order_of(issue, labels.as<const std::int32_t>(), line, false)
                                     : order_of(issue, labels.as<const std::uint8_t>(), line, false);
    for_index(
        issue, n * width,
        AddRun<T>{y.as<T>(), g.as<T>(), labels.data, labels.dtype, order, n, width, y.shape[0], issue.reporter()});
  }
};

}  // namespace

void copy_window(const Issue& issue, const TensorView& from, const TensorView& to) {
  if (from.dtype == to.dtype) return copy_same(issue, from, to);
  with_type(from.dtype, [&]<class From>() {
    with_type(to.dtype, [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>) for_elements<To, From>(issue, Converted<To, From>{}, to, from);
    });
  });
}

void add_shaping_kernels(const Rows& rows) {
  for (int t = 0; t < kDTypeCount; ++t) {
    const auto dtype = static_cast<DType>(t);
    rows.add("copy", {dtype}, copy);
    rows.add("cast", {dtype}, copy);
    rows.add("concat", {dtype}, concat);
    rows.add("one_hot", {dtype}, one_hot, kDense);
    rows.add("take_rows", {dtype}, take_rows, kDense);
  }
  rows.add<Scatter>("scatter", backends::Arithmetic{}, kDense);
  rows.add<AddRows>("add_rows", backends::Arithmetic{}, kDense);
}

}  // namespace sluice::cuda
