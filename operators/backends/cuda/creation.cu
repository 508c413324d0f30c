// Fills and random numbers.
#include <cstring>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/convert.h"
#include "sluice/operators/backends/cuda/kernel.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/backends/cuda/walk.h"
#include "sluice/operators/counting.h"
#include "sluice/operators/uniform_range.h"
#include "sluice/resources/philox.h"

namespace sluice::cuda {
namespace {

template <class T>
struct Filled {
  T* y;
  Walk<1> walk;
  bool whole;
  std::int64_t integer, integer_step;
  double value, step;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t i) const {
    std::int64_t at[1];
    walk.find(i, at);
    y[at[0]] =
        whole ? converted<T>(counted(integer, i, integer_step)) : converted<T>(value + static_cast<double>(i) * step);
  }
};
void fill(ArrayContext& c) {
  const auto& a = c.attributes<FillAttributes>();
  const TensorView* const views[] = {&c.output()};
  with_type(c.output().dtype, [&]<class T>() {
    const bool whole = a.value.is_integer && a.step.is_integer;
    for_index(Issue(c), c.output().count(),
              Filled<T>{c.output().as<T>(), Walk<1>(views), whole, whole ? a.value.integer : 0,
                        whole ? a.step.integer : 0, a.value.template as<double>(), a.step.template as<double>()});
  });
}

template <bool is_normal, class T>
struct RandomAt {
  T* y;
  ElementKey key;
  DrawWindow window;
  compute_of<T> mean, deviation;
  UniformRange<compute_of<T>> range;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::uint64_t e = window(i);
    compute_of<T> u;
    if constexpr (std::is_same_v<compute_of<T>, float>) {
      u = is_normal ? normal_f32(key, e) : uniform01_f32(key, e);
    } else {
      u = is_normal ? normal_f64(key, e) : uniform01_f64(key, e);
    }
    y[i] = T(is_normal ? mean + deviation * u : range(u));
  }
};
template <bool is_normal>
struct Random {
  template <class T>
  struct Make {
    static void run(ArrayContext& c) {
      using C = compute_of<T>;
      const auto& a = c.attributes<RandomAttributes>();
      for_index(Issue(c), c.output().count(),
                RandomAt<is_normal, T>{c.output().as<T>(), ElementKey(RandomKey{a.seed, a.stream, a.draw}),
                                       DrawWindow(a), static_cast<C>(a.a), static_cast<C>(a.b), UniformRange<C>(a)});
    }
  };
};

template <class T>
struct DroppedAt {
  T* y;
  const T* x;
  ElementKey key;
  DrawWindow window;
  DropoutChoice<compute_of<T>> choice;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
  }
  __device__ void operator()(std::int64_t i) const {
    y[i] = T(choice(key.word32(window(i)), static_cast<compute_of<T>>(x[i])));
  }
};
template <class T>
struct Dropout {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<DropoutAttributes>();
    for_index(Issue(c), c.output().count(),
              DroppedAt<T>{c.output().as<T>(), c.input(0).as<T>(), ElementKey(RandomKey{a.seed, a.stream, a.draw}),
                           DrawWindow(a), DropoutChoice<compute_of<T>>(a.p)});
  }
};

template <class T>
struct RandomIntegerAt {
  T* y;
  ElementKey key;
  std::int64_t low, high;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t i) const {
    y[i] = static_cast<T>(uniform_int(key, static_cast<std::uint64_t>(i), low, high));
  }
};
template <class T>
struct RandomIntegers {
  static void run(ArrayContext& c) {
    const auto& a = c.attributes<RandomIntegerAttributes>();
    for_index(Issue(c), c.output().count(),
              RandomIntegerAt<T>{c.output().as<T>(), ElementKey(RandomKey{a.seed, a.stream, a.draw}), a.low, a.high});
  }
};

struct BernoulliAt {
  bool* y;
  const double *draws, *probabilities;
  Reporter reporter;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(draws);
    visit(probabilities);
    reporter.each_pointer(visit);
  }
  __device__ void operator()(std::int64_t i) const {
    const double p = probabilities[i];
    y[i] = draws[i] < p;
    if (p >= 0 && p <= 1) return;
    std::int64_t bits;
    std::memcpy(&bits, &p, sizeof bits);
    report(reporter, Finding::probability_outside, bits, 0, i);
  }
};
void bernoulli(ArrayContext& c) {
  const Issue issue(c);
  for_index(issue, c.output().count(),
            BernoulliAt{c.output().as<bool>(), c.input(0).as<double>(), c.input(1).as<double>(), issue.reporter()});
}

}  // namespace

void add_creation_kernels(const Rows& rows) {
  for (int t = 0; t < kDTypeCount; ++t) rows.add("fill", {static_cast<DType>(t)}, fill);
  rows.add<Random<false>::Make>("uniform", backends::Floating{}, {.dense_outputs = true});
  rows.add<Random<true>::Make>("normal", backends::Floating{}, {.dense_outputs = true});
  rows.add<Dropout>("dropout", backends::Floating{}, {.dense_inputs = true, .dense_outputs = true});
  rows.add<RandomIntegers>("randint", backends::Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t>{},
                           {.dense_outputs = true});
  rows.add("bernoulli", {DType::f64}, bernoulli, {.dense_inputs = true, .dense_outputs = true});
}

}  // namespace sluice::cuda
