// The operators that add many numbers, for long_sums_test.cc: with n terms each, along first, middle, last and all
// axes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::testing {

using Arrays = std::vector<NDArray>;

struct LongSum {
  std::string name;
  std::function<Arrays(std::int64_t n)> inputs;  ///< f32, and indices; drawn anew, and the same, at each call
  std::function<NDArray(const Arrays&)> call;
  double bound;           ///< of the result's error, relative to the largest exact value
  double gradient_bound;  ///< the same of each gradient
  std::int64_t most = 1'000'000;
  bool gradient = true;
};

inline NDArray between(double low, double high, const Dims& shape, std::uint64_t seed) {
  RandomStream stream(seed);
  return uniform(shape, stream, low, high, DType::f32);
}

/// Numbers in several distributions: what is easy, what lies far from 0, and equal numbers, whose roundings all have
/// one sign in a running sum.
struct Numbers {
  std::string name;
  std::function<NDArray(const Dims& shape, std::uint64_t seed)> draw;
};
inline const Numbers kUniform{"uniform", [](const Dims& s, std::uint64_t seed) { return between(0, 1, s, seed); }};
inline const Numbers kAroundZero{"around 0", [](const Dims& s, std::uint64_t seed) { return between(-1, 1, s, seed); }};
inline const Numbers kFar{"1e3 +- 1", [](const Dims& s, std::uint64_t seed) { return between(999, 1001, s, seed); }};
inline const Numbers kEqual{"0.7", [](const Dims& s, std::uint64_t) { return full(s, 0.7, DType::f32); }};

class LongSums {
 public:
  std::vector<LongSum> cases;

  using Inputs = std::function<Arrays(std::int64_t n)>;
  using Call = std::function<NDArray(const Arrays&)>;
  LongSum& add(std::string name, Inputs inputs, Call call, double bound, double gradient_bound) {
    cases.push_back({std::move(name), std::move(inputs), std::move(call), bound, gradient_bound});
    return cases.back();
  }

  /// A function of an array and axes, along all of them.
  void reduction(const std::string& name, const Numbers& numbers,
                 const std::function<NDArray(const NDArray&, const Axes&)>& f, double bound, double gradient_bound,
                 std::int64_t most = 1'000'000) {
    struct Along {
      const char* name;
      std::function<Dims(std::int64_t)> shape;
      Axes axes;
    };
    const std::vector<Along> each{{"first",
                                   [](std::int64_t n) {
                                     return Dims{n, 3};
                                   },
                                   0},
                                  {"first of wide",
                                   [](std::int64_t n) {
                                     return Dims{n / 40, 40};
                                   },
                                   0},
                                  {"middle",
                                   [](std::int64_t n) {
                                     return Dims{2, n, 2};
                                   },
                                   1},
                                  {"last",
                                   [](std::int64_t n) {
                                     return Dims{2, n};
                                   },
                                   -1},
                                  {"first and last",
                                   [](std::int64_t n) {
                                     return Dims{n / 100, 2, 100};
                                   },
                                   {0, -1}},
                                  {"all", [](std::int64_t n) { return Dims{n}; }, all}};
    for (const Along& along : each) {
      LongSum& c = add(
          name + " " + along.name + ", " + numbers.name,
          [=](std::int64_t n) { return Arrays{numbers.draw(along.shape(n), 1)}; },
          [=](const Arrays& x) { return f(x[0], along.axes); }, bound, gradient_bound);
      c.most = most;
    }
  }

  /// A function of an array and one axis, whose result has the array's shape.
  void along_axis(const std::string& name, const Numbers& numbers, const std::function<NDArray(const NDArray&, int)>& f,
                  double bound, double gradient_bound, std::int64_t most = 1'000'000) {
    const std::vector<std::pair<const char*, int>> axes{{"first", 0}, {"middle", 1}, {"last", 2}};
    for (const auto& [which, axis] : axes) {
      LongSum& c = add(
          name + " " + which + ", " + numbers.name,
          [=, at = axis](std::int64_t n) {
            Dims shape{1, 1, 1};
            shape[at] = n;
            shape[(at + 1) % 3] = 2;
            return Arrays{numbers.draw(shape, 2)};
          },
          [=, at = axis](const Arrays& x) { return f(x[0], at); }, bound, gradient_bound);
      c.most = most;
    }
  }

