// Scans, sorts and searches along an axis of the reference backend.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "sluice/operators/backends/reference/each_element.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/lines.h"
#include "sluice/resources/value_errors.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <template <class> class Policy>
struct Scan {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using P = Policy<T>;
      const auto o = scans::operands_of<Policy, T>(c);
      const Lines& lines = o.lines;
      for (std::int64_t line = 0; line < lines.count; ++line) {
        typename P::Item item{};
        for (std::int64_t k = 0; k < lines.n; ++k) {
          const std::int64_t place = o.reverse ? lines.n - 1 - k : k, at = lines.first(line) + place * lines.inner;
          const auto next = P::load(o.a[at], P::two_inputs ? o.b[at] : o.a[at], place);
          item = k == 0 ? next : P::join(item, next);
          o.y[at] = element<T>(P::value(item));
          if constexpr (P::two_outputs) o.places[at] = P::place(item);
        }
      }
    }
  };
};

void sort(ArrayContext& c) {
  const auto& a = c.attributes<LineAttributes>();
  const Lines lines = Lines::of(c.input(0).shape, a.axis), sorted{lines.count, a.size, lines.inner};
  with_type(c.input(0).dtype, [&]<class T>() {
    const T* x = c.input(0).as<T>();
    std::vector<std::int64_t> order(static_cast<std::size_t>(lines.n));
    for (std::int64_t line = 0; line < lines.count; ++line) {
      const T* from = x + lines.first(line);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
        return comes_before(key_of_element(from[i * lines.inner]), key_of_element(from[j * lines.inner]), a.reverse);
      });
      for (std::int64_t k = 0; k < a.size; ++k) {
        const std::int64_t at = sorted.first(line) + k * lines.inner, place = order[static_cast<std::size_t>(k)];
        c.output(0).as<T>()[at] = from[place * lines.inner];
        c.output(1).as<std::int64_t>()[at] = place;
      }
    }
  });
}

void check_index(std::int64_t index, std::int64_t element, std::int64_t size) {
  if (index < 0 || index >= size) throw std::out_of_range(index_outside(index, element, 0, size));
}

void take_along_axis(ArrayContext& c) {
  const int axis = c.attributes<LineAttributes>().axis;
  const Lines from = Lines::of(c.input(0).shape, axis), to = Lines::of(c.output().shape, axis);
  with_type(c.output().dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < c.output().count(); ++i) {
      const std::int64_t line = i / (to.n * to.inner) * to.inner + i % to.inner, place = label(c.input(1), i);
      check_index(place, i, from.n);
      c.output().as<T>()[i] = c.input(0).as<T>()[from.first(line) + place * from.inner];
    }
  });
}

template <class T>
struct AddAlongAxis {
  static void run(ArrayContext& c) {
    const int axis = c.attributes<LineAttributes>().axis;
    const Lines from = Lines::of(c.input(0).shape, axis), to = Lines::of(c.output().shape, axis);
    std::vector<Sum<T>> sums(static_cast<std::size_t>(c.output().count()));
    for (std::int64_t i = 0; i < c.input(0).count(); ++i) {
      const std::int64_t line = i / (from.n * from.inner) * from.inner + i % from.inner, place = label(c.input(1), i);
      check_index(place, i, to.n);
      sums[static_cast<std::size_t>(to.first(line) + place * to.inner)] += term(c.input(0).as<T>()[i]);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) c.output().as<T>()[i] = element<T>(sums[i]);
  }
};

void searchsorted(ArrayContext& c) {
  const bool right = c.attributes<LineAttributes>().reverse;
  const std::int64_t n = c.input(0).shape.back(), m = c.input(1).shape.empty() ? 1 : c.input(1).shape.back();
  with_type(c.input(0).dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < c.output().count(); ++i) {
      const T* line = c.input(0).as<T>() + (c.input(0).shape.rank() == 1 ? 0 : i / m * n);
      const auto value = key_of_element(c.input(1).as<T>()[i]);
      std::int64_t before = 0;
      for (; before < n; ++before) {
        const auto key = key_of_element(line[before]);
        if (right ? comes_before(value, key, false) : !comes_before(key, value, false)) break;
      }
      c.output().as<std::int64_t>()[i] = before;
    }
  });
}

void bincount(ArrayContext& c) {
  auto* y = c.output().as<std::int64_t>();
  const std::int64_t size = c.output().count();
  std::fill(y, y + size, 0);
  for (std::int64_t i = 0; i < c.input(0).count(); ++i) {
    const std::int64_t place = label(c.input(0), i);
    check_index(place, i, size);
    ++y[place];
  }
}

}  // namespace

void add_line_kernels(Registry& registry) {
  add<Scan<scans::CumSum>::Make>(registry.get("cumsum"), kReference, Arithmetic{}, kDense);
  add<Scan<scans::CumProd>::Make>(registry.get("cumprod"), kReference, Arithmetic{}, kDense);
  add<Scan<scans::CumMax>::Make>(registry.get("cummax"), kReference, Arithmetic{}, kDense);
  add<Scan<scans::CumMin>::Make>(registry.get("cummin"), kReference, Arithmetic{}, kDense);
  add<Scan<scans::Linear>::Make>(registry.get("linear_scan"), kReference, Arithmetic{}, kDense);
  add<Scan<scans::LogCumSumExp>::Make>(registry.get("logcumsumexp"), kReference, Floating{}, kDense);
  add(registry.get("sort"), kReference, sort, kDense);
  add(registry.get("take_along_axis"), kReference, take_along_axis, kDense);
  add<AddAlongAxis>(registry.get("add_along_axis"), kReference, Arithmetic{}, kDense);
  add(registry.get("searchsorted"), kReference, searchsorted, kDense);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    Kernel kernel = kDense;
    kernel.run = bincount;
    registry.get("bincount").add_kernel(kReference, {dtype}, kernel);
  }
}

}  // namespace sluice::reference
