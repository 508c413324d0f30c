// Losses of the reference backend.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/resources/value_errors.h"

namespace sluice::reference {
namespace {

using namespace backends;

template <class T>
struct ClassLabels {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassLabelAttributes>();
    std::fill_n(c.output().as<std::int64_t>(), c.output().count(), 0);  // for kernels that do not know of an error yet
    for (std::int64_t i = 0; i < c.output().count(); ++i) {
      const std::int64_t label = c.input(0).as<T>()[i];
      if (!a.is_ignored(label) && (label < 0 || label >= a.classes)) {
        throw std::out_of_range(label_outside(label, i, a.classes));
      }
      c.output().as<std::int64_t>()[i] = a.is_ignored(label) ? 0 : label;
    }
  }
};

template <class T>
struct CrossEntropy {
  static void run(ArrayContext& c) {
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t label = c.input(1).as<std::int64_t>()[i];
      if (label < 0 || label >= classes) throw std::out_of_range(label_outside(label, i, classes));
    }
    std::vector<double> losses(static_cast<std::size_t>(rows));
    softmax_cross_entropy(rows, classes, c.input(0).as<T>(), c.input(1).as<std::int64_t>(), losses.data(),
                          c.output(1).as<T>());
    double total = 0;
    for (double loss : losses) total += loss;
    *c.output(0).as<T>() = element<T>(total * c.attributes<LossAttributes>().scale);
  }
};

template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const C scale = static_cast<C>(c.attributes<LossAttributes>().scale) * number(*c.input(2).as<T>());
    softmax_cross_entropy_grad(c.input(0).shape[0], c.input(0).shape[1], c.input(0).as<T>(),
                               c.input(1).as<std::int64_t>(), static_cast<const T*>(nullptr), scale,
                               c.output().as<T>());
  }
};

template <class T>
struct ClassParts {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    const std::int64_t rows = c.input(0).shape[0], columns = c.input(0).shape[1];
    for (std::int64_t r = 0; r < a.here; ++r) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const T* const x = c.input(0).as<T>() + i * columns;
        const std::int64_t label = c.input(1).as<std::int64_t>()[i];
        double largest = -std::numeric_limits<double>::infinity(), exponentials = 0, of_label = 0, sum = 0;
        for (std::int64_t j = a.begin(r); j < a.begin(r + 1); ++j) {
          const double value = term(x[j - a.begin(0)]);
          if (!(value <= largest)) largest = value;
          if (j == label) of_label = value;
          sum += value;
        }
        if (largest == -INFINITY) largest = 0;  // no class, or none that is possible: the logarithm of 0
        for (std::int64_t j = a.begin(r); j < a.begin(r + 1); ++j) {
          exponentials += std::exp(term(x[j - a.begin(0)]) - largest);
        }
        double* const numbers = c.output().as<double>() + (r * rows + i) * a.numbers;
        numbers[0] = largest + std::log(exponentials);
        numbers[1] = of_label;
        if (a.numbers > 2) numbers[2] = sum;
      }
    }
  }
};

template <class T>
struct ClassPartsGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    const std::int64_t rows = c.input(0).shape[0], columns = c.input(0).shape[1];
    for (std::int64_t r = 0; r < a.here; ++r) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const double* const numbers = c.input(2).as<double>() + (r * rows + i) * a.numbers;
        const double* const g = c.input(3).as<double>() + (r * rows + i) * a.numbers;
        const double total = numbers[0] == -INFINITY ? 0 : numbers[0];
        for (std::int64_t j = a.begin(r); j < a.begin(r + 1); ++j) {
          const std::int64_t at = i * columns + j - a.begin(0);
          const double of_label = j == c.input(1).as<std::int64_t>()[i] ? g[1] : 0;
          const double part = std::exp(term(c.input(0).as<T>()[at]) - total) * g[0];
          c.output().as<T>()[at] = element<T>(part + of_label + (a.numbers > 2 ? g[2] : 0));
        }
      }
    }
  }
};

}  // namespace

void add_loss_kernels(Registry& registry) {
  add<ClassLabels>(registry.get("class_labels"), kReference, Types<std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  add<CrossEntropy>(registry.get("cross_entropy"), kReference, Floating{}, kDense);
  add<CrossEntropyGrad>(registry.get("cross_entropy_grad"), kReference, Floating{}, kDense);
  add<ClassParts>(registry.get("class_parts"), kReference, Floating{}, kDense);
  add<ClassPartsGrad>(registry.get("class_parts_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
