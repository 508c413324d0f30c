#include "sluice/nn/optim/clip.h"

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/called.h"
#include "sluice/operators/operators.h"

namespace sluice::nn::detail {
namespace {

using Where = std::source_location;

/// Elements whose squares are added together first. A part of a parameter that begins at a multiple of it has the same
/// sums, so that norms will not depend on how parameters are divided.
constexpr std::int64_t kBlock = 4096;

struct Gradient {
  std::string path;
  NDArray parameter, gradient;
};

std::vector<Gradient> gradients_of(const Contents& net) {
  std::vector<Gradient> list;
  for (const auto& [path, state] : net.slots) {
    if (state->kind != Kind::parameter || state->frozen || !state->value.defined()) continue;
    const NDArray gradient = state->value.grad();
    if (gradient.defined()) list.push_back({path, state->value, gradient});
  }
  return list;
}

/// A scalar of f64 on the gradient's device.
NDArray sum_of_squares(const NDArray& gradient) {
  const DeviceScope scope(gradient.device());
  const DType dtype = gradient.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const NDArray flat = gradient.to(dtype).reshape({gradient.count()});
  const std::int64_t whole = flat.count() / kBlock * kBlock;
  NDArray total;
  if (whole > 0) {
    const NDArray blocks = flat.narrow(0, 0, whole).reshape({whole / kBlock, kBlock});
    total = sum(sum(square(blocks), {1}).to(DType::f64));
  }
  if (whole < flat.count() || whole == 0) {
    const NDArray rest = sum(square(flat.narrow(0, whole, flat.count()))).to(DType::f64);
    total = total.defined() ? total + rest : rest;
  }
  return total;
}

/// gradient *= factor, a scalar of f64 there.
void scale(const NDArray& gradient, const NDArray& factor) {
  const DeviceScope scope(gradient.device());
  const DType dtype = gradient.dtype();
  const DType working = dtype == DType::f64 ? DType::f64 : DType::f32;  // the factor may be 0 in f16
  gradient.assign((gradient.to(working) * factor.to(working)).to(dtype));
}

}  // namespace

NDArray clip_gradients(const Contents& net, double max_norm, Where where) {
  const sluice::detail::Called called("nn::clip_gradients", where);
  if (!(max_norm > 0)) {
    throw ArrayError("nn::clip_gradients", where, "max_norm is " + std::to_string(max_norm) + ", which is not above 0");
  }
  const NoGrad off;
  const std::vector<Gradient> list = gradients_of(net);
  if (list.empty()) return zeros({}, DType::f64, where);
  const Device home = list.front().gradient.device();
  NDArray norm, factor;
  {
    const DeviceScope scope(home);
    NDArray total;
    for (const Gradient& g : list) {
      const NDArray squares = sum_of_squares(g.gradient).to(home);
      total = total.defined() ? total + squares : squares;
    }
    norm = sqrt(total);
    factor = minimum(max_norm / (norm + 1e-6), 1.0);
  }
  for (const Gradient& g : list) scale(g.gradient, factor.to(g.gradient.device()));
  return norm;
}

void clip_values(const Contents& net, double max, Where where) {
  const sluice::detail::Called called("nn::clip_values", where);
  if (!(max > 0)) {
    throw ArrayError("nn::clip_values", where, "max is " + std::to_string(max) + ", which is not above 0");
  }
  const NoGrad off;
  for (const Gradient& g : gradients_of(net)) {
    const DeviceScope scope(g.gradient.device());
    g.gradient.assign(minimum(maximum(g.gradient, -max), max));
  }
}

std::vector<std::pair<std::string, NDArray>> gradient_norms(const Contents& net, Where where) {
  const sluice::detail::Called called("nn::gradient_norms", where);
  const NoGrad off;
  std::vector<std::pair<std::string, NDArray>> norms;
  for (const Gradient& g : gradients_of(net)) {
    const DeviceScope scope(g.gradient.device());
    norms.emplace_back(g.path, sqrt(sum_of_squares(g.gradient)));
  }
  return norms;
}

}  // namespace sluice::nn::detail
