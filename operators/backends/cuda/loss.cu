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

/// Some threads of a block for each row: its probabilities and its loss.
template <class T>
struct RowLoss {
  T* probabilities;
  compute_of<T>* losses;
  const T* logits;
  const std::int64_t* labels;
  std::int64_t rows, classes;
  Reporter reporter;
  int lanes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(probabilities);
    visit(losses);
    visit(logits);
    visit(labels);
    reporter.each_pointer(visit);
  }
};
template <class T>
__global__ void losses_of_rows(RowLoss<T> s) {
  using C = compute_of<T>;
  __shared__ C shared[kFoldThreads];
  __shared__ double sums[kFoldThreads];
  const std::int64_t at_once = kFoldThreads / s.lanes;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  for (std::int64_t first = blockIdx.x * at_once; first < s.rows; first += gridDim.x * at_once) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / s.lanes, n = row < s.rows ? s.classes : 0;
    const T* const x = s.logits + row * s.classes;
    T* const p = s.probabilities + row * s.classes;
    const auto larger = [](C a, C b) { return b > a ? b : a; };
    C largest = n == 0 ? C(0) : number(x[0]);
    for (std::int64_t i = lane; i < n; i += s.lanes) largest = larger(largest, number(x[i]));
    largest = fold_lanes(shared, largest, s.lanes, larger);
    double sum = 0;
    for (std::int64_t i = lane; i < n; i += s.lanes) sum += static_cast<double>(std::exp(number(x[i]) - largest));
    const C total = static_cast<C>(fold_lanes(sums, sum, s.lanes, [](double a, double b) { return a + b; }));
    for (std::int64_t i = lane; i < n; i += s.lanes) p[i] = T(std::exp(number(x[i]) - largest) / total);
    if (lane != 0 || n == 0) continue;
    const std::int64_t label = s.labels[row];
    const bool inside = label >= 0 && label < s.classes;
    s.losses[row] = inside ? std::log(total) - (number(x[label]) - largest) : C(NAN);
    if (!inside) report(s.reporter, Finding::label_outside, label, s.classes, row);
  }
}
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
    if (rows > 0) {
      const int lanes = lanes_for(classes);
      Grid grid = grid_for(rows * lanes);
      grid.barriers = lanes > 1;
      issue.launch(losses_of_rows<T>, grid,
                   RowLoss<T>{c.output(1).template as<T>(), losses, c.input(0).template as<T>(),
                              c.input(1).template as<std::int64_t>(), rows, classes, issue.reporter(), lanes});
    }
    const TensorView all{reinterpret_cast<std::byte*>(losses), dtype_of<C>, {rows}, {1}};
    fold(issue, SumOfLosses<T>{}, losses, Groups::of(all, 1),
         StoreLoss<T>{c.output(0).template as<T>(), c.attributes<LossAttributes>().scale});
  }
};

template <class T, class Number>
struct GradientAt {
  T* y;
  const T* probabilities;
  const std::int64_t* labels;
  const T* g;
  double scale;
  Number classes;
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
    const auto at = static_cast<Number>(i), row = at / classes;
    const C one = labels[row] == static_cast<std::int64_t>(at - row * classes) ? C(1) : C(0);
    y[i] = T((number(probabilities[i]) - one) * factor);
  }
};
template <class T>
struct CrossEntropyGrad {
  static void run(ArrayContext& c) {
    const std::int64_t count = c.output().count();
    const auto gradients = [&]<class Number>(Number classes) {
      for_index(Issue(c), count,
                GradientAt<T, Number>{c.output().template as<T>(), c.input(0).template as<T>(),
                                      c.input(1).template as<std::int64_t>(), c.input(2).template as<T>(),
                                      c.attributes<LossAttributes>().scale, classes});
    };
    // Divisions of 32 bits take a small part of the time of those of 64.
    if (count < std::int64_t{1} << 32) {
      gradients(static_cast<std::uint32_t>(c.input(0).shape[1]));
    } else {
      gradients(c.input(0).shape[1]);
    }
  }
};

