#include "sluice/nn/optim/clip.h"

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/owner.h"
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

/// The parts that a gradient is made of, each once: its shards without replicas, in the order of their places.
std::vector<NDArray> parts_of(const NDArray& gradient) {
  const Layout layout = layout_of(gradient);
  if (!layout) return {gradient};
  std::vector<NDArray> parts;
  const std::vector<NDArray> shards = shards_of(gradient);
  for (int rank = 0; rank < layout.mesh().places(); ++rank) {
    bool first = true;
    for (int m = 0; m < layout.mesh().axes(); ++m) {
      first = first && (layout.on(m).kind != Placement::Kind::replicate || layout.mesh().coordinate(rank, m) == 0);
    }
    if (first) parts.push_back(shards[static_cast<std::size_t>(rank)]);
  }
  return parts;
}

/// Of all elements, a scalar of f64 on `home`.
NDArray squares_at(const NDArray& gradient, Device home) {
  NDArray total;
  for (const NDArray& part : parts_of(gradient)) {
    const NDArray squares = sum_of_squares(part).to(home);
    total = total.defined() ? total + squares : squares;
  }
  return total;
}

/// gradient *= factor, a scalar of f64.
void scale(const NDArray& gradient, const NDArray& factor) {
  const auto scaled = [&](const NDArray& piece) {
    const DeviceScope scope(piece.device());
    const DType dtype = piece.dtype();
    const DType working = dtype == DType::f64 ? DType::f64 : DType::f32;  // the factor may be 0 in f16
    const NDArray here = factor.to(piece.device()).to(working);
    piece.assign((piece.to(working) * here).to(dtype));
  };
  if (!layout_of(gradient)) return scaled(gradient);
  for (const NDArray& piece : owner_of(gradient)->parts()) scaled(piece);
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
      const NDArray squares = squares_at(g.gradient, home);
      total = total.defined() ? total + squares : squares;
    }
    norm = sqrt(total);
    factor = minimum(max_norm / (norm + 1e-6), 1.0);
  }
  for (const Gradient& g : list) scale(g.gradient, factor);
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
    norms.emplace_back(g.path, sqrt(squares_at(g.gradient, g.gradient.device())));
  }
  return norms;
}

}  // namespace sluice::nn::detail
