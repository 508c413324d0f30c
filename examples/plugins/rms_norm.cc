#include "rms_norm.h"

#include <algorithm>
#include <cmath>

#include "sluice/operators/define.h"
#include "sluice/operators/operators.h"

namespace mine {
namespace {

using namespace sluice;

/// Outputs: the result, and 1 / sqrt(mean(square(x)) + eps) for each row of x, which the gradient uses.
void infer(Signature& s) {
  s.same_dtypes();
  s.floating();
  if (s.shape(0).rank() < 1) s.fail("x must have an axis");
  const std::int64_t n = s.shape(0).back();
  if (!(s.shape(1) == Dims{n})) s.fail("weight must have one element for each of the last axis");
  Dims rows = s.shape(0);
  rows[rows.rank() - 1] = 1;
  s.output(s.shape(0), s.dtype());
  s.output(rows, s.dtype());
}

/// Made of operators, so that it has a gradient itself. Output 1 may have been used too: where a gradient is
/// differentiated again.
void gradient(GradientContext& c) {
  const NDArray &x = c.input(0), &scale = c.output(1);
  const NDArray& g = c.gradient(0);
  if (c.wanted(0)) {
    const NDArray weighted = g * c.input(1);
    NDArray of_scale = sum(weighted * x, -1, {.keep = true});
    if (c.has_gradient(1)) of_scale = of_scale + c.gradient(1);
    const double n = static_cast<double>(x.size(-1));
    c.set(0, scale * weighted - x * (scale * scale * scale) * of_scale / n);
  }
  if (c.wanted(1)) c.set(1, sum_to(g * x * scale, c.input_spec(1).shape));
}

/// The kernel, for elements of type T. It computes in double.
template <class T>
struct RmsNorm {
  static void run(ArrayContext& c) {
    const auto number = [](T element) { return static_cast<double>(static_cast<compute_of<T>>(element)); };
    const T *x = c.input(0).as<T>(), *weight = c.input(1).as<T>();
    T *y = c.output(0).as<T>(), *scales = c.output(1).as<T>();
    const double eps = c.attributes<RmsNormAttributes>().eps;
    const std::int64_t n = c.input(0).shape.back(), rows = c.output(1).count();
    parallel_for(rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, n)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     double squares = 0;
                     for (std::int64_t i = row * n; i < row * n + n; ++i) squares += number(x[i]) * number(x[i]);
                     const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
                     scales[row] = static_cast<T>(static_cast<compute_of<T>>(scale));
                     for (std::int64_t i = 0; i < n; ++i) {
                       const double value = number(x[row * n + i]) * scale * number(weight[i]);
                       y[row * n + i] = static_cast<T>(static_cast<compute_of<T>>(value));
                     }
                   }
                 });
  }
};

const Operator& row() {
  static const Operator& made = [&]() -> const Operator& {
    const Operator& row = add_operator("rms_norm", [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.infer = infer;
      op.gradient = gradient;
      op.needs = {needs::input(0) | needs::input(1) | needs::output(1), needs::input(0) | needs::output(1)};
    });
    // Its own backend, of rank 0: simulated devices use such kernels too.
    backends::add<RmsNorm>(row, {.name = "mine"}, backends::Floating{}, backends::kDense);
    return row;
  }();
  return made;
}

[[maybe_unused]] const Operator& loaded = row();

}  // namespace

NDArray rms_norm(const Operand& x, const NDArray& weight, double eps) {
  return apply(row(), {&x.array, &weight}, RmsNormAttributes{eps}, {.where = x.where});
}

}  // namespace mine