/// Some threads of a block for each row of a part of the classes.
template <class T>
struct PartOfRows {
  double* numbers;
  const T* logits;
  const std::int64_t* labels;
  std::int64_t rows, step, first, classes, count;
  int lanes;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(numbers);
    visit(logits);
    visit(labels);
  }
};
template <class T>
__global__ void numbers_of_rows(PartOfRows<T> s) {
  using C = compute_of<T>;
  __shared__ C shared[kFoldThreads];
  __shared__ double sums[kFoldThreads];
  const std::int64_t at_once = kFoldThreads / s.lanes;
  const int lane = static_cast<int>(threadIdx.x) % s.lanes;
  const auto plus = [](double a, double b) { return a + b; };
  for (std::int64_t first = blockIdx.x * at_once; first < s.rows; first += gridDim.x * at_once) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / s.lanes, n = row < s.rows ? s.classes : 0;
    const T* const x = s.logits + row * s.step;
    const auto larger = [](C a, C b) { return b > a ? b : a; };
    C largest = -static_cast<C>(INFINITY);
    double sum = 0;
    for (std::int64_t i = lane; i < n; i += s.lanes) {
      largest = larger(largest, number(x[i]));
      if (s.count > 2) sum += static_cast<double>(number(x[i]));
    }
    largest = fold_lanes(shared, largest, s.lanes, larger);
    if (largest == -static_cast<C>(INFINITY)) largest = 0;  // no class, or none that is possible: the logarithm of 0
    double exponentials = 0;
    for (std::int64_t i = lane; i < n; i += s.lanes) {
      exponentials += static_cast<double>(std::exp(number(x[i]) - largest));
    }
    exponentials = fold_lanes(sums, exponentials, s.lanes, plus);
    sum = fold_lanes(sums, sum, s.lanes, plus);
    if (lane != 0 || row >= s.rows) continue;
    const std::int64_t label = s.labels[row] - s.first;
    double* const numbers = s.numbers + row * s.count;
    numbers[0] = static_cast<double>(largest) + std::log(exponentials);
    numbers[1] = label >= 0 && label < n ? static_cast<double>(number(x[label])) : 0;
    if (s.count > 2) numbers[2] = sum;
  }
}
template <class T>
struct ClassParts {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    const Issue issue(c);
    const std::int64_t rows = c.input(0).shape[0];
    for (std::int64_t r = 0; r < a.here && rows > 0; ++r) {
      const std::int64_t begin = a.begin(r) - a.begin(0), classes = a.begin(r + 1) - a.begin(r);
      const int lanes = lanes_for(classes);
      Grid grid = grid_for(rows * lanes);
      grid.barriers = lanes > 1;
      issue.launch(numbers_of_rows<T>, grid,
                   PartOfRows<T>{c.output().template as<double>() + r * rows * a.numbers,
                                 c.input(0).template as<T>() + begin, c.input(1).template as<std::int64_t>(), rows,
                                 c.input(0).shape[1], a.begin(r), classes, a.numbers, lanes});
    }
  }
};

template <class T>
struct PartGradientAt {
  T* y;
  const T* logits;
  const std::int64_t* labels;
  const double* numbers;
  const double* g;
  std::int64_t rows, columns, first;
  ClassPartsAttributes parts;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(logits);
    visit(labels);
    visit(numbers);
    visit(g);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns, column = i - row * columns, label = first + column;
    const std::int64_t part = ((label + 1) * parts.parts - 1) / parts.classes - parts.first;
    const std::int64_t at = (part * rows + row) * parts.numbers;
    using C = compute_of<T>;
    const double total = numbers[at] == -static_cast<double>(INFINITY) ? 0 : numbers[at];
    const C of_label = label == labels[row] ? static_cast<C>(g[at + 1]) : C(0);
    const C of_all = parts.numbers > 2 ? static_cast<C>(g[at + 2]) : C(0);
    const auto below = static_cast<C>(static_cast<double>(number(logits[i])) - total);
    y[i] = T(std::exp(below) * static_cast<C>(g[at]) + of_label + of_all);
  }
};
template <class T>
struct ClassPartsGrad {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<ClassPartsAttributes>();
    for_index(
        Issue(c), c.output().count(),
        PartGradientAt<T>{c.output().template as<T>(), c.input(0).template as<T>(),
                          c.input(1).template as<std::int64_t>(), c.input(2).template as<double>(),
                          c.input(3).template as<double>(), c.input(0).shape[0], c.input(0).shape[1], a.begin(0), a});
  }
};

}  // namespace

void add_loss_kernels(const Rows& rows) {
  rows.add<ClassLabels>("class_labels", backends::Types<std::uint8_t, std::int32_t, std::int64_t>{}, kDense);
  rows.add<CrossEntropy>("cross_entropy", backends::Floating{}, kDense);
  rows.add<CrossEntropyGrad>("cross_entropy_grad", backends::Floating{}, kDense);
  rows.add<ClassParts>("class_parts", backends::Floating{}, kDense);
  rows.add<ClassPartsGrad>("class_parts_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
