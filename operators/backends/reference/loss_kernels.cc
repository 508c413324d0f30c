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
        T* const numbers = c.output().as<T>() + (r * rows + i) * 3;
        numbers[0] = element<T>(largest + std::log(exponentials));
        numbers[1] = element<T>(of_label);
        numbers[2] = element<T>(sum);
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
        const T* const numbers = c.input(2).as<T>() + (r * rows + i) * 3;
        const T* const g = c.input(3).as<T>() + (r * rows + i) * 3;
        for (std::int64_t j = a.begin(r); j < a.begin(r + 1); ++j) {
          const std::int64_t column = j - a.begin(0), at = i * columns + column;
          const double total = term(numbers[0]) == -INFINITY ? 0 : term(numbers[0]);
          const double part = std::exp(term(c.input(0).as<T>()[at]) - total);
          const double of_label = j == c.input(1).as<std::int64_t>()[i] ? term(g[1]) : 0;
          c.output().as<T>()[at] = element<T>(part * term(g[0]) + of_label + term(g[2]));
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
