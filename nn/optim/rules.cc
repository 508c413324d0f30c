#include "sluice/nn/optim/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

/// x at all places of its mesh where it is cut, but not a term of a sum any more: so norms may be taken of it.
NDArray added_up(const NDArray& x) {
  const Layout layout = layout_of(x);
  if (!layout || !layout.partial()) return x;
  Placements sums;
  for (int m = 0; m < layout.mesh().axes(); ++m) {
    if (layout.on(m).kind == Placement::Kind::partial) sums.emplace_back(layout.mesh().name(m), replicate);
  }
  return reshard(x, sums);
}

NDArray norm_of(const NDArray& x) { return sqrt(added_up(sum(square(x)))); }

NDArray rms(const NDArray& x) {
  return norm_of(x) / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, x.count())));
}

/// The kept average of means over one axis, which is whole on a mesh; what is given back lies as `squares` does.
NDArray averaged_over(Update& u, const char* name, const NDArray& squares, int axis, const NDArray& fresh) {
  const Dims& shape = squares.shape();
  Dims rest;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != shape.rank() + axis) rest.push_back(shape[i]);
  }
  Target& kept = u.state(name, rest);
  const double n = static_cast<double>(std::max<std::int64_t>(1, squares.size(axis)));
  const NDArray next = lerp(kept, added_up(sum(squares, axis)) / n, fresh);
  kept.assign(layout_of(next) ? whole(next) : next);
  return next;
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

void Lamb::operator()(Update& u) const {
  const NDArray r = adam_direction(u, u.gradient, beta1, beta2, eps) + weight_decay * u.value;
  const double rate = lr(u.step);
  if (!adapt) return u.value.assign(u.value - rate * r);
  const NDArray of_value = norm_of(u.value), of_step = norm_of(r), usable = minimum(of_value, of_step) > 0;
  u.value.assign(u.value - rate * (where(usable, of_value, 1) / where(usable, of_step, 1)) * r);
}

void Adafactor::operator()(Update& u) const {
  const NDArray &w = u.value, &g = u.gradient, squares = square(g);
  const NDArray count = u.count(), fresh = pow(count, beta2_decay).to(g.dtype());
  const double machine =
      g.dtype() == DType::f64 ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()};
  const double least = eps1.value_or(machine);
  NDArray s;
  if (g.rank() < 2) {
    Target& variance = u.state("variance");
    variance.assign(lerp(variance, squares, fresh));
    s = variance;
  } else {
    const NDArray rows = averaged_over(u, "row_var", squares, -1, fresh);
    const NDArray columns = averaged_over(u, "col_var", squares, -2, fresh);
    const NDArray mean_row = added_up(mean(rows, -1, {.keep = true}));
    s = (rows / maximum(mean_row, least)).unsqueeze(-1) * columns.unsqueeze(-2);
  }
  NDArray d = g / sqrt(maximum(s, least * least));
  const double rate = lr(u.step);
  NDArray scale = 1 / maximum(rms(d) / clip, 1);
  if (scale_parameter) scale = scale * maximum(rms(w), eps2);
  scale = relative_step ? scale * minimum(1 / sqrt(count), rate).to(g.dtype()) : scale * rate;
  d = scale * d;
  if (beta1 != 0) {
    Target& m = u.state("exp_avg");
    m.assign(lerp(m, d, 1 - beta1));
    d = m;
  }
  u.value.assign(w * (1 - rate * weight_decay) - d);
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
