// Numbers of elements, and writes by them, of the CPU backend.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/add_rows.h"
#include "sluice/operators/backends/cpu/first_bad.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/resources/value_errors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct Index {
  static void run(ArrayContext& c) {
    const std::int64_t size = c.attributes<AxisAttributes>().size, n = c.output().count();
    const T* in = c.input(0).as<T>();
    auto* out = c.output().as<std::int64_t>();
    // A number out of range becomes 0: on a device with streams kernels that follow may run before they can know of the
    // error, and must stay within their arrays until then.
    const std::int64_t bad = first_bad(n, [=](std::int64_t i) {
      const std::int64_t given = in[i], at = given < 0 ? given + size : given;
      const bool inside = at >= 0 && at < size;
      out[i] = inside ? at : 0;
      return !inside;
    });
    if (bad < n) throw std::out_of_range(index_outside(in[bad], bad, -size, size));
  }
};

void put_rows(ArrayContext& c) {
  const TensorView& y = c.output();
  const auto item = static_cast<std::int64_t>(size_of(y.dtype));
  if (y.count() == 0) return;
  if (c.inputs() == 3) {
    parallel_for(y.count() * item, 4 * kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(y.data + begin, c.input(2).data + begin, static_cast<std::size_t>(end - begin));
    });
  }
  const std::int64_t n = c.input(0).count(), width = y.count() / y.shape[0];
  const auto* rows = c.input(0).as<std::int64_t>();
  if (c.attributes<PutAttributes>().add) {
    with_type(y.dtype, [&]<class T>() {
      if constexpr (has_arithmetic(dtype_of<T>)) add_rows(y.as<T>(), y.count(), c.input(1).as<T>(), rows, n, width);
    });
    return;
  }
  by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
    const auto bytes = static_cast<std::size_t>((end - begin) * item);
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(y.data + (rows[i] * width + begin) * item, c.input(1).data + (i * width + begin) * item, bytes);
    }
  });
}

}  // namespace

void add_indexing_kernels(Registry& registry) {
  add<Index>(registry.get("index"), kCpu, Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  add(registry.get("put_rows"), kCpu, put_rows, kDense);
}

}  // namespace sluice::cpu_backend
