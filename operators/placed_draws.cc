// Random numbers for arrays on a mesh: each place draws its own part.
#include <optional>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/placed_owner.h"

namespace sluice::builtin {
namespace {

/// The window of a shard in the draw of the whole. Nothing where it has another form: several axes behind the first
/// that is cut, with others between.
std::optional<RandomAttributes> window_of(const Layout& layout, int rank, RandomAttributes a) {
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
  a.shape = size;
  return a;
}

}  // namespace

NDArray uniform_like(const NDArray& x, RandomStream& stream, std::uint64_t first, const std::source_location& where) {
  const Placed* const placed = Placed::of(x);
  if (!placed) return uniform(x.shape(), stream, 0, 1, DType::f32, first, where);
  const ScopeGuard scope;
  current_scope().interpreter = 0;  // they see the call that takes the numbers
  const NoGrad constant;
  const Operator& row = detail::first_use([] { return &Registry::instance().get("uniform"); });
  const Mesh& mesh = placed->layout().mesh();
  const RandomKey key = stream.next();
  const RandomAttributes of_all{key.seed, key.stream, key.draw, first, 0, 1, x.shape(), DType::f32};
  Layout layout = added_up(placed->in_calls());
  for (int rank = 0; rank < mesh.places(); ++rank) {
    if (!window_of(layout, rank, of_all)) layout = Layout::whole(mesh, x.shape());
  }
  std::vector<NDArray> shards;
  for (int rank = 0; rank < mesh.places(); ++rank) {
    shards.push_back(
        sluice::apply(row, {}, *window_of(layout, rank, of_all), {.where = where, .on = mesh.device(rank)}));
  }
  return Placed::array(layout, DType::f32, std::move(shards), where);
}

}  // namespace sluice::builtin
