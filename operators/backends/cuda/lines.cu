// Scans, sorts and searches along an axis.
#include <algorithm>

#include "sluice/operators/backends/cuda/convert.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/backends/cuda/sorted.h"
#include "sluice/operators/lines.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

// ---- scans: a thread for each line, or in three steps for each piece of each line

template <template <class> class Policy, class T>
struct WholeLine {
  scans::Operands<Policy, T> o;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t line) const { o.write(line, 0, o.lines.n, nullptr); }
};
template <template <class> class Policy, class T>
struct PieceTotal {
  scans::Operands<Policy, T> o;
  typename Policy<T>::Item* items;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(items);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t piece = i % o.pieces();
    items[i] = o.total(i / o.pieces(), o.begin(piece), o.end(piece));
  }
};
template <class P>
struct JoinPieces {
  typename P::Item* items;
  std::int64_t pieces;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(items);
  }
  __device__ void operator()(std::int64_t line) const {
    typename P::Item* const of_line = items + line * pieces;
    for (std::int64_t i = 1; i < pieces; ++i) of_line[i] = P::join(of_line[i - 1], of_line[i]);
  }
};
template <template <class> class Policy, class T>
struct PieceOfLine {
  scans::Operands<Policy, T> o;
  const typename Policy<T>::Item* items;
  template <class Visit>
  void each_pointer(Visit visit) {
    o.each_pointer(visit);
    visit(items);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t piece = i % o.pieces();
    o.write(i / o.pieces(), o.begin(piece), o.end(piece), piece == 0 ? nullptr : items + i - 1);
  }
};
template <template <class> class Policy>
struct Scan {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using P = Policy<T>;
      const Issue issue(c);
      auto o = scans::operands_of<Policy, T>(c);
      if (o.lines.n == 0) return;
      // About as many pieces as a piece has elements, because each is the work of one thread.
      o.piece_size = 64;
      while (o.piece_size * o.piece_size < o.lines.n) o.piece_size *= 2;
      const std::int64_t pieces = o.pieces(), lines = o.lines.count;
      if (pieces == 1) return for_index(issue, lines, WholeLine<Policy, T>{o});
      auto* const items = issue.scratch<typename P::Item>(std::max<std::int64_t>(1, lines * pieces));
      for_index(issue, lines * pieces, PieceTotal<Policy, T>{o, items});
      for_index(issue, lines, JoinPieces<P>{items, pieces});
      for_index(issue, lines * pieces, PieceOfLine<Policy, T>{o, items});
    }
  };
};

}  // namespace

// ---- sorts: neighbouring runs are merged, from runs of one element on; a thread finds the place of each element

namespace {

struct FirstOrder {
  std::int64_t* order;
  std::int64_t n;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(order);
  }
  __device__ void operator()(std::int64_t i) const { order[i] = i % n; }
};
template <class T>
struct Merge {
  const T* x;
  const std::int64_t* from;  ///< places in the line, of lines side by side
  std::int64_t* to;
  Lines lines;
  std::int64_t width;
  bool descending;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(from);
    visit(to);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t line = i / lines.n, at = i % lines.n, first = lines.first(line);
    const std::int64_t* const order = from + line * lines.n;
    const std::int64_t left = at / (2 * width) * (2 * width), right = smaller(left + width, lines.n);
    const bool in_left = at < right;
    const auto key = key_of_element(x[first + order[at] * lines.inner]);
    // How many elements of the other run come before this one. Equal ones of the left run do.
    std::int64_t begin = in_left ? right : left, end = in_left ? smaller(left + 2 * width, lines.n) : right;
    const std::int64_t other = begin;
    while (begin < end) {
      const std::int64_t middle = begin + (end - begin) / 2;
      const auto there = key_of_element(x[first + order[middle] * lines.inner]);
      if (in_left ? comes_before(there, key, descending) : !comes_before(key, there, descending)) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    const std::int64_t own = in_left ? at - left : at - right;
    to[line * lines.n + left + own + (begin - other)] = order[at];
  }
  __device__ static std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
};
}  // namespace