  void of(const std::string& name, const std::vector<std::pair<Numbers, std::function<Dims(std::int64_t)>>>& operands,
          const Call& call, double bound, double gradient_bound, std::int64_t most = 1'000'000) {
    LongSum& c = add(
        name,
        [=](std::int64_t n) {
          Arrays inputs;
          std::uint64_t seed = 3;
          for (const auto& [numbers, shape] : operands) inputs.push_back(numbers.draw(shape(n), seed++));
          return inputs;
        },
        call, bound, gradient_bound);
    c.most = most;
  }
};

inline void add_long_reductions(LongSums& list) {
  constexpr std::int64_t deep = 10'000'000;
  constexpr double tight = 3e-7;
  using A = const NDArray&;
  using X = const Axes&;
  for (const Numbers& numbers : {kUniform, kFar, kEqual}) {
    list.reduction(
        "sum", numbers, [](A x, X axes) { return sum(x, axes); }, tight, tight, deep);
    list.reduction(
        "mean", numbers, [](A x, X axes) { return mean(x, axes); }, tight, tight, deep);
    list.reduction(
        "norm", numbers, [](A x, X axes) { return norm(x, axes); }, tight, tight);
    list.reduction(
        "logsumexp", numbers, [](A x, X axes) { return logsumexp(x, axes); }, tight, tight);
  }
  list.reduction(
      "norm 1", kAroundZero, [](A x, X axes) { return norm(x, axes, {.ord = 1}); }, tight, tight);
  list.reduction(
      "norm 3", kUniform, [](A x, X axes) { return norm(x, axes, {.ord = 3}); }, 1e-6, 2e-6);
  for (const Numbers& numbers : {kUniform, kFar}) {
    list.reduction(
        "variance", numbers, [](A x, X axes) { return variance(x, axes); }, tight, tight);
    list.reduction(
        "stddev", numbers, [](A x, X axes) { return stddev(x, axes); }, tight, tight);
  }
  for (const Numbers& numbers : {kUniform, kAroundZero, kFar, kEqual}) {
    list.along_axis(
        "softmax", numbers, [](A x, int axis) { return softmax(x, axis); }, 6e-7, 6e-7);
    list.along_axis(
        "log_softmax", numbers, [](A x, int axis) { return log_softmax(x, axis); }, 6e-7, 6e-7);
  }
  for (const Numbers& numbers : {kUniform, kFar, kEqual}) {
    list.along_axis(
        "cumsum", numbers, [](A x, int axis) { return cumsum(x, axis); }, tight, tight, deep);
  }
}

