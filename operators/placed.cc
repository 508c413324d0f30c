#include "sluice/operators/placed.h"

#include <typeinfo>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/infer.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace builtin {

const Placed* Placed::of(const NDArray& x) {
  const Ref<sluice::detail::Owned>& owned = x.array()->owned();
  const Owner* const owner = owned ? owned->owner.get() : nullptr;
  return owner && typeid(*owner) == typeid(Placed) ? static_cast<const Placed*>(owner) : nullptr;
}

NDArray Placed::array(const Layout& layout, DType dtype, std::vector<NDArray> shards, const std::source_location& where,
                      const Layout& in_calls) {
  return owned_array({layout.shape(), dtype, layout.mesh().device(0)},
                     Ref<Owner>(new Placed(layout, std::move(shards), in_calls)), where);
}

bool is_cut(const NDArray& x, int axis) {
  const Placed* const placed = x.defined() ? Placed::of(x) : nullptr;
  return placed && axis < x.rank() && placed->in_calls().cut(axis);
}

NDArray Placed::part(int rank, const Layout& wanted, const std::source_location& where) const {
  const NDArray& own = shards_[static_cast<std::size_t>(rank)];
  if (wanted == layout_) return own;
  const Dims from = layout_.begin(rank), begin = wanted.begin(rank), size = wanted.extent(rank);
  NDArray x = own;
  for (int axis = 0; axis < size.rank(); ++axis) {
    if (size[axis] == x.shape()[axis]) continue;
    const std::int64_t first = size[axis] == 0 ? 0 : begin[axis] - from[axis];
    x = x.narrow(axis, first, first + size[axis], where);
  }
  return x;
}

Ref<Owner> Placed::snapshot() const {
  std::vector<NDArray> kept;
  kept.reserve(shards_.size());
  for (const NDArray& x : shards_) kept.push_back(x.detach());
  return Ref<Owner>(new Placed(layout_, std::move(kept), in_calls_));
}

Layout added_up(const Layout& layout, const Layout* where_replicated) {
  Placements changed;
  for (int m = 0; m < layout.mesh().axes(); ++m) {
    if (layout.on(m).kind != Placement::Kind::partial) continue;
    if (where_replicated && where_replicated->on(m).kind != Placement::Kind::replicate) continue;
    changed.emplace_back(layout.mesh().name(m), replicate);
  }
  return changed.empty() ? layout : layout.with(changed);
}

NDArray Placed::constant(const Spec& spec, const Scalar& value, const std::source_location& where) const {
  const Layout to = spec.shape == layout_.shape() ? added_up(in_calls()) : Layout::whole(layout_.mesh(), spec.shape);
  std::vector<NDArray> shards;
  for (int rank = 0; rank < to.mesh().places(); ++rank) {
    const DeviceScope scope(to.mesh().device(rank));
    shards.push_back(full(to.extent(rank), value, spec.dtype, where));
  }
  return array(to, spec.dtype, std::move(shards), where);
}

std::string Placed::refusal() const {
  return "an array on a mesh, " + to_string(layout_) +
         (layout_.replicated() ? ": shards_of(x)[0] is a plain array of it" : ": whole(x) first");
}

const Operator& reshard_row() {
  return detail::first_use([] {
    auto* made = new Operator();
    made->name = "reshard";
    made->infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    made->cost = [](const Signature&) { return Cost(); };
    made->relays_gradient = true;  // of a gather and a sum of terms: one reduce-scatter
    // The input's gradient is brought to its layout where it is added up.
    made->gradient = [](GradientContext& c) { c.set(0, c.gradient()); };
    return made;
  });
}

}  // namespace builtin

// ---- functions

namespace {

/// Answers calls without operands. Of nested ones the innermost does: those outside of it see the calls for its places,
/// and let them pass.
class Creations final : public Interpreter {
 public:
  explicit Creations(Mesh mesh) : mesh_(std::move(mesh)) {}
  void apply(Call& call, Next next) override {
    thread_local bool of_a_place = false;
    const bool from_nothing = call.inputs().empty() && call.targets().empty();
    if (!from_nothing || of_a_place || !(call.specs()[0].device == mesh_.device(0))) return next(call);
    const struct Making {
      Making() { of_a_place = true; }
      ~Making() { of_a_place = false; }
    } making;
    std::vector<std::vector<NDArray>> shards(call.specs().size());
    for (int rank = 0; rank < mesh_.places(); ++rank) {
      const DeviceScope scope(mesh_.device(rank));
      std::vector<NDArray> made = apply_all(row_of(call), {}, call.attributes(), {.where = call.where()});
      for (std::size_t o = 0; o < made.size(); ++o) shards[o].push_back(std::move(made[o]));
    }
    std::vector<NDArray> results;
    for (std::size_t o = 0; o < shards.size(); ++o) {
      const Spec& spec = call.specs()[o];
      results.push_back(
          builtin::Placed::array(Layout::whole(mesh_, spec.shape), spec.dtype, std::move(shards[o]), call.where()));
    }
    call.answer(std::move(results));
  }

 private:
  Mesh mesh_;
};

const Mesh& present(const Mesh& mesh, const std::source_location& where) {
  if (!mesh) throw UsageError("[MeshScope] " + to_string(where) + ": no mesh");
  return mesh;
}

}  // namespace

MeshScope::MeshScope(const Mesh& mesh, std::source_location where)
    : device_(present(mesh, where).device(0)), interpreter_(std::make_shared<Creations>(mesh)) {}

NDArray place(const NDArray& x, const Mesh& mesh, const Placements& placements, std::source_location where) {
  x.checked("place", where);
  if (!mesh) throw UsageError("[place] " + to_string(where) + ": no mesh");
  return place(x, Layout(mesh, x.shape(), placements, where), where);
}

