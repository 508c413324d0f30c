// Cross-entropy and its gradient.
#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/fold.h"
#include "sluice/operators/backends/cuda/kernels.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

/// A label outside of the classes becomes 0, so that the kernels that follow stay within their arrays.
template <class T>
struct ClassLabelAt {
  std::int64_t* y;
  const T* x;
  ClassLabelAttributes labels;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t label = x[i];
    const bool ignored = labels.ignores && label == labels.ignored, inside = label >= 0 && label < labels.classes;
    y[i] = inside && !ignored ? label : 0;
    if (!inside && !ignored) report(reporter, Finding::label_outside, label, labels.classes, i);
  }
};
template <class T>
struct ClassLabels {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    for_index(issue, c.output().count(),
              ClassLabelAt<T>{c.output().as<std::int64_t>(), c.input(0).template as<T>(),
                              c.attributes<ClassLabelAttributes>(), issue.reporter()});
  }
};

/// A row's probabilities and loss, by one thread: classes are few where this is used most.
template <class T>
struct RowLoss {
  T* probabilities;
  compute_of<T>* losses;
  const T* logits;
  const std::int64_t* labels;
  std::int64_t classes;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(probabilities);
    visit(losses);
    visit(logits);
    visit(labels);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t row) const {
    using C = compute_of<T>;
    const T* const x = logits + row * classes;
    T* const p = probabilities + row * classes;
    C largest = number(x[0]);
    for (std::int64_t i = 1; i < classes; ++i) largest = number(x[i]) > largest ? number(x[i]) : largest;
    double sum = 0;
    for (std::int64_t i = 0; i < classes; ++i) sum += static_cast<double>(std::exp(number(x[i]) - largest));
    const C total = static_cast<C>(sum);
    for (std::int64_t i = 0; i < classes; ++i) p[i] = T(std::exp(number(x[i]) - largest) / total);
    const std::int64_t label = labels[row];
    const bool inside = label >= 0 && label < classes;
    losses[row] = inside ? std::log(total) - (number(x[label]) - largest) : C(NAN);
    if (!inside) report(reporter, Finding::label_outside, label, classes, row);
  }
};
template <class T>
struct SumOfLosses {
  using Item = double;
  __device__ Item load(compute_of<T> x, std::int64_t) const { return static_cast<Item>(x); }
  __device__ static Item join(Item a, Item b) { return a + b; }
  __device__ static Item empty() { return 0; }
};
template <class T>
struct StoreLoss {
  T* y;
  double scale;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t, double total) const { *y = T(static_cast<compute_of<T>>(total * scale)); }
};
template <class T>
struct CrossEntropy {
  static void run(ArrayContext& c) {
    using C = compute_of<T>;
    const Issue issue(c);
    const std::int64_t rows = c.input(0).shape[0], classes = c.input(0).shape[1];
    auto* const losses = issue.scratch<C>(std::max<std::int64_t>(1, rows));
    for_index(issue, rows,
              RowLoss<T>{c.output(1).template as<T>(), losses, c.input(0).template as<T>(),
                         c.input(1).template as<std::int64_t>(), classes, issue.reporter()});
    const TensorView all{reinterpret_cast<std::byte*>(losses), dtype_of<C>, {rows}, {1}};
    fold(issue, SumOfLosses<T>{}, losses, Groups::of(all, 1),
         StoreLoss<T>{c.output(0).template as<T>(), c.attributes<LossAttributes>().scale});
  }
};

template <class T>
struct GradientAt {
  T* y;
  const T* probabilities;
  const std::int64_t* labels;
  const T* g;
  double scale;
  std::int64_t classes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(probabilities);
    visit(labels);
    visit(g);
  }
  __device__ void operator()(std::int64_t i) const {
    using C = compute_of<T>;
    const C factor = static_cast<C>(scale) * number(*g);
    const C one = labels[i / classes] == i % classes ? C(1) : C(0);
    y[i] = T((number(probabilities[i]) - one) * factor);
  }
};
template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    for_index(
        Issue(c), c.output().count(),
        GradientAt<T>{c.output().template as<T>(), c.input(0).template as<T>(), c.input(1).template as<std::int64_t>(),
                      c.input(2).template as<T>(), c.attributes<LossAttributes>().scale, c.input(0).shape[1]});
  }
};

}  // namespace

void add_loss_kernels(const Rows& rows) {
  rows.add<ClassLabels>("class_labels", backends::Types<std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  rows.add<CrossEntropy>("cross_entropy", backends::Floating{}, kDense);
  rows.add<CrossEntropyGrad>("cross_entropy_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
