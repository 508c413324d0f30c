// Copies, conversions and what else moves elements, of the CPU backend.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/add_rows.h"
#include "sluice/operators/backends/cpu/convert.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/cpu/strided_loop.h"
#include "sluice/resources/value_errors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

void copy(ArrayContext& c) { strided_copy(c.input(0), c.output()); }

void cast(ArrayContext& c) {
  with_type(c.input(0).dtype, [&]<class From>() {
    with_type(c.output().dtype, [&]<class To>() {
      const From* x = c.input(0).as<From>();
      To* y = c.output().as<To>();
      for_each_row<2>({&c.output(), &c.input(0)}, kElementwiseGrain, [&](auto at, std::int64_t n, auto step) {
        for (std::int64_t i = 0; i < n; ++i) y[at[0] + i * step[0]] = convert<To>(x[at[1] + i * step[1]]);
      });
    });
  });
}

template <class T>
struct Scatter {
  static void run(ArrayContext& c) {
    const auto& window = c.attributes<WindowAttributes>();
    T* y = c.output().as<T>();
    parallel_for(c.output().count(), kElementwiseGrain,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, T(0)); });
    TensorView target = c.output();
    target.shape = c.input(0).shape;
    target.strides = window.strides;
    const T* x = c.input(0).as<T>();
    if (c.input(0).count() == 0) return;
    // One thread, in order: elements may be the same where the window overlaps itself.
    const JoinedAxes<2> axes({&c.input(0), &target});
    const std::int64_t n = axes.row(), step_x = axes.strides[0].back(), step_y = axes.strides[1].back();
    axes.each_row(0, axes.rows(), [&](const auto& at) {
      const T* in = x + at[0];
      T* out = y + window.offset + at[1];
      for (std::int64_t i = 0; i < n; ++i) out[i * step_y] += in[i * step_x];
    });
  }
};

void concat(ArrayContext& c) {
  const int axis = c.attributes<AxisAttributes>().axis;
  TensorView part = c.output();
  for (int k = 0; k < c.inputs(); ++k) {
    const TensorView& x = c.input(k);
    part.shape[axis] = x.shape[axis];
    strided_copy(x, part);
    part.data += x.shape[axis] * part.strides[axis] * static_cast<std::int64_t>(size_of(part.dtype));
  }
}

void one_hot(ArrayContext& c) {
  const std::int64_t classes = c.attributes<AxisAttributes>().size, n = c.input(0).count();
  with_type(c.output().dtype, [&]<class T>() {
    T* y = c.output().as<T>();
    parallel_for(n, std::max<std::int64_t>(1, kElementwiseGrain / classes), [&](std::int64_t begin, std::int64_t end) {
      std::fill(y + begin * classes, y + end * classes, convert<T>(false));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t label = label_at(c.input(0).dtype, c.input(0).data, i);
        if (label >= 0 && label < classes) y[i * classes + label] = convert<T>(true);
      }
    });
  });
}

void take_rows(ArrayContext& c) {
  const TensorView& x = c.input(0);
  const auto& part = c.attributes<RowsAttributes>();
  const std::int64_t here = x.shape[0], rows = part.of > 0 ? part.of : here, n = c.output().shape[0];
  if (n == 0) return;
  const std::size_t width = static_cast<std::size_t>(c.output().count() / n) * size_of(x.dtype);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i);
    if (row < 0 || row >= rows) throw std::out_of_range(index_outside(row, i, 0, rows));
  }
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / static_cast<std::int64_t>(std::max<std::size_t>(1, width)));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i) - part.begin;
      std::byte* const y = c.output().data + static_cast<std::size_t>(i) * width;
      if (row >= 0 && row < here) {
        std::memcpy(y, x.data + static_cast<std::size_t>(row) * width, width);
      } else {  // -0.0, which added to anything leaves it as it is
        std::memset(y, 0, width);
        const std::size_t size = size_of(x.dtype);
        for (std::size_t at = size; is_floating(x.dtype) && at <= width; at += size) y[at - 1] = std::byte{0x80};
      }
    }
  });
}

template <class T>
struct AddRows {
  static void run(ArrayContext& c) {
    const TensorView& g = c.input(0);
    T* y = c.output().as<T>();
    std::fill(y, y + c.output().count(), T(0));
    const std::int64_t n = g.shape[0], width = n == 0 ? 0 : g.count() / n;
    std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      rows[static_cast<std::size_t>(i)] = label_at(c.input(1).dtype, c.input(1).data, i);
    }
    add_rows(y, c.output().count(), g.as<T>(), rows.data(), n, width);
  }
};

}  // namespace

void add_shaping_kernels(Registry& registry) {
  add(registry.get("copy"), kCpu, copy);
  add(registry.get("transfer"), kCpu, copy);
  add(registry.get("cast"), kCpu, cast);
  add(registry.get("concat"), kCpu, concat);
  add(registry.get("one_hot"), kCpu, one_hot, kDense);
  add(registry.get("take_rows"), kCpu, take_rows, kDense);
  add<Scatter>(registry.get("scatter"), kCpu, Direct<Arithmetic>{}, kDense);
  add<AddRows>(registry.get("add_rows"), kCpu, Direct<Arithmetic>{}, kDense);
}

}  // namespace sluice::cpu_backend
