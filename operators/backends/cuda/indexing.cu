// Numbers of elements, and writes by them.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/copy.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/kernels.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

/// A number out of range is reported, and becomes 0: the kernels that follow find out late that this one has failed,
/// and must stay within their arrays until then.
template <class T>
struct IndexAt {
  std::int64_t* y;
  const T* x;
  std::int64_t size;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t given = x[i], at = given < 0 ? given + size : given;
    const bool inside = at >= 0 && at < size;
    y[i] = inside ? at : 0;
    if (!inside) report(reporter, Finding::signed_index_outside, given, size, i);
  }
};
template <class T>
struct Index {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    for_index(issue, c.output().count(),
              IndexAt<T>{c.output().as<std::int64_t>(), c.input(0).as<T>(), c.attributes<AxisAttributes>().size,
                         issue.reporter()});
  }
};

/// One column of the rows that are added, in order, to totals.
template <class T>
struct AddColumn {
  TotalOf<T>* sums;
  const T* x;
  const std::int64_t* rows;
  std::int64_t n, width;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(sums);
    visit(x);
    visit(rows);
  }
  __device__ void operator()(std::int64_t column) const {
    for (std::int64_t i = 0; i < n; ++i) {
      TotalOf<T>& sum = sums[rows[i] * width + column];
      sum = static_cast<TotalOf<T>>(sum + static_cast<TotalOf<T>>(static_cast<compute_of<T>>(x[i * width + column])));
    }
  }
};
template <class T>
void add_rows(const Issue& issue, ArrayContext& c, std::int64_t n, std::int64_t width) {
  using A = TotalOf<T>;
  const TensorView& y = c.output();
  TensorView sums = y;
  sums.dtype = dtype_of<A>;
  if (sums.dtype != y.dtype) {
    sums.data = reinterpret_cast<std::byte*>(issue.scratch<A>(y.count()));
    copy_window(issue, y, sums);
  }
  for_index(issue, width, AddColumn<T>{sums.as<A>(), c.input(1).as<T>(), c.input(0).as<std::int64_t>(), n, width});
  if (sums.dtype != y.dtype) copy_window(issue, sums, y);
}

/// For each row of the result, 1 + the number of the last element that is written there.
struct LastWriter {
  unsigned long long* last;
  const std::int64_t* rows;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(last);
    visit(rows);
  }
  __device__ void operator()(std::int64_t i) const {
    const auto mine = static_cast<unsigned long long>(i) + 1;
    unsigned long long seen = 0;
    while (seen < mine) {
      const unsigned long long found = atomicCAS(&last[rows[i]], seen, mine);
      if (found == seen) return;
      seen = found;
    }
  }
};
template <class W>
struct PutAt {
  W* y;
  const W* x;
  const unsigned long long* last;
  const std::int64_t* rows;
  std::int64_t width;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
    visit(last);
    visit(rows);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t k = i / width, row = rows[k];
    if (last[row] == static_cast<unsigned long long>(k) + 1) y[row * width + i % width] = x[i];
  }
};

void put_rows(ArrayContext& c) {
  const Issue issue(c);
  const TensorView& y = c.output();
  if (y.count() == 0) return;
  if (c.inputs() == 3) copy_window(issue, c.input(2), y);
  const std::int64_t n = c.input(0).count(), width = y.count() / y.shape[0];
  if (n == 0) return;
  if (c.attributes<PutAttributes>().add) {
    with_type(y.dtype, [&]<class T>() {
      if constexpr (has_arithmetic(dtype_of<T>)) add_rows<T>(issue, c, n, width);
    });
    return;
  }
  const auto* rows = c.input(0).as<std::int64_t>();
  auto* last = issue.scratch<unsigned long long>(y.shape[0]);
  issue.check(
      cudaMemsetAsync(last, 0, static_cast<std::size_t>(y.shape[0]) * sizeof(unsigned long long), issue.stream()),
      "cudaMemsetAsync");
  for_index(issue, n, LastWriter{last, rows});
  const auto put = [&]<class W>(W) {
    for_index(issue, n * width, PutAt<W>{y.as<W>(), c.input(1).as<W>(), last, rows, width});
  };
  switch (size_of(y.dtype)) {
    case 1:
      return put(std::uint8_t{});
    case 2:
      return put(std::uint16_t{});
    case 4:
      return put(std::uint32_t{});
    default:
      return put(std::uint64_t{});
  }
}

}  // namespace

void add_indexing_kernels(const Rows& rows) {
  rows.add<Index>("index", backends::Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  for (int t = 0; t < kDTypeCount; ++t) rows.add("put_rows", {static_cast<DType>(t)}, put_rows, kDense);
}

}  // namespace sluice::cuda