inline void add_long_losses(LongSums& list) {
  const auto vector = [](std::int64_t n) { return Dims{n}; };
  const auto rows = [](std::int64_t n) { return Dims{n, 3}; };
  using A = const Arrays&;
  constexpr double tight = 3e-7;
  list.of(
      "mse_loss", {{kUniform, vector}, {kUniform, vector}}, [](A x) { return mse_loss(x[0], x[1].detach()); }, tight,
      tight);
  list.of(
      "l1_loss", {{kUniform, vector}, {kUniform, vector}}, [](A x) { return l1_loss(x[0], x[1].detach()); }, tight,
      tight);
  list.of(
      "huber_loss", {{kUniform, rows}, {kUniform, rows}},
      [](A x) { return huber_loss(x[0], x[1].detach(), {.delta = 0.4}); }, tight, tight);
  list.of(
      "bce_with_logits", {{kAroundZero, rows}, {kUniform, rows}},
      [](A x) { return bce_with_logits(x[0], x[1].detach()); }, tight, 6e-7);
  list.of(
      "kl_div", {{kUniform, rows}, {kUniform, rows}}, [](A x) { return kl_div(x[0], x[1].detach()); }, tight, tight);
  const auto labelled = [](std::int64_t count, std::int64_t classes) {
    NDArray labels = remainder(arange(0, count), classes);
    return Arrays{between(-1, 1, {count, classes}, 5), labels};
  };
  const auto classes_of = [=](std::int64_t n) { return labelled(2, n); };
  const auto rows_of = [=](std::int64_t n) { return labelled(n, 3); };
  const auto plain = [](A x) { return cross_entropy(x[0], x[1]); };
  const auto smooth = [](A x) { return cross_entropy(x[0], x[1], CrossEntropyOptions{.label_smoothing = 0.1}); };
  list.add("cross_entropy of many classes", classes_of, plain, 6e-7, 6e-7);
  list.add("cross_entropy of many rows", rows_of, plain, 6e-7, 6e-7);
  list.add("smoothed cross_entropy of many classes", classes_of, smooth, 6e-7, 6e-7);
  list.add(
      "nll_loss of many rows", rows_of, [](A x) { return nll_loss(x[0], x[1]); }, 6e-7, 6e-7);
}

inline void add_long_products(LongSums& list) {
  using A = const Arrays&;
  const auto size = [](std::int64_t rows, std::int64_t columns) {
    return [=](std::int64_t n) { return Dims{rows < 0 ? n : rows, columns < 0 ? n : columns}; };
  };
  const auto vector = [](std::int64_t n) { return Dims{n}; };
  const auto plain = [](A x) { return matmul(x[0], x[1]); };
  for (const Numbers& numbers : {kUniform, kEqual}) {
    list.of(
        "dot, " + numbers.name, {{numbers, vector}, {numbers, vector}}, [](A x) { return dot(x[0], x[1]); }, 1e-6, 1e-6,
        10'000'000);
    list.of(
        "einsum i,i->, " + numbers.name, {{numbers, vector}, {numbers, vector}},
        [](A x) {
          return einsum("i,i->", {x[0], x[1]});
        },
        1e-6, 1e-6);
    for (const std::int64_t m : {1, 2, 8, 65}) {
      for (const std::int64_t columns : {1, 3, 50}) {
        const double bound = m == 1 || columns == 1 ? 1e-6 : 1e-5;
        const std::string name =
            "matmul " + std::to_string(m) + " x n x " + std::to_string(columns) + ", " + numbers.name;
        const std::int64_t most = m * columns > 100 ? 100'000 : 1'000'000;
        list.of(name, {{numbers, size(m, -1)}, {numbers, size(-1, columns)}}, plain, bound, bound, most);
        list.of(
            name + ", turned", {{numbers, size(-1, m)}, {numbers, size(columns, -1)}},
            [](A x) { return matmul(x[0], x[1], {.transpose_a = true, .transpose_b = true}); }, bound, bound, most);
      }
    }
    list.of("batch_matmul, " + numbers.name,
            {{numbers,
              [](std::int64_t n) {
                return Dims{2, 2, n};
              }},
             {numbers,
              [](std::int64_t n) {
                return Dims{2, n, 3};
              }}},
            plain, 1e-5, 1e-5);
    // The gradients of the weight and of the bias are the long sums.
    list.of(
        "linear, " + numbers.name,
        {{numbers, size(-1, 5)}, {numbers, size(4, 5)}, {numbers, [](std::int64_t) { return Dims{4}; }}},
        [](A x) { return linear(x[0], x[1], x[2]); }, 1e-6, 1e-5);
    list.of(
        "a bias of many rows, " + numbers.name,
        {{numbers, size(-1, 5)}, {numbers, [](std::int64_t) { return Dims{5}; }}}, [](A x) { return x[0] + x[1]; },
        1e-6, 1e-6);
  }
}

}  // namespace sluice::testing
