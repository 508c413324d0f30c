// Losses of the CPU backend as kernels.
#include <stdexcept>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cpu/first_bad.h"
#include "sluice/operators/backends/cpu/fused.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/resources/value_errors.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

template <class T>
struct ClassLabels {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassLabelAttributes>();
    const T* in = c.input(0).as<T>();
    auto* out = c.output().as<std::int64_t>();
    const std::int64_t n = c.output().count();
    // As an index out of range (indexing_kernels.cc), a label outside becomes 0.
    const std::int64_t bad = first_bad(n, [&](std::int64_t i) {
      const std::int64_t label = in[i];
      const bool inside = label >= 0 && label < a.classes;
      out[i] = inside && !a.is_ignored(label) ? label : 0;
      return !inside && !a.is_ignored(label);
    });
    if (bad < n) throw std::out_of_range(label_outside(in[bad], bad, a.classes));
  }
};

template <class T>
struct CrossEntropy {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    const auto* labels = c.input(1).as<std::int64_t>();
    for (std::int64_t i = 0; i < rows; ++i) {
      if (labels[i] < 0 || labels[i] >= classes) throw std::out_of_range(label_outside(labels[i], i, classes));
    }
    const Scratch losses = c.scratch(static_cast<std::size_t>(rows) * sizeof(T));
    softmax_cross_entropy(rows, classes, c.input(0).as<T>(), labels, losses.as<T>(), c.output(1).as<T>());
    double total = 0;
    for (std::int64_t i = 0; i < rows; ++i) total += static_cast<double>(losses.as<T>()[i]);
    *c.output(0).as<T>() = static_cast<T>(total * c.attributes<LossAttributes>().scale);
  }
};
template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    const T scale = static_cast<T>(c.attributes<LossAttributes>().scale) * *c.input(2).as<T>();
    softmax_cross_entropy_grad(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(),
                               static_cast<const T*>(nullptr), scale, c.output().as<T>());
  }
};

template <class T>
struct ClassParts {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    const std::int64_t rows = c.input(0).shape[0];
    for (std::int64_t r = 0; r < a.here; ++r) {
      const std::int64_t begin = a.begin(r) - a.begin(0);
      parts_of_rows<T>({.x = c.input(0).as<T>() + begin,
                        .labels = c.input(1).as<std::int64_t>(),
                        .rows = rows,
                        .step = c.input(0).shape[1],
                        .first = a.begin(r),
                        .classes = a.begin(r + 1) - a.begin(r)},
                       a.numbers, c.output().as<double>() + r * rows * a.numbers);
    }
  }
};
template <class T>
struct ClassPartsGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    const std::int64_t rows = c.input(0).shape[0];
    for (std::int64_t r = 0; r < a.here; ++r) {
      const std::int64_t begin = a.begin(r) - a.begin(0);
      parts_of_rows_grad<T>({.x = c.input(0).as<T>() + begin,
                             .labels = c.input(1).as<std::int64_t>(),
                             .rows = rows,
                             .step = c.input(0).shape[1],
                             .first = a.begin(r),
                             .classes = a.begin(r + 1) - a.begin(r)},
                            a.numbers, c.input(2).as<double>() + r * rows * a.numbers,
                            c.input(3).as<double>() + r * rows * a.numbers, c.output().as<T>() + begin);
    }
  }
};

}  // namespace

void add_loss_kernels(Registry& registry) {
  Kernel with_losses = kDense;
  with_losses.scratch = [](const Signature& call) {
    return static_cast<std::size_t>(call.shape(0)[0]) * size_of(call.dtype());
  };
  add<ClassLabels>(registry.get("class_labels"), kCpu, Types<std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  add<CrossEntropy>(registry.get("cross_entropy"), kCpu, Direct<Floating>{}, with_losses);
  add<CrossEntropyGrad>(registry.get("cross_entropy_grad"), kCpu, Direct<Floating>{}, kDense);
  add<ClassParts>(registry.get("class_parts"), kCpu, Direct<Floating>{}, kDense);
  add<ClassPartsGrad>(registry.get("class_parts_grad"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
