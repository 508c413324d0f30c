// Views of arrays on a mesh: which axis a cut axis becomes, and the same view of each shard.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "sluice/operators/placed_owner.h"

namespace sluice::builtin {
namespace {

using Kind = Placement::Kind;

[[noreturn]] void refuse_view(const ViewCall& call, const Layout& from, int axis) {
  std::string over;
  for (int m = 0; m < from.mesh().axes(); ++m) {
    if (from.on(m).kind == Kind::shard && from.on(m).axis == axis)
      over += (over.empty() ? "" : ", ") + from.mesh().name(m);
  }
  throw ArrayError(call.name(), call.where(),
                   to_string(call.input().shape()) + " " + to_string(from) + " -> " + to_string(call.shape()) +
                       ": axis " + std::to_string(axis) + " is cut over " + over + ": reshard(x, {{\"" +
                       over.substr(0, over.find(',')) + "\", replicate}})");
}

/// The axis of `shape` that an axis cut at multiples of `inner` elements becomes, with its cuts; -1: none can.
int reshaped(const Dims& from, int axis, const std::vector<std::int64_t>& cuts, const Dims& shape,
             std::vector<std::int64_t>& into) {
  // Of an array without elements only axes of size 1 come and go, for which its empty axes count as one.
  const bool empty = from.count() == 0;
  const auto size = [empty](std::int64_t n) { return empty && n == 0 ? 1 : n; };
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= size(from[i]);
  for (int i = axis + 1; i < from.rank(); ++i) inner *= size(from[i]);
  std::int64_t before = 1;
  for (int k = 0; k < shape.rank(); before *= size(shape[k++])) {
    if (before != outer || (shape[k] == 1 && from[axis] != 1) || (empty && shape[k] != from[axis])) continue;
    std::int64_t rest = 1;
    for (int i = k + 1; i < shape.rank(); ++i) rest *= size(shape[i]);
    if (empty && rest != inner) continue;
    into.clear();
    for (const std::int64_t cut : cuts) {
      if (cut * inner % rest != 0) return -1;
      into.push_back(cut * inner / rest);
    }
    return k;
  }
  return -1;
}

/// The layout of a view; throws ArrayError where the shards have no such view.
Layout layout_of_view(const ViewCall& call, const Layout& from) {
  const Dims &shape = call.input().shape(), &wanted = call.shape();
  std::array<int, kMaxRank> becomes{};
  Layout::Cuts cuts;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!from.cut(axis)) continue;
    int to = axis;
    std::vector<std::int64_t> edges = from.cuts(axis);
    switch (call.kind()) {
      case ViewKind::permute:
        to = static_cast<int>(std::find(call.axes().begin(), call.axes().end(), axis) - call.axes().begin());
        break;
      case ViewKind::broadcast_to:
        to += wanted.rank() - shape.rank();
        if (wanted[to] != shape[axis]) refuse_view(call, from, axis);
        break;
      case ViewKind::slice:
        if (wanted[axis] != shape[axis] || !(call.cuts()[static_cast<std::size_t>(axis)] == Cut{})) {
          refuse_view(call, from, axis);
        }
        break;
      default:
        to = reshaped(shape, axis, from.cuts(axis), wanted, edges);
        if (to < 0 || !cuts[static_cast<std::size_t>(to)].empty()) refuse_view(call, from, axis);
    }
    becomes[static_cast<std::size_t>(axis)] = to;
    cuts[static_cast<std::size_t>(to)] = std::move(edges);
  }
  std::vector<Placement> on;
  for (int m = 0; m < from.mesh().axes(); ++m) {
    Placement p = from.on(m);
    if (p.kind == Kind::shard) p.axis = becomes[static_cast<std::size_t>(p.axis)];
    on.push_back(p);
  }
  return Layout(from.mesh(), wanted, std::move(on), std::move(cuts));
}

/// The same; none where the shards have no such view.
std::optional<Layout> layout_if_any(const ViewCall& call, const Layout& from) {
  try {
    return layout_of_view(call, from);
  } catch (const ArrayError&) {
    return std::nullopt;
  }
}

}  // namespace

void Placed::view(ViewCall& call) {
  Layout to, in_calls;
  if (!gathers()) {
    to = layout_of_view(call, layout_);
  } else if (const std::optional<Layout> at_rest = layout_if_any(call, layout_)) {
    to = *at_rest;  // a view of what lies here, which calls see as they would see one of the gathered array
    in_calls = layout_of_view(call, in_calls_);
    if (in_calls == to) in_calls = Layout();
  } else {
    const NoGrad off;
    const NDArray whole =
        sluice::apply(reshard_row(), {&call.input()}, ReshardAttributes{in_calls_}, {.where = call.where()});
    const NDArray view = call.of(whole);
    Ref<Owner> copy(new Placed(of(view)->layout_, of(view)->shards_, {}, true));
    return call.answer(owned_array(view.spec(), std::move(copy), call.where()));
  }
  std::vector<NDArray> shards;
  for (int rank = 0; rank < layout_.mesh().places(); ++rank) {
    const NDArray& own = shards_[static_cast<std::size_t>(rank)];
    switch (call.kind()) {
      case ViewKind::permute:
        shards.push_back(own.permute(call.axes(), call.where()));
        break;
      case ViewKind::broadcast_to:
        shards.push_back(own.broadcast_to(to.extent(rank), call.where()));
        break;
      case ViewKind::reshape:
        shards.push_back(own.reshape(to.extent(rank), call.where()));
        break;
      default: {
        std::vector<Index> index;
        for (int i = 0; i < call.shape().rank(); ++i) {
          const auto [begin, step] = call.cuts()[static_cast<std::size_t>(i)];
          Slice range{begin, begin + call.shape()[i] * step, step};
          if (step < 0 && *range.end < 0) range.end.reset();
          if (call.shape()[i] == 0) range = slice(0, 0);
          index.push_back(layout_.cut(i) ? Index(all) : Index(range));
        }
        shards.push_back(own.index_view(index, call.where()));
      }
    }
  }
  // Where one shard had to be copied, all are: the result is a view of the array, or it is none.
  const auto shows = [&](std::size_t i) { return shards[i].same_array(shards_[i]); };
  bool all_show = true;
  for (std::size_t i = 0; i < shards.size(); ++i) all_show = all_show && shows(i);
  for (std::size_t i = 0; i < shards.size() && !all_show; ++i) {
    if (shows(i)) shards[i] = shards[i].copy(call.where());
  }
  Ref<Owner> made(new Placed(to, std::move(shards), in_calls, is_copy_));
  call.answer(owned_array({to.shape(), call.input().dtype(), to.mesh().device(0)}, std::move(made), call.where()));
}

}  // namespace sluice::builtin
