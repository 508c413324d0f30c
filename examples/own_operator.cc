// Adds an operator with a gradient, and trains a model with it: a network of radial basis functions that tells two
// spirals apart. The operator gives the squared distances of points to centres.
//
// Outside of Sluice's tree it needs this file, an installed Sluice, and a CMakeLists.txt:
//   cmake_minimum_required(VERSION 3.24)
//   project(own_operator LANGUAGES CXX)
//   find_package(sluice 0.1 REQUIRED)
//   add_executable(own_operator own_operator.cc)
//   target_link_libraries(own_operator PRIVATE sluice::sluice)
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <string>
#include <vector>

#include "sluice/operators/define.h"
#include "sluice/sluice.h"

using namespace sluice;

// ---- the operator: x (n, d), centres (k, d) -> (n, k)

/// Checks the inputs, and gives the output's shape and dtype.
void infer(Signature& s) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 2);
  s.rank(1, 2);
  if (s.shape(0)[1] != s.shape(1)[1]) s.fail("points and centres differ in their number of coordinates");
  s.output({s.shape(0)[0], s.shape(1)[0]}, s.dtype());
}

/// Of the sum over k of (x_k - c_k)^2, made of operators: so it has a gradient itself.
void gradient(GradientContext& context) {
  const NDArray &g = context.gradient(), &x = context.input(0), &centres = context.input(1);
  if (context.wanted(0)) context.set(0, 2 * (sum(g, 1, {.keep = true}) * x - matmul(g, centres)));
  if (context.wanted(1)) context.set(1, 2 * (sum(g, 0).unsqueeze(1) * centres - matmul(g, x, {.transpose_a = true})));
}

/// The kernel, for elements of type T. It wants dense arrays, and runs on a worker thread.
template <class T>
struct SquaredDistances {
  static void run(ArrayContext& context) {
    const std::int64_t d = context.input(0).shape[1], k = context.input(1).shape[0];
    const T *x = context.input(0).as<T>(), *centres = context.input(1).as<T>();
    T* y = context.output().as<T>();
    parallel_for(context.output().count(), 4096, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        compute_of<T> total = 0;  // f16 and bf16 compute in float
        for (std::int64_t j = 0; j < d; ++j) {
          const auto difference =
              static_cast<compute_of<T>>(x[i / k * d + j]) - static_cast<compute_of<T>>(centres[i % k * d + j]);
          total += difference * difference;
        }
        y[i] = static_cast<T>(total);
      }
    });
  }
};

NDArray squared_distances(const Operand& x, const NDArray& centres) {
  static const Operator& row = add_operator("squared_distances", [](Operator& op) {
    op.min_inputs = op.max_inputs = 2;
    op.infer = infer;
    op.gradient = gradient;
    op.needs = {needs::input(0) | needs::input(1), needs::input(0) | needs::input(1)};
    backends::add<SquaredDistances>(op, {.name = "mine"}, backends::Floating{}, backends::kDense);
  });
  return apply(row, {&x.array, &centres}, {}, {.where = x.where});
}

// ---- a layer that uses it

struct RadialBasis {
  nn::Size in, count;
  nn::Parameter centres{{count, in}, nn::uniform(-1, 1)}, sharpness{{count}, nn::constant(10)};
  NDArray operator()(const NDArray& x) const {
    const nn::Here here = nn::layer_of(centres);  // errors and traces name the layer
    return exp(-squared_distances(x, centres) * sharpness);
  }
};

// ---- the program

int main() {
  constexpr int kPoints = 400, kSteps = 300;
  std::vector<float> points;
  std::vector<std::int64_t> spirals;
  for (int i = 0; i < kPoints; ++i) {  // two arms, half a turn apart
    const double t = static_cast<double>(i / 2) / (kPoints / 2),
                 angle = 3.5 * t * std::numbers::pi + (i % 2) * std::numbers::pi;
    points.push_back(static_cast<float>((0.1 + 0.9 * t) * std::cos(angle)));
    points.push_back(static_cast<float>((0.1 + 0.9 * t) * std::sin(angle)));
    spirals.push_back(i % 2);
  }
  RandomStream stream(1);
  const NDArray x = from(points, {kPoints, 2}) + normal({kPoints, 2}, stream, 0, 0.02);
  const NDArray y = from(spirals, {kPoints});

  const nn::Sequential net{RadialBasis{2, 40}, nn::Linear{40, 2}};
  nn::initialise(net, 1);
  nn::Optimizer opt(net, nn::Adam{.lr = 0.03});
  for (int step = 0; step <= kSteps; ++step) {
    const NDArray scores = net(x), loss = cross_entropy(scores, y);
    loss.backward();
    opt.step();
    if (step % 50 == 0) {
      nn::Accuracy right;
      right.add(scores, y);
      std::printf("step %3d  loss %.4f  right %5.1f %%\n", step, loss.item<float>(), 100 * right.value());
      std::fflush(stdout);
    }
  }
  try {
    net(ones({1, 3}));  // what a mistake looks like
  } catch (const ArrayError& e) {
    std::printf("%s\n", e.what());
  }
}
