// Scans, sorts and searches along an axis of the CPU backend. Threads take lines, or pieces of long ones; pieces depend
// on shapes alone.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/sort_keys.h"
#include "sluice/operators/lines.h"
#include "sluice/resources/value_errors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

std::int64_t lines_for_a_thread(std::int64_t n) {
  return std::max<std::int64_t>(1, kElementwiseGrain / std::max<std::int64_t>(1, n));
}

template <template <class> class Policy>
struct Scan {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using P = Policy<T>;
      using Item = typename P::Item;
      const auto o = scans::operands_of<Policy, T>(c);
      const std::int64_t pieces = o.pieces();
      if (pieces <= 1) {
        parallel_for(o.lines.count, lines_for_a_thread(o.lines.n), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t line = begin; line < end; ++line) o.write(line, 0, o.lines.n, nullptr);
        });
        return;
      }
      std::vector<Item> items(static_cast<std::size_t>(o.lines.count * pieces));
      parallel_for(o.lines.count * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t piece = i % pieces;
          items[static_cast<std::size_t>(i)] = o.total(i / pieces, o.begin(piece), o.end(piece));
        }
      });
      for (std::int64_t line = 0; line < o.lines.count; ++line) {
        Item* const of_line = items.data() + line * pieces;
        for (std::int64_t piece = 1; piece < pieces; ++piece) {
          of_line[piece] = P::join(of_line[piece - 1], of_line[piece]);
        }
      }
      parallel_for(o.lines.count * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t piece = i % pieces;
          o.write(i / pieces, o.begin(piece), o.end(piece), piece == 0 ? nullptr : items.data() + i - 1);
        }
      });
    }
  };
};

template <class Entry>
struct MakeEntries {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, std::int64_t step, std::int64_t n, bool descending,
                                     Entry* entries) const {
    if (step == 1) {
      for (std::int64_t k = 0; k < n; ++k) entries[k] = Entry::of(sort_key(x[k], descending), k);
    } else {
      for (std::int64_t k = 0; k < n; ++k) entries[k] = Entry::of(sort_key(x[k * step], descending), k);
    }
  }
};

template <class T, class Entry>
void sort_lines(ArrayContext& c) {
  const auto& a = c.attributes<LineAttributes>();
  const Lines lines = Lines::of(c.input(0).shape, a.axis), sorted{lines.count, a.size, lines.inner};
  const T* x = c.input(0).as<T>();
  T* y = c.output(0).as<T>();
  auto* places = c.output(1).as<std::int64_t>();
  const auto room = static_cast<std::size_t>(lines.n);
  parallel_for(lines.count, std::max<std::int64_t>(1, lines_for_a_thread(lines.n) / 16),
               [&](std::int64_t begin, std::int64_t end) {
                 std::vector<Entry> entries(room), other(a.size < lines.n / 8 ? 0 : room);
                 for (std::int64_t line = begin; line < end; ++line) {
                   const T* from = x + lines.first(line);
                   dispatch(MakeEntries<Entry>{}, from, lines.inner, lines.n, a.reverse, entries.data());
                   const Entry* in_order =
                       sort_entries(entries.data(), other.data(), lines.n, a.size, 8 * static_cast<int>(sizeof(T)));
                   for (std::int64_t k = 0; k < a.size; ++k) {
                     const std::int64_t place = in_order[k].place(), to = sorted.first(line) + k * lines.inner;
                     y[to] = from[place * lines.inner];
                     places[to] = place;
                   }
                 }
               });
}

template <class T>
struct Sort {
  static void run(ArrayContext& c) {
    const Lines lines = Lines::of(c.input(0).shape, c.attributes<LineAttributes>().axis);
    if (lines.n == 0 || c.attributes<LineAttributes>().size == 0) return;
    if (sizeof(T) <= 4 && lines.n <= std::numeric_limits<std::uint32_t>::max()) {
      sort_lines<T, PackedEntry>(c);
    } else {
      sort_lines<T, WideEntry>(c);
    }
  }
};

/// The labels as i64. Throws std::out_of_range for one that is not in [0, size).
std::int64_t index_at(const TensorView& labels, std::int64_t i, std::int64_t size) {
  const std::int64_t index = label_at(labels.dtype, labels.data, i);
  if (index < 0 || index >= size) throw std::out_of_range(index_outside(index, i, 0, size));
  return index;
}

