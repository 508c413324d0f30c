#include "sluice/nn/layers/recurrent.h"

#include <optional>

#include "sluice/operators/creation.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace {

NDArray state_of(const NDArray& weight, std::int64_t n, std::int64_t size, const std::source_location& where) {
  const DeviceScope scope(weight.device());
  std::optional<MeshScope> on_mesh;
  if (const Layout layout = layout_of(weight)) on_mesh.emplace(layout.mesh());
  return zeros({n, size}, weight.dtype(), where);
}

}  // namespace

LstmState Lstm::begin(std::int64_t n) const {
  return {state_of(weight_hh, n, size, where), state_of(weight_hh, n, size, where)};
}

LstmResult Lstm::operator()(const NDArray& x, const LstmState& state) const {
  const Here here = layer_of(weight_ih);
  return lstm(Operand(x, where), state, {weight_ih, weight_hh, bias_ih, bias_hh});
}

NDArray Gru::begin(std::int64_t n) const { return state_of(weight_hh, n, size, where); }

GruResult Gru::operator()(const NDArray& x, const NDArray& hidden) const {
  const Here here = layer_of(weight_ih);
  return gru(Operand(x, where), hidden, {weight_ih, weight_hh, bias_ih, bias_hh});
}

}  // namespace sluice::nn
