// Fills, random numbers, copies and conversions of the CPU backend.
#include <cstring>
#include <stdexcept>
#include <string>

#include "sluice/ndarray/strided_copy.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/convert.h"
#include "sluice/operators/backends/cpu/elementwise_loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/backends/register.h"
#include "sluice/operators/backends/strided_loop.h"
#include "sluice/resources/philox.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

void fill(ArrayContext& c) {
  const auto& a = c.attributes<FillAttributes>();
  const TensorView& view = c.output();
  with_type(view.dtype, [&]<class T>() {
    T* y = view.as<T>();
    const bool whole = a.value.is_integer && a.step.is_integer;
    if (a.step.as<double>() == 0) {
      const T value = whole ? convert<T>(a.value.integer) : convert<T>(a.value.as<double>());
      for_each_row<1>({&view}, kElementwiseGrain, [&](auto at, std::int64_t n, auto step) {
        T* out = y + at[0];
        if (step[0] == 1) {
          std::fill(out, out + n, value);
        } else {
          for (std::int64_t i = 0; i < n; ++i) out[i * step[0]] = value;
        }
      });
      return;
    }
    parallel_for(view.count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        y[i] = whole ? convert<T>(a.value.integer + i * a.step.integer)
                     : convert<T>(a.value.as<double>() + static_cast<double>(i) * a.step.as<double>());
      }
    });
  });
}

template <bool is_normal>
struct Random {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const auto& a = c.attributes<RandomAttributes>();
      const ElementKey key(RandomKey{a.seed, a.stream, a.draw});
      const T base = static_cast<T>(a.a), scale = static_cast<T>(is_normal ? a.b : a.b - a.a);
      T* y = c.output().as<T>();
      parallel_for(c.output().count(), kElementwiseGrain / 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::uint64_t e = a.first + static_cast<std::uint64_t>(i);
          T u;
          if constexpr (std::is_same_v<T, float>) {
            u = is_normal ? normal_f32(key, e) : uniform01_f32(key, e);
          } else {
            u = is_normal ? normal_f64(key, e) : uniform01_f64(key, e);
          }
          y[i] = base + scale * u;
        }
      });
    }
  };
};

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
  const std::int64_t rows = x.shape[0], n = c.output().shape[0];
  if (n == 0) return;
  const std::size_t width = static_cast<std::size_t>(c.output().count() / n) * size_of(x.dtype);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i);
    if (row < 0 || row >= rows) {
      throw std::out_of_range("[take_rows] row " + std::to_string(row) + " of " + std::to_string(rows));
    }
  }
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / static_cast<std::int64_t>(std::max<std::size_t>(1, width)));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i);
      std::memcpy(c.output().data + static_cast<std::size_t>(i) * width, x.data + static_cast<std::size_t>(row) * width,
                  width);
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
    // Split by columns, so that rows are added in order.
    parallel_for(width, std::max<std::int64_t>(16, kElementwiseGrain / std::max<std::int64_t>(1, n)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = 0; i < n; ++i) {
                     T* out = y + label_at(c.input(1).dtype, c.input(1).data, i) * width;
                     const T* in = g.as<T>() + i * width;
                     for (std::int64_t j = begin; j < end; ++j) out[j] += in[j];
                   }
                 });
  }
};

struct PlusTotal {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* x, T* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
  }
};
struct PairTotal {
  template <class T>
  SLUICE_KERNEL_BODY void operator()(const T* a, const T* b, T* y, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
  }
};

/// y = the terms added in order; with `into`, y += that.
template <bool into>
struct AddTerms {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      T* y = c.output().as<T>();
      constexpr std::int64_t piece = 2048;  // stays in the first-level cache
      parallel_for(c.output().count(), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
        T buffer[piece];
        for (std::int64_t at = begin; at < end; at += piece) {
          const std::int64_t n = std::min(piece, end - at);
          T* out = into ? buffer : y + at;
          if (c.inputs() == 1) {
            std::memcpy(out, c.input(0).as<T>() + at, static_cast<std::size_t>(n) * sizeof(T));
          } else {
            const T* first = c.input(0).as<T>();
            const T* second = c.input(1).as<T>();
            dispatch(PairTotal{}, first + at, second + at, out, n);
          }
          for (int k = 2; k < c.inputs(); ++k) {
            const T* term = c.input(k).as<T>();
            dispatch(PlusTotal{}, term + at, out, n);
          }
          if constexpr (into) dispatch(PlusTotal{}, static_cast<const T*>(buffer), y + at, n);
        }
      });
    }
  };
};

}  // namespace

void add_movement_kernels(Registry& registry) {
  const auto with = [](Kernel kernel, KernelFunction run) {
    kernel.run = run;
    return kernel;
  };
  add_for_all(registry.get("fill"), with(kCpu, fill));  // ranges are made as new arrays only, so they are dense
  add_for_all(registry.get("copy"), with(kCpu, copy));
  add_for_all(registry.get("transfer"), with(kCpu, copy));
  add_for_all(registry.get("cast"), with(kCpu, cast));
  add_for_all(registry.get("concat"), with(kCpu, concat));
  add_for_all(registry.get("one_hot"), with(kCpuDense, one_hot));
  add_for_all(registry.get("take_rows"), with(kCpuDense, take_rows));
  add<Random<false>::Make>(registry.get("uniform"), Floating{}, kCpuDense);
  add<Random<true>::Make>(registry.get("normal"), Floating{}, kCpuDense);
  add<Scatter>(registry.get("scatter"), Arithmetic{}, kCpuDense);
  add<AddRows>(registry.get("add_rows"), Arithmetic{}, kCpuDense);
  add<AddTerms<false>::Make>(registry.get("add_n"), Arithmetic{}, kCpuDense);
  add<AddTerms<true>::Make>(registry.get("accumulate"), Arithmetic{}, kCpuDense);
}

}  // namespace sluice::cpu_backend