void take_along_axis(ArrayContext& c) {
  const int axis = c.attributes<LineAttributes>().axis;
  const Lines from = Lines::of(c.input(0).shape, axis), to = Lines::of(c.output().shape, axis);
  const TensorView& index = c.input(1);
  for (std::int64_t i = 0; i < index.count(); ++i) index_at(index, i, from.n);
  with_type(c.output().dtype, [&]<class T>() {
    const T* x = c.input(0).as<T>();
    T* y = c.output().as<T>();
    parallel_for(c.output().count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t line = i / (to.n * to.inner) * to.inner + i % to.inner;
        y[i] = x[from.first(line) + label_at(index.dtype, index.data, i) * from.inner];
      }
    });
  });
}

template <class T>
struct AddAlongAxis {
  static void run(ArrayContext& c) {
    const int axis = c.attributes<LineAttributes>().axis;
    const Lines from = Lines::of(c.input(0).shape, axis), to = Lines::of(c.output().shape, axis);
    const TensorView& index = c.input(1);
    for (std::int64_t i = 0; i < index.count(); ++i) index_at(index, i, to.n);
    const T* x = c.input(0).as<T>();
    T* y = c.output().as<T>();
    parallel_for(from.count, lines_for_a_thread(from.n + to.n), [&](std::int64_t begin, std::int64_t end) {
      std::vector<scans::Wide<T>> sums(static_cast<std::size_t>(to.n));
      for (std::int64_t line = begin; line < end; ++line) {
        std::fill(sums.begin(), sums.end(), 0);
        for (std::int64_t k = 0; k < from.n; ++k) {
          const std::int64_t at = from.first(line) + k * from.inner;
          auto& sum = sums[static_cast<std::size_t>(label_at(index.dtype, index.data, at))];
          sum = functors::plus(sum, static_cast<scans::Wide<T>>(x[at]));
        }
        for (std::int64_t k = 0; k < to.n; ++k) {
          y[to.first(line) + k * to.inner] = static_cast<T>(sums[static_cast<std::size_t>(k)]);
        }
      }
    });
  }
};

template <class T>
struct SearchSorted {
  static void run(ArrayContext& c) {
    const bool right = c.attributes<LineAttributes>().reverse;
    const std::int64_t n = c.input(0).shape.back(), m = c.input(1).shape.empty() ? 1 : c.input(1).shape.back();
    const bool one_line = c.input(0).shape.rank() == 1;
    const T* x = c.input(0).as<T>();
    const T* values = c.input(1).as<T>();
    auto* y = c.output().as<std::int64_t>();
    parallel_for(c.output().count(), kElementwiseGrain / 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* line = x + (one_line ? 0 : i / m * n);
        y[i] = place_in_order(line, n, key_of_element(values[i]), right);
      }
    });
  }
};

void bincount(ArrayContext& c) {
  auto* y = c.output().as<std::int64_t>();
  const std::int64_t size = c.output().count();
  std::fill(y, y + size, 0);
  for (std::int64_t i = 0; i < c.input(0).count(); ++i) ++y[index_at(c.input(0), i, size)];
}

}  // namespace

void add_line_kernels(Registry& registry) {
  using Numbers = Direct<Arithmetic>;
  add<Scan<scans::CumSum>::Make>(registry.get("cumsum"), kCpu, Numbers{}, kDense);
  add<Scan<scans::CumProd>::Make>(registry.get("cumprod"), kCpu, Numbers{}, kDense);
  add<Scan<scans::CumMax>::Make>(registry.get("cummax"), kCpu, Numbers{}, kDense);
  add<Scan<scans::CumMin>::Make>(registry.get("cummin"), kCpu, Numbers{}, kDense);
  add<Scan<scans::Linear>::Make>(registry.get("linear_scan"), kCpu, Numbers{}, kDense);
  add<Scan<scans::LogCumSumExp>::Make>(registry.get("logcumsumexp"), kCpu, Direct<Floating>{}, kDense);
  add<Sort>(registry.get("sort"), kCpu, AllTypes{}, kDense);
  add(registry.get("take_along_axis"), kCpu, take_along_axis, kDense);
  add<AddAlongAxis>(registry.get("add_along_axis"), kCpu, Numbers{}, kDense);
  add<SearchSorted>(registry.get("searchsorted"), kCpu, AllTypes{}, kDense);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    Kernel kernel = kDense;
    kernel.run = bincount;
    registry.get("bincount").add_kernel(kCpu, {dtype}, kernel);
  }
}

}  // namespace sluice::cpu_backend
