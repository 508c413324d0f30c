// Numbers of elements, and writes by them, of the CPU backend.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/add_rows.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct Index {
  static void run(ArrayContext& c) {
    const std::int64_t size = c.attributes<AxisAttributes>().size, n = c.output().count();
    const T* in = c.input(0).as<T>();
    auto* out = c.output().as<std::int64_t>();
    std::atomic<std::int64_t> first_bad{n};  // the error names the first, on any number of threads
    parallel_for(n, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t bad = n;
      for (std::int64_t i = end - 1; i >= begin; --i) {
        const std::int64_t given = in[i], at = given < 0 ? given + size : given;
        out[i] = at;
        if (at < 0 || at >= size) bad = i;
      }
      std::int64_t seen = first_bad.load(std::memory_order_relaxed);
      while (bad < seen && !first_bad.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
      }
    });
    const std::int64_t bad = first_bad.load(std::memory_order_relaxed);
    if (bad == n) return;
    throw std::out_of_range("[index] " + std::to_string(static_cast<std::int64_t>(in[bad])) + " on an axis of " +
                            std::to_string(size));
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
