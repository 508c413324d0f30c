// Random numbers for arrays on a mesh: each place draws its own part.
#include <optional>
#include <stdexcept>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"

namespace sluice::builtin {
namespace {

/// The window of a shard in the draw of the whole. Nothing where it has another form: several axes behind the first
/// that is cut, with others between.
template <class A>
std::optional<A> window_of(const Layout& layout, int rank, A a) {
  const Dims &shape = layout.shape(), begin = layout.begin(rank), size = layout.extent(rank);
  std::int64_t step = 1;  // between neighbours along the axis, in the whole
  bool cut = false, several = false;
  for (int axis = shape.rank(); axis-- > 0; step *= shape[axis]) {
    a.first += static_cast<std::uint64_t>(begin[axis] * step);
    // A shard that has one element of each axis before is one piece, whatever its size is.
    std::int64_t before = 1;
    for (int i = 0; i < axis; ++i) before *= size[i];
    if (!layout.cut(axis) || before <= 1 || size.count() == 0) continue;
    several = cut;
    cut = true;
    a.piece = size[axis] * step;
    a.stride = shape[axis] * step;
  }
  if (several) return std::nullopt;
  return a;
}

bool has_windows(const Layout& layout) {
  for (int rank = 0; rank < layout.mesh().places(); ++rank) {
    if (!window_of(layout, rank, RandomAttributes())) return false;
  }
  return true;
}

}  // namespace

NDArray uniform_like(const NDArray& x, const RandomKey& key, std::uint64_t first, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("uniform"); });
  const RandomAttributes of_all{key.seed, key.stream, key.draw, first, 0, 1, x.shape(), DType::f32};
  const Placed* const placed = Placed::of(x);
  if (!placed) return sluice::apply(row, {}, of_all, {.where = where, .on = x.device()});
  const ScopeGuard scope;
  current_scope().interpreter = 0;  // they see the call that takes the numbers
  const NoGrad constant;
  const Mesh& mesh = placed->layout().mesh();
  Layout layout = added_up(placed->in_calls());
  if (!has_windows(layout)) layout = Layout::whole(mesh, x.shape());
  std::vector<NDArray> shards;
  for (int rank = 0; rank < mesh.places(); ++rank) {
    RandomAttributes own = *window_of(layout, rank, of_all);
    own.shape = layout.extent(rank);
    shards.push_back(sluice::apply(row, {}, own, {.where = where, .on = mesh.device(rank)}));
  }
  return Placed::array(layout, DType::f32, std::move(shards), where);
}

Attributes local_dropout(const Attributes& whole, const PlacedCall& placed, int rank) {
  const auto& a = whole.get<DropoutAttributes>();
  if (a.piece != 0) throw std::invalid_argument("of the elements of a draw that x has, a part of them is asked for");
  const std::optional<DropoutAttributes> own = window_of(placed.outputs[0], rank, a);
  if (!own) {
    throw std::invalid_argument(
        "cut along several axes behind the first, a part is no window of the draw: reshard(x, ..) first");
  }
  return *own;
}

}  // namespace sluice::builtin
