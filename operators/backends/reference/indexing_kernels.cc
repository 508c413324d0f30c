// Numbers of elements, and writes by them, of the reference backend.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/each_element.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/resources/value_errors.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class T>
struct Index {
  static void run(ArrayContext& c) {
    const std::int64_t size = c.attributes<AxisAttributes>().size;
    std::fill_n(c.output().as<std::int64_t>(), c.output().count(), 0);  // for kernels that do not know of an error yet
    for (std::int64_t i = 0; i < c.output().count(); ++i) {
      const std::int64_t given = c.input(0).as<T>()[i], at = given < 0 ? given + size : given;
      if (at < 0 || at >= size) throw std::out_of_range(index_outside(given, i, -size, size));
      c.output().as<std::int64_t>()[i] = at;
    }
  }
};

template <class T>
void add_rows(ArrayContext& c, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  T* y = c.output().as<T>();
  std::vector<Sum<T>> sums;
  for (std::int64_t i = 0; i < c.output().count(); ++i) sums.push_back(term(y[i]));
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      sums[static_cast<std::size_t>(rows[i] * width + j)] += term(c.input(1).as<T>()[i * width + j]);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) y[i] = element<T>(sums[i]);
}

void put_rows(ArrayContext& c) {
  const TensorView& y = c.output();
  const std::size_t item = size_of(y.dtype);
  if (y.count() == 0) return;
  if (c.inputs() == 3) std::memcpy(y.data, c.input(2).data, static_cast<std::size_t>(y.count()) * item);
  const std::int64_t n = c.input(0).count(), width = y.count() / y.shape[0];
  const auto* rows = c.input(0).as<std::int64_t>();
  if (c.attributes<PutAttributes>().add) {
    with_type(y.dtype, [&]<class T>() {
      if constexpr (has_arithmetic(dtype_of<T>)) add_rows<T>(c, rows, n, width);
    });
    return;
  }
  const std::size_t bytes = static_cast<std::size_t>(width) * item;
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(y.data + static_cast<std::size_t>(rows[i]) * bytes,
                c.input(1).data + static_cast<std::size_t>(i) * bytes, bytes);
  }
}

}  // namespace

void add_indexing_kernels(Registry& registry) {
  add<Index>(registry.get("index"), kReference, Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  add(registry.get("put_rows"), kReference, put_rows, kDense);
}

}  // namespace sluice::reference