template <class T>
const std::int64_t* order_of(const Issue& issue, const T* x, const Lines& lines, bool descending) {
  const std::int64_t total = lines.count * lines.n;
  auto* order = issue.scratch<std::int64_t>(total);
  auto* next = issue.scratch<std::int64_t>(total);
  for_index(issue, total, FirstOrder{order, lines.n});
  for (std::int64_t width = 1; width < lines.n; width *= 2) {
    for_index(issue, total, Merge<T>{x, order, next, lines, width, descending});
    std::swap(order, next);
  }
  return order;
}
template const std::int64_t* order_of(const Issue&, const std::uint8_t*, const Lines&, bool);
template const std::int64_t* order_of(const Issue&, const std::int32_t*, const Lines&, bool);
template const std::int64_t* order_of(const Issue&, const std::int64_t*, const Lines&, bool);

namespace {

template <class T>
struct StoreSorted {
  T* y;
  std::int64_t* places;
  const T* x;
  const std::int64_t* order;
  Lines lines, sorted;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(places);
    visit(x);
    visit(order);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t line = i / sorted.n, k = i % sorted.n;
    const std::int64_t place = order[line * lines.n + k], at = sorted.first(line) + k * sorted.inner;
    y[at] = x[lines.first(line) + place * lines.inner];
    places[at] = place;
  }
};
template <class T>
struct Sort {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const auto& a = c.attributes<LineAttributes>();
    const Lines lines = Lines::of(c.input(0).shape, a.axis), sorted{lines.count, a.size, lines.inner};
    const std::int64_t total = lines.count * lines.n;
    if (total == 0 || a.size == 0) return;
    const T* const x = c.input(0).template as<T>();
    const std::int64_t* const order = order_of(issue, x, lines, a.reverse);
    for_index(
        issue, lines.count * a.size,
        StoreSorted<T>{c.output(0).template as<T>(), c.output(1).template as<std::int64_t>(), x, order, lines, sorted});
  }
};

// ---- elements at places

template <class W>
struct TakeAlong {
  W* y;
  const W* x;
  const void* index;
  DType dtype;
  Lines from, to;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
    visit(index);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t line = i / (to.n * to.inner) * to.inner + i % to.inner, place = label_at(dtype, index, i);
    if (place >= 0 && place < from.n) {
      y[i] = x[from.first(line) + place * from.inner];
    } else {
      report(reporter, Finding::index_outside, place, from.n, i);
    }
  }
};
void take_along_axis(ArrayContext& c) {
  const Issue issue(c);
  const int axis = c.attributes<LineAttributes>().axis;
  const TensorView &x = c.input(0), &y = c.output();
  const auto take = [&]<class W>(W) {
    for_index(issue, y.count(),
              TakeAlong<W>{y.as<W>(), x.as<W>(), c.input(1).data, c.input(1).dtype, Lines::of(x.shape, axis),
                           Lines::of(y.shape, axis), issue.reporter()});
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

/// A line, in order.
template <class T>
struct AddAlong {
  scans::Wide<T>* sums;
  const T* x;
  const void* index;
  DType dtype;
  Lines from, to;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(sums);
    visit(x);
    visit(index);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t line) const {
    for (std::int64_t k = 0; k < from.n; ++k) {
      const std::int64_t at = from.first(line) + k * from.inner, place = label_at(dtype, index, at);
      if (place >= 0 && place < to.n) {
        scans::Wide<T>& sum = sums[to.first(line) + place * to.inner];
        sum = functors::plus(sum, static_cast<scans::Wide<T>>(number(x[at])));
      } else {
        report(reporter, Finding::index_outside, place, to.n, at);
      }
    }
  }
};
template <class T>
struct StoreSum {
  T* y;
  const scans::Wide<T>* sums;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(sums);
  }
  __device__ void operator()(std::int64_t i) const { y[i] = scans::element_of_total<T>(sums[i]); }
};
template <class T>
struct AddAlongAxis {
  static void run(ArrayContext& c) {
    using W = scans::Wide<T>;
    const Issue issue(c);
    const int axis = c.attributes<LineAttributes>().axis;
    const Lines from = Lines::of(c.input(0).shape, axis), to = Lines::of(c.output().shape, axis);
    const std::int64_t count = c.output().count();
    auto* const sums = issue.scratch<W>(std::max<std::int64_t>(1, count));
    if (count > 0) {
      issue.check(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(count) * sizeof(W), issue.stream()),
                  "cudaMemsetAsync");
    }
    for_index(
        issue, from.count,
        AddAlong<T>{sums, c.input(0).template as<T>(), c.input(1).data, c.input(1).dtype, from, to, issue.reporter()});
    for_index(issue, count, StoreSum<T>{c.output().template as<T>(), sums});
  }
};

