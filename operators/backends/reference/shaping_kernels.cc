// Copies, conversions and what else moves elements, of the reference backend.
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
      for_each_element<2>({&c.output(), &c.input(0)}, [&](auto at) { y[at[0]] = converted<To>(x[at[1]]); });
    });
  });
}

template <class T>
struct Scatter {
  static void run(ArrayContext& c) {
    const auto& window = c.attributes<WindowAttributes>();
    std::vector<Sum<T>> sums(static_cast<std::size_t>(c.output().count()));
    TensorView target = c.output();
    target.shape = c.input(0).shape;
    target.strides = window.strides;
    const T* x = c.input(0).as<T>();
    for_each_element<2>({&c.input(0), &target},
                        [&](auto at) { sums[static_cast<std::size_t>(window.offset + at[1])] += term(x[at[0]]); });
    for (std::size_t i = 0; i < sums.size(); ++i) c.output().as<T>()[i] = element<T>(sums[i]);
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
      c.output().as<T>()[i] = converted<T>(label(c.input(0), i / classes) == i % classes);
    }
  });
}

void take_rows(ArrayContext& c) {
  const TensorView& x = c.input(0);
  const auto& part = c.attributes<RowsAttributes>();
  const std::int64_t here = x.shape[0], rows = part.of > 0 ? part.of : here, n = c.output().shape[0];
  const std::int64_t width = n == 0 ? 0 : c.output().count() / n;
  with_type(x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t named = label(c.input(1), i), row = named - part.begin;
      if (named < 0 || named >= rows) throw std::out_of_range(index_outside(named, i, 0, rows));
      for (std::int64_t j = 0; j < width; ++j) {
        // Rows of other parts are -0.0, which added to anything leaves it as it is.
        c.output().as<T>()[i * width + j] = row >= 0 && row < here ? x.as<T>()[row * width + j] : converted<T>(-0.0F);
      }
    }
  });
}

template <class T>
struct AddRows {
  static void run(ArrayContext& c) {
    const TensorView& g = c.input(0);
    std::vector<Sum<T>> sums(static_cast<std::size_t>(c.output().count()));
    const std::int64_t n = g.shape[0], width = n == 0 ? 0 : g.count() / n, rows = c.output().shape[0];
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = label(c.input(1), i);
      // Labels that failed at a device with streams are any numbers: that error is known late.
      if (row < 0 || row >= rows) continue;
      for (std::int64_t j = 0; j < width; ++j) {
        sums[static_cast<std::size_t>(row * width + j)] += term(g.as<T>()[i * width + j]);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) c.output().as<T>()[i] = element<T>(sums[i]);
  }
};

}  // namespace

void add_shaping_kernels(Registry& registry) {
  add(registry.get("copy"), kReference, copy);
  add(registry.get("transfer"), kReference, copy);
  add(registry.get("cast"), kReference, cast);
  add(registry.get("concat"), kReference, concat);
  add(registry.get("one_hot"), kReference, one_hot, kDense);
  add(registry.get("take_rows"), kReference, take_rows, kDense);
  add<Scatter>(registry.get("scatter"), kReference, Arithmetic{}, kDense);
  add<AddRows>(registry.get("add_rows"), kReference, Arithmetic{}, kDense);
}

}  // namespace sluice::reference
