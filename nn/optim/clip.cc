#include "sluice/nn/optim/clip.h"

#include <map>

#include "sluice/autograd/gradients.h"
#include "sluice/engine/number_text.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/operators.h"

namespace sluice::nn::detail {
namespace {

using Where = std::source_location;

/// Elements whose squares are added together first, in f32 for all dtypes but f64.
constexpr std::int64_t kBlock = 4096;
/// Vectors up to this size have a sum for each element, longer ones one for each block.
constexpr std::int64_t kLongVector = 65536;

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

/// Sums of squares, f64, by index of the first axis: so an array that is cut there has the sums of the whole one, and
/// norms do not depend on it. `whole` is the whole array's shape.
NDArray squares_by_row(const NDArray& part, const Dims& whole) {
  const DeviceScope scope(part.device());
  const DType dtype = part.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const bool is_long = whole.rank() == 1 && whole[0] > kLongVector;
  const std::int64_t rows = is_long || whole.rank() == 0 ? 1 : part.shape()[0];
  const std::int64_t length = rows == 0 ? 0 : part.count() / rows, blocks = length / kBlock;
  const NDArray flat = square(part.to(dtype).reshape({rows, length}));
  const auto sums = [](const NDArray& x) { return sum(x, {-1}).to(DType::f64); };
  if (blocks == 0) return sums(flat);
  const NDArray total = sum(sums(flat.narrow(1, 0, blocks * kBlock).reshape({rows, blocks, kBlock})), {1});
  return blocks * kBlock == length ? total : total + sums(flat.narrow(1, blocks * kBlock, length));
}

/// Of all elements, a scalar of f64 on `home`. Parts at the same rows are added in the order of their places.
NDArray squares_at(const NDArray& gradient, Device home) {
  const Dims& shape = gradient.shape();
  const Layout layout = layout_of(gradient);
  if (!layout) return sum(squares_by_row(gradient, shape)).to(home);
  std::map<std::int64_t, NDArray> by_row;  // by the first one of a part
  const std::vector<NDArray> shards = shards_of(gradient);
  for (int rank = 0; rank < layout.mesh().places(); ++rank) {
    bool replica = false;
    for (int m = 0; m < layout.mesh().axes(); ++m) {
      replica = replica || (layout.on(m).kind == Placement::Kind::replicate && layout.mesh().coordinate(rank, m) != 0);
    }
    if (replica || layout.extent(rank).count() == 0) continue;
    const NDArray squares = squares_by_row(shards[static_cast<std::size_t>(rank)], shape).to(home);
    NDArray& there = by_row[shape.rank() == 0 ? 0 : layout.begin(rank)[0]];
    there = there.defined() ? there + squares : squares;
  }
  std::vector<NDArray> rows;
  for (const auto& [first, squares] : by_row) rows.push_back(squares);
  if (rows.empty()) return zeros({}, DType::f64);
  return sum(rows.size() == 1 ? rows[0] : concat(rows, 0));
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
    throw ArrayError("nn::clip_gradients", where,
                     "max_norm is " + general_text(max_norm, 6) + ", which is not above 0");
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
    throw ArrayError("nn::clip_values", where, "max is " + fixed_text(max, 6) + ", which is not above 0");
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
