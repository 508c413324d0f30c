// Plain loops for every operator that is not elementwise: the oracle for other backends. One thread, f32 sums in
// double.
#include <array>
#include <cmath>
#include <stdexcept>

#include "sluice/operators/backends/convert.h"
#include "sluice/operators/backends/heavy_kernels.h"
#include "sluice/operators/backends/reference/reference_kernels.h"
#include "sluice/operators/backends/strided_loop.h"
#include "sluice/operators/builtin.h"
#include "sluice/resources/philox.h"

namespace sluice {
namespace {

using namespace backends;

struct ReferenceBackend {
  template <class T>
  static void gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                   const T* b, std::int64_t ldb, T* c) {
    reference::gemm<T>(ta, tb, m, n, k, T(1), a, lda, b, ldb, T(0), c, std::max<std::int64_t>(1, n));
  }
  template <class T>
  static void add_bias(std::int64_t rows, std::int64_t columns, const T* x, const T* bias, bool relu, T* y) {
    reference::add_bias<T>(rows, columns, x, bias, relu, y);
  }
  template <class T>
  static void conv2d_forward(ArrayContext&, const cpu_backend::Conv2dShape& s, const T* x, const T* w, const T* bias,
                             T* y, bool relu) {
    reference::conv2d_forward<T>(s, x, w, bias, y, relu);
  }
  template <class T>
  static void conv2d_input_grad(ArrayContext&, const cpu_backend::Conv2dShape& s, const T* g, const T* w, T* dx) {
    reference::conv2d_input_grad<T>(s, g, w, dx);
  }
  template <class T>
  static void conv2d_weight_grad(ArrayContext&, const cpu_backend::Conv2dShape& s, const T* x, const T* g, T* dw) {
    reference::conv2d_weight_grad<T>(s, x, g, dw);
  }
  template <class T>
  static void conv2d_bias_grad(const cpu_backend::Conv2dShape& s, const T* g, T* db) {
    reference::conv2d_bias_grad<T>(s, g, db);
  }
  template <class T>
  static void max_pool2d(const cpu_backend::PoolShape& s, const T* x, T* y, std::int32_t* at) {
    reference::max_pool2d<T>(s, x, y, at);
  }
  template <class T>
  static void max_pool2d_grad(const cpu_backend::PoolShape& s, const T* g, const std::int32_t* at, T* dx) {
    reference::max_pool2d_grad<T>(s, g, at, dx);
  }
  template <class T>
  static void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const T* logits,
                                    const std::int64_t* labels, T* loss, T* p) {
    reference::softmax_cross_entropy<T>(rows, classes, logits, labels, loss, p);
  }
  template <class T>
  static void softmax_cross_entropy_grad(std::int64_t rows, std::int64_t classes, const T* p,
                                         const std::int64_t* labels, T scale, T* out) {
    reference::softmax_cross_entropy_grad<T>(rows, classes, p, labels, nullptr, scale, out);
  }
  template <class T>
  static void sgd_momentum_step(T* w, T* v, const T* g, std::int64_t n, T lr, T momentum, T decay) {
    reference::sgd_momentum_step<T>(w, v, g, n, lr, momentum, decay);
  }
  template <class T>
  static void adam_step(T* w, T* m, T* v, const T* g, std::int64_t n, std::int64_t step,
                        const cpu_backend::AdamSettings<T>& settings) {
    reference::adam_step<T>(w, m, v, g, n, step, settings);
  }
};

// Calls visit(i, offset) for each element of a window in row-major order.
template <class Visit>
void each(const TensorView& view, Visit visit) {
  std::int64_t i = 0;
  for_each_element<1>({&view}, [&](auto at) { visit(i++, at[0]); });
}

