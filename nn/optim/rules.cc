#include "sluice/nn/optim/rules.h"

#include <algorithm>
#include <cmath>

#include "sluice/operators/attributes.h"
#include "sluice/operators/operators.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice::nn {
namespace {

NDArray decayed(const Update& u, double weight_decay) {
  return weight_decay == 0 ? u.gradient : u.gradient + weight_decay * u.value;
}

/// Adam's step without its weight decay.
NDArray adam_direction(Update& u, const NDArray& g, double beta1, double beta2, double eps) {
  Target &m = u.state("exp_avg"), &v = u.state("exp_avg_sq");
  m.assign(lerp(m, g, 1 - beta1));
  v.assign(lerp(v, square(g), 1 - beta2));
  const NDArray count = u.count();
  const DType dtype = g.dtype();
  const NDArray first = 1 - pow(full_like(count, beta1), count), second = 1 - pow(full_like(count, beta2), count);
  return m / first.to(dtype) / (sqrt(v / second.to(dtype)) + eps);
}

FusedStep fused_adam(double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled) {
  return {"adam_step",
          AdamStep{.lr = lr,
                   .beta1 = beta1,
                   .beta2 = beta2,
                   .eps = eps,
                   .weight_decay = weight_decay,
                   .decoupled = decoupled,
                   .step = 0},  // the kernel counts
          {{"exp_avg"}, {"exp_avg_sq"}, {"step", true}}};
}

}  // namespace

void Sgd::operator()(Update& u) const {
  NDArray d = decayed(u, weight_decay);
  if (momentum != 0) {
    Target& v = u.state("momentum");
    v.assign(momentum * v + d);
    d = nesterov ? d + momentum * v : v.value();
  }
  u.value.assign(u.value - lr(u.step) * d);
}

std::optional<FusedStep> Sgd::fused(std::int64_t step) const {
  if (nesterov && momentum != 0) return std::nullopt;
  const SgdAttributes attributes{lr(step), momentum, weight_decay};
  if (momentum == 0) return FusedStep{"sgd_step", attributes, {}};
  return FusedStep{"sgd_momentum_step", attributes, {{"momentum"}}};
}

void Adam::operator()(Update& u) const {
  u.value.assign(u.value - lr(u.step) * adam_direction(u, decayed(u, weight_decay), beta1, beta2, eps));
}
std::optional<FusedStep> Adam::fused(std::int64_t step) const {
  return fused_adam(lr(step), beta1, beta2, eps, weight_decay, false);
}

void AdamW::operator()(Update& u) const {
  const double rate = lr(u.step);
  u.value.assign(u.value * (1 - rate * weight_decay) - rate * adam_direction(u, u.gradient, beta1, beta2, eps));
}
std::optional<FusedStep> AdamW::fused(std::int64_t step) const {
  return fused_adam(lr(step), beta1, beta2, eps, weight_decay, true);
}

void RmsProp::operator()(Update& u) const {
  const NDArray g = decayed(u, weight_decay);
  Target& s = u.state("square_avg");
  s.assign(lerp(s, square(g), 1 - alpha));
  NDArray d = g / (sqrt(s) + eps);
  if (momentum != 0) {
    Target& v = u.state("momentum");
    v.assign(momentum * v + d);
    d = v;
  }
  u.value.assign(u.value - lr(u.step) * d);
}

void Adagrad::operator()(Update& u) const {
  const NDArray g = decayed(u, weight_decay);
  Target& s = u.state("sum");
  s.assign(s + square(g));
  u.value.assign(u.value - lr(u.step) * g / (sqrt(s) + eps));
}

void Lion::operator()(Update& u) const {
  Target& m = u.state("exp_avg");
  u.value.assign(u.value - lr(u.step) * (sign(lerp(m, u.gradient, 1 - beta1)) + weight_decay * u.value));
  m.assign(lerp(m, u.gradient, 1 - beta2));
}

void Muon::operator()(Update& u) const {
  const Dims& shape = u.value.array().shape();
  if (shape.rank() != 2) {
    throw ArrayError("nn::Muon", current_scope().where,
                     "a parameter " + to_string(shape) + ": it is for matrices; give others to another rule");
  }
  Target& m = u.state("momentum");
  m.assign(lerp(m, u.gradient, 1 - momentum));
  const NDArray direction = nesterov ? lerp(u.gradient, m, momentum) : m.value();
  // The quintic iteration of the published code: its coefficients are chosen for speed, and bring the singular values
  // near 1, not to 1.
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = shape[0] > shape[1];
  NDArray x = tall ? direction.transpose() : direction;
  x = x / maximum(sqrt(sum(square(x))), eps);
  for (int i = 0; i < iterations; ++i) {
    const NDArray gram = matmul(x, x.transpose());
    x = a * x + matmul(b * gram + c * matmul(gram, gram), x);
  }
  if (tall) x = x.transpose();
  const double ratio = static_cast<double>(shape[0]) / static_cast<double>(std::max<std::int64_t>(1, shape[1]));
  const double rate = lr(u.step);
  u.value.assign(u.value * (1 - rate * weight_decay) - rate * std::sqrt(std::max(1.0, ratio)) * x);
}

}  // namespace sluice::nn