// ---- searches and counts

template <class T>
struct Search {
  std::int64_t* y;
  const T* sorted;
  const T* values;
  std::int64_t n, m;  ///< m: values of one line; 0 where there is one line for all
  bool right;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    if (n > 0) visit(sorted);
    visit(values);
  }
  __device__ void operator()(std::int64_t i) const {
    const T* const line = sorted + (m == 0 ? 0 : i / m * n);
    y[i] = place_in_order(line, n, key_of_element(values[i]), right);
  }
};
template <class T>
struct SearchSorted {
  static void run(ArrayContext& c) {
    const TensorView &sorted = c.input(0), &values = c.input(1);
    const std::int64_t m = sorted.shape.rank() == 1 ? 0 : values.shape.back();
    for_index(Issue(c), c.output().count(),
              Search<T>{c.output().template as<std::int64_t>(), sorted.template as<T>(), values.template as<T>(),
                        sorted.shape.back(), m, c.attributes<LineAttributes>().reverse});
  }
};

/// Whole numbers, whose sum is the same in any order.
struct Count {
  std::int64_t* y;
  const void* labels;
  DType dtype;
  std::int64_t size;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    if (size > 0) visit(y);
    visit(labels);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t place = label_at(dtype, labels, i);
    if (place >= 0 && place < size) {
      atomicAdd(reinterpret_cast<unsigned long long*>(y + place), 1ULL);
    } else {
      report(reporter, Finding::index_outside, place, size, i);
    }
  }
};
void bincount(ArrayContext& c) {
  const Issue issue(c);
  const TensorView &x = c.input(0), &y = c.output();
  if (y.count() > 0) {
    issue.check(cudaMemsetAsync(y.data, 0, static_cast<std::size_t>(y.count()) * sizeof(std::int64_t), issue.stream()),
                "cudaMemsetAsync");
  }
  for_index(issue, x.count(), Count{y.as<std::int64_t>(), x.data, x.dtype, y.count(), issue.reporter()});
}

}  // namespace

void add_line_kernels(const Rows& rows) {
  rows.add<Scan<scans::CumSum>::Make>("cumsum", backends::Arithmetic{}, kDense);
  rows.add<Scan<scans::CumProd>::Make>("cumprod", backends::Arithmetic{}, kDense);
  rows.add<Scan<scans::CumMax>::Make>("cummax", backends::Arithmetic{}, kDense);
  rows.add<Scan<scans::CumMin>::Make>("cummin", backends::Arithmetic{}, kDense);
  rows.add<Scan<scans::Linear>::Make>("linear_scan", backends::Arithmetic{}, kDense);
  rows.add<Scan<scans::LogCumSumExp>::Make>("logcumsumexp", backends::Floating{}, kDense);
  rows.add<Sort>("sort", backends::AllTypes{}, kDense);
  rows.add<AddAlongAxis>("add_along_axis", backends::Arithmetic{}, kDense);
  rows.add<SearchSorted>("searchsorted", backends::AllTypes{}, kDense);
  for (int t = 0; t < kDTypeCount; ++t) rows.add("take_along_axis", {static_cast<DType>(t)}, take_along_axis, kDense);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) rows.add("bincount", {dtype}, bincount, kDense);
}

}  // namespace sluice::cuda