NDArray place(const NDArray& x, const Layout& layout, std::source_location where) {
  x.checked("place", where);
  if (!layout) throw UsageError("[place] " + to_string(where) + ": no layout");
  if (owner_of(x, where)) throw ArrayError("place", where, "an array on a mesh already: reshard(x, ..)");
  if (!(layout.shape() == x.shape())) {
    throw ArrayError("place", where, to_string(x.shape()) + " in a layout of " + to_string(layout.shape()));
  }
  if (x.requires_grad()) {
    throw ArrayError("place", where, "an array that wants a gradient: place x.detach(), and give that with_grad()");
  }
  const Mesh& mesh = layout.mesh();
  if (layout.partial()) {
    throw ArrayError("place", where, to_string(layout) + ": an array has no terms to be partial of");
  }
  const NoGrad constant;
  const NDArray value = x.detach(where);
  std::vector<NDArray> shards;
  for (int rank = 0; rank < mesh.places(); ++rank) {
    const Dims begin = layout.begin(rank), size = layout.extent(rank);
    NDArray part = value;
    for (int axis = 0; axis < size.rank(); ++axis) {
      part = part.narrow(axis, begin[axis], begin[axis] + size[axis], where);
    }
    const bool elsewhere = !(part.device() == mesh.device(rank));
    shards.push_back(elsewhere ? part.to(mesh.device(rank), where) : part.copy(where));
  }
  return builtin::Placed::array(layout, x.dtype(), std::move(shards), where);
}

NDArray gathered(const NDArray& x, std::source_location where) {
  x.checked("gathered", where);
  const builtin::Placed* const placed = builtin::Placed::of(x);
  if (!placed) return x;
  const ScopeGuard scope;
  current_scope().interpreter = 0;  // a MeshScope would put the result on the mesh
  const NoGrad constant;
  std::vector<NDArray> shards = shards_of(x, where);
  const Layout& from = placed->layout();
  const Layout added = builtin::added_up(from);
  if (!(added == from)) shards = builtin::resharded(shards, from, added, where);
  return builtin::gathered_at(shards, added, 0, where);
}

Layout layout_of(const NDArray& x, std::source_location where) {
  x.checked("layout_of", where);
  const builtin::Placed* const placed = builtin::Placed::of(x);
  return placed ? placed->layout() : Layout();
}

Layout call_layout_of(const NDArray& x, std::source_location where) {
  x.checked("call_layout_of", where);
  const builtin::Placed* const placed = builtin::Placed::of(x);
  return placed ? placed->in_calls() : Layout();
}

namespace {

const builtin::Placed& placed(const char* name, const Operand& x) {
  x.array.checked(name, x.where);
  if (const builtin::Placed* const on_mesh = builtin::Placed::of(x.array)) return *on_mesh;
  throw ArrayError(name, x.where, "an array on no mesh: place(x, mesh) first");
}

NDArray to_layout(const char* name, const Operand& x, const Layout& from, const Layout& to) {
  if (from == to && !builtin::Placed::of(x.array)->gathers()) return x.array;
  for (int m = 0; m < to.mesh().axes(); ++m) {
    if (to.on(m).kind != Placement::Kind::partial || to.on(m) == from.on(m)) continue;
    throw ArrayError(name, x.where,
                     to_string(from) + " to " + to_string(to) + ": a value has no terms to be partial of");
  }
  return apply(builtin::reshard_row(), {&x.array}, builtin::ReshardAttributes{to}, {.where = x.where});
}

}  // namespace

NDArray reshard(const Operand& x, const Placements& placements) {
  const Layout from = placed("reshard", x).in_calls();  // axes that are not named stay as calls see them
  return to_layout("reshard", x, from, from.with(placements, x.where));
}

NDArray reshard(const Operand& x, const Layout& layout) {
  const Layout from = placed("reshard", x).layout();
  if (!layout) throw UsageError("[reshard] " + to_string(x.where) + ": no layout");
  if (!(layout.shape() == from.shape()) || !(layout.mesh() == from.mesh())) {
    throw ArrayError("reshard", x.where,
                     to_string(from.shape()) + " on " + to_string(from.mesh()) + " in a layout of " +
                         to_string(layout.shape()) + " on " + to_string(layout.mesh()));
  }
  return to_layout("reshard", x, from, layout);
}

NDArray with_call_layout(const NDArray& x, const Layout& layout, std::source_location where) {
  constexpr const char* kName = "with_call_layout";
  const Layout from = placed(kName, {x, where}).layout();
  if (!layout) throw UsageError(std::string("[") + kName + "] " + to_string(where) + ": no layout");
  if (layout.partial() || from.partial() || !(layout.shape() == from.shape()) || !(layout.mesh() == from.mesh())) {
    throw ArrayError(kName, where,
                     to_string(from) + " of " + to_string(from.shape()) + " on " + to_string(from.mesh()) +
                         " for calls as " + to_string(layout) + " of " + to_string(layout.shape()) + " on " +
                         to_string(layout.mesh()));
  }
  if (x.requires_grad()) {
    throw ArrayError(kName, where, "an array that wants a gradient: take x.detach(), and give the result with_grad()");
  }
  return builtin::Placed::array(from, x.dtype(), shards_of(x, where), where, layout == from ? Layout() : layout);
}

NDArray whole(const Operand& x) {
  const Layout from = placed("whole", x).layout();
  return to_layout("whole", x, from, Layout::whole(from.mesh(), from.shape()));
}

std::vector<NDArray> shards_of(const NDArray& x, std::source_location where) {
  std::vector<NDArray> list;
  for (const NDArray& shard : placed("shards_of", {x, where}).shards()) list.push_back(shard.detach(where));
  return list;
}

}  // namespace sluice
