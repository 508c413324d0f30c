// Numbers of elements, and writes by them, of the CPU backend.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/operators/attributes.h"
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

/// The columns are split between threads, so that each sees the rows in order.
template <class F>
void by_columns(std::int64_t rows, std::int64_t width, F f) {
  parallel_for(width, std::max<std::int64_t>(64, kElementwiseGrain / std::max<std::int64_t>(1, rows)), f);
}

template <class T>
void add_rows(ArrayContext& c, const std::int64_t* rows, std::int64_t n, std::int64_t width) {
  using C = compute_of<T>;
  const TensorView& y = c.output();
  std::vector<C> wide;  // sums of f16 and bf16
  C* sums = nullptr;
  if constexpr (std::is_same_v<C, T>) {
    sums = y.as<T>();
  } else {
    for (std::int64_t i = 0; i < y.count(); ++i) wide.push_back(static_cast<C>(y.as<T>()[i]));
    sums = wide.data();
  }
  const T* in = c.input(1).as<T>();
  by_columns(n, width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      C* out = sums + rows[i] * width;
      for (std::int64_t j = begin; j < end; ++j) out[j] = static_cast<C>(out[j] + static_cast<C>(in[i * width + j]));
    }
  });
  if constexpr (!std::is_same_v<C, T>) {
    for (std::int64_t i = 0; i < y.count(); ++i) y.as<T>()[i] = static_cast<T>(wide[static_cast<std::size_t>(i)]);
  }
}

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
      if constexpr (has_arithmetic(dtype_of<T>)) add_rows<T>(c, rows, n, width);
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