void fill(ArrayContext& c) {
  const auto& a = c.attributes<FillAttributes>();
  with_type(c.output().dtype, [&]<class T>() {
    T* y = c.output().as<T>();
    each(c.output(), [&](std::int64_t i, std::int64_t at) {
      const bool whole = a.value.is_integer && a.step.is_integer;
      y[at] = whole ? convert<T>(a.value.integer + i * a.step.integer)
                    : convert<T>(a.value.as<double>() + static_cast<double>(i) * a.step.as<double>());
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
      T* y = c.output().as<T>();
      each(c.output(), [&](std::int64_t i, std::int64_t at) {
        const std::uint64_t e = a.first + static_cast<std::uint64_t>(i);
        if constexpr (std::is_same_v<T, float>) {
          const float u = is_normal ? normal_f32(key, e) : uniform01_f32(key, e);
          y[at] = is_normal ? static_cast<T>(a.a) + static_cast<T>(a.b) * u
                            : static_cast<T>(a.a) + static_cast<T>(a.b - a.a) * u;
        } else {
          const double u = is_normal ? normal_f64(key, e) : uniform01_f64(key, e);
          y[at] = is_normal ? a.a + a.b * u : a.a + (a.b - a.a) * u;
        }
      });
    }
  };
};

void copy(ArrayContext& c) {
  with_type(c.output().dtype, [&]<class T>() {
    const T* x = c.input(0).as<T>();
    T* y = c.output().as<T>();
    for_each_element<2>({&c.output(), &c.input(0)}, [&](auto at) { y[at[0]] = x[at[1]]; });
  });
}

void cast(ArrayContext& c) {
  with_type(c.input(0).dtype, [&]<class From>() {
    with_type(c.output().dtype, [&]<class To>() {
      const From* x = c.input(0).as<From>();
      To* y = c.output().as<To>();
      for_each_element<2>({&c.output(), &c.input(0)}, [&](auto at) { y[at[0]] = convert<To>(x[at[1]]); });
    });
  });
}

template <class T>
struct Scatter {
  static void run(ArrayContext& c) {
    const auto& window = c.attributes<WindowAttributes>();
    T* y = c.output().as<T>();
    each(c.output(), [&](std::int64_t, std::int64_t at) { y[at] = T(0); });
    TensorView target = c.output();
    target.shape = c.input(0).shape;
    target.strides = window.strides;
    const T* x = c.input(0).as<T>();
    for_each_element<2>({&c.input(0), &target}, [&](auto at) { y[window.offset + at[1]] += x[at[0]]; });
  }
};

void concat(ArrayContext& c) {
  const int axis = c.attributes<AxisAttributes>().axis;
  std::int64_t begin = 0;
  for (int k = 0; k < c.inputs(); ++k) {
    const TensorView& x = c.input(k);
    TensorView part = c.output();
    part.shape = x.shape;
    with_type(x.dtype, [&]<class T>() {
      T* y = c.output().as<T>() + begin * c.output().strides[axis];
      for_each_element<2>({&x, &part}, [&](auto at) { y[at[1]] = x.as<T>()[at[0]]; });
    });
    begin += x.shape[axis];
  }
}

void one_hot(ArrayContext& c) {
  const std::int64_t classes = c.attributes<AxisAttributes>().size;
  with_type(c.output().dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < c.output().count(); ++i) {
      const std::int64_t label = label_at(c.input(0).dtype, c.input(0).data, i / classes);
      c.output().as<T>()[i] = convert<T>(label == i % classes);
    }
  });
}

void take_rows(ArrayContext& c) {
  const TensorView& x = c.input(0);
  const std::int64_t rows = x.shape[0], n = c.output().shape[0];
  const std::int64_t width = n == 0 ? 0 : c.output().count() / n;
  with_type(x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i);
      if (row < 0 || row >= rows) {
        throw std::out_of_range("[take_rows] row " + std::to_string(row) + " of " + std::to_string(rows));
      }
      for (std::int64_t j = 0; j < width; ++j) c.output().as<T>()[i * width + j] = x.as<T>()[row * width + j];
    }
  });
}

template <class T>
struct AddRows {
  static void run(ArrayContext& c) {
    const TensorView& g = c.input(0);
    T* y = c.output().as<T>();
    for (std::int64_t i = 0; i < c.output().count(); ++i) y[i] = T(0);
    const std::int64_t n = g.shape[0], width = n == 0 ? 0 : g.count() / n;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = label_at(c.input(1).dtype, c.input(1).data, i);
      for (std::int64_t j = 0; j < width; ++j) y[row * width + j] += g.as<T>()[i * width + j];
    }
  }
};

// The output element that each input element of a reduction goes to: the output seen with the input's axes.
TensorView widened(const TensorView& y, const TensorView& x, const ReduceAttributes& a) {
  TensorView view = y;
  view.shape = x.shape;
  view.strides = Dims{};
  int at = 0;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const bool reduced = (a.axes >> i & 1U) != 0;
    view.strides.push_back(reduced ? 0 : y.strides[at]);
    if (!reduced || a.keep) ++at;
  }
  return view;
}

template <class T>
struct Sum {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ReduceAttributes>();
    const TensorView& x = c.input(0);
    const TensorView target = widened(c.output(), x, a);
    std::vector<reference::Sum<T>> sums(static_cast<std::size_t>(c.output().count()));
    for_each_element<2>({&x, &target}, [&](auto at) {
      auto& s = sums[static_cast<std::size_t>(at[1])];
      s += static_cast<reference::Sum<T>>(x.as<T>()[at[0]]);
    });
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        c.output().as<T>()[i] = static_cast<T>(sums[i] * a.scale);
      } else {
        c.output().as<T>()[i] = static_cast<T>(sums[i]);
      }
    }
  }
};

// For each group: the place (row-major in the group) and offset of the first largest element; NaN counts as largest.
template <class T, class Visit>
void each_largest(const TensorView& x, const TensorView& target, std::int64_t groups, Visit visit) {
  struct Best {
    std::int64_t place = 0, offset = 0, seen = 0;
  };
  std::vector<Best> best(static_cast<std::size_t>(groups));
  for_each_element<2>({&x, &target}, [&](auto at) {
    Best& b = best[static_cast<std::size_t>(at[1])];
    const T value = x.as<T>()[at[0]], largest = x.as<T>()[b.offset];
    if (b.seen == 0 || value > largest || (value != value && largest == largest)) {
      b.place = b.seen;
      b.offset = at[0];
    }
    ++b.seen;
  });
  for (std::size_t i = 0; i < best.size(); ++i) visit(static_cast<std::int64_t>(i), best[i].place, best[i].offset);
}

template <class T>
struct Max {
  static void run(ArrayContext& c) {
    const TensorView target = widened(c.output(), c.input(0), c.attributes<ReduceAttributes>());
    each_largest<T>(c.input(0), target, c.output().count(), [&](std::int64_t i, std::int64_t, std::int64_t offset) {
      c.output().as<T>()[i] = c.input(0).as<T>()[offset];
    });
  }
};

template <class T>
struct ArgMax {
  static void run(ArrayContext& c) {
    const TensorView target = widened(c.output(), c.input(0), c.attributes<ReduceAttributes>());
    each_largest<T>(c.input(0), target, c.output().count(), [&](std::int64_t i, std::int64_t place, std::int64_t) {
      c.output().as<std::int64_t>()[i] = place;
    });
  }
};

template <class T>
struct FirstMax {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ReduceAttributes>();
    const TensorView& x = c.input(0);
    TensorView groups;
    for (int i = 0; i < x.shape.rank(); ++i) {
      if ((a.axes >> i & 1U) == 0) groups.shape.push_back(x.shape[i]);
    }
    groups.strides = row_major(groups.shape);
    const TensorView target = widened(groups, x, {a.axes, false, 1});
    for (std::int64_t i = 0; i < x.count(); ++i) c.output().as<T>()[i] = T(0);
    if (x.count() == 0) return;
    each_largest<T>(x, target, groups.count(),
                    [&](std::int64_t, std::int64_t, std::int64_t offset) { c.output().as<T>()[offset] = T(1); });
  }
};

template <bool logarithm>
struct Softmax {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      const std::int64_t n = c.input(0).shape.back();
      if (n == 0) return;
      for (std::int64_t row = 0; row < c.input(0).count() / n; ++row) {
        const T* x = c.input(0).as<T>() + row * n;
        T* y = c.output().as<T>() + row * n;
        double largest = x[0], total = 0;
        for (std::int64_t i = 1; i < n; ++i) largest = std::max(largest, static_cast<double>(x[i]));
        for (std::int64_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(x[i]) - largest);
        for (std::int64_t i = 0; i < n; ++i) {
          const double shifted = static_cast<double>(x[i]) - largest;
          y[i] = static_cast<T>(logarithm ? shifted - std::log(total) : std::exp(shifted) / total);
        }
      }
    }
  };
};

template <bool into>
struct AddTerms {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      for (std::int64_t i = 0; i < c.output().count(); ++i) {
        T total = c.input(0).as<T>()[i];
        for (int k = 1; k < c.inputs(); ++k) total += c.input(k).as<T>()[i];
        T& y = c.output().as<T>()[i];
        y = into ? y + total : total;
      }
    }
  };
};

}  // namespace

void builtin::add_reference_kernels(Registry& registry) {
  const auto plain = [](KernelFunction run) {
    Kernel kernel = kReference;
    kernel.run = run;
    return kernel;
  };
  const auto dense = [](KernelFunction run) {
    Kernel kernel = kReferenceDense;
    kernel.run = run;
    return kernel;
  };
  add_for_all(registry.get("fill"), plain(fill));
  add_for_all(registry.get("copy"), plain(copy));
  add_for_all(registry.get("transfer"), plain(copy));
  add_for_all(registry.get("cast"), plain(cast));
  add_for_all(registry.get("concat"), plain(concat));
  add_for_all(registry.get("one_hot"), dense(one_hot));
  add_for_all(registry.get("take_rows"), dense(take_rows));
  add<Random<false>::Make>(registry.get("uniform"), Floating{}, kReference);
  add<Random<true>::Make>(registry.get("normal"), Floating{}, kReference);
  add<Scatter>(registry.get("scatter"), Arithmetic{}, kReferenceDense);
  add<AddRows>(registry.get("add_rows"), Arithmetic{}, kReferenceDense);
  add<Sum>(registry.get("sum"), Arithmetic{}, kReferenceDense);
  add<Max>(registry.get("max"), Arithmetic{}, kReferenceDense);
  add<ArgMax>(registry.get("argmax"), Arithmetic{}, kReferenceDense);
  add<FirstMax>(registry.get("first_max"), Arithmetic{}, kReferenceDense);
  add<Softmax<false>::Make>(registry.get("softmax"), Floating{}, kReferenceDense);
  add<Softmax<true>::Make>(registry.get("log_softmax"), Floating{}, kReferenceDense);
  add<AddTerms<false>::Make>(registry.get("add_n"), Arithmetic{}, kReferenceDense);
  add<AddTerms<true>::Make>(registry.get("accumulate"), Arithmetic{}, kReferenceDense);
  Heavy<ReferenceBackend>::add_to(registry, kReference);
}

}  // namespace sluice
