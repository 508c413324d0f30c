#include "sluice/operators/placed.h"

#include <algorithm>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/infer.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"

namespace sluice {
namespace builtin {
namespace {

std::vector<const NDArray*> pointers(const std::vector<NDArray>& list) {
  std::vector<const NDArray*> result;
  for (const NDArray& x : list) result.push_back(&x);
  return result;
}

/// "(8, 64) f32 dp:shard(0)".
std::string in_words(const NDArray& x) {
  const Placed* const placed = Placed::of(x);
  return to_string(x.shape()) + " " + std::string(name_of(x.dtype())) + " " +
         (placed ? to_string(placed->layout()) : "on no mesh");
}

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  std::string text;
  for (const NDArray* x : call.inputs()) text += (text.empty() ? "" : " x ") + in_words(*x);
  for (const NDArray& y : call.targets()) text += (text.empty() ? "into " : " into ") + in_words(y);
  throw ArrayError(call.name(), call.where(), text + ": " + why);
}

/// One call, made at each place.
class Places {
 public:
  explicit Places(Call& call) : call_(call), row_(row_of(call)) {
    for (const NDArray* x : call.inputs()) inputs_.push_back(layout(*x));
    for (const NDArray& y : call.targets()) targets_.push_back(layout(y));
    Signature signature(row_.name, call.where(), call.inputs(), call.attributes(), call.specs()[0].device);
    row_.infer(signature);
    placed_ = place_call(row_, signature, inputs_, targets_);
    if (!placed_.refusal.empty()) refuse(call, placed_.refusal);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (placed_.inputs[i] == inputs_[i] || !call.inputs()[i]->requires_grad()) continue;
      refuse(call, "operand " + std::to_string(i) + " wants a gradient and is to be cut: reshard(x, ..) as " +
                       to_string(placed_.inputs[i]) + " first");
    }
  }

  void make() {
    const int places = mesh().places();
    for (int rank = 0; rank < places; ++rank) {
      if (!like_the_last(rank)) check(rank);
    }
    const std::size_t outputs = placed_.outputs.size();
    std::vector<std::vector<NDArray>> shards(outputs);
    for (int rank = 0; rank < places; ++rank) {
      const std::vector<NDArray> inputs = inputs_at(rank);
      std::vector<NDArray> targets;
      for (const NDArray& y : call_.targets()) targets.push_back(Placed::of(y)->shards()[at(rank)]);
      ApplyOptions options{.where = call_.where(), .into = targets, .updates = call_.updates()};
      const DeviceScope scope(mesh().device(rank));
      std::vector<NDArray> made = apply_all(row_, pointers(inputs), attributes(rank), options);
      for (std::size_t o = 0; o < outputs; ++o) shards[o].push_back(std::move(made[o]));
    }
    if (!call_.targets().empty()) return call_.answer({call_.targets().begin(), call_.targets().end()});
    std::vector<NDArray> results;
    for (std::size_t o = 0; o < outputs; ++o) {
      results.push_back(Placed::array(placed_.outputs[o], call_.specs()[o].dtype, std::move(shards[o]), call_.where()));
    }
    call_.answer(std::move(results));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  const Mesh& mesh() const { return (inputs_.empty() ? targets_ : inputs_)[0].mesh(); }
  const Layout& layout(const NDArray& x) const {
    const Placed* const placed = Placed::of(x);
    if (!placed)
      refuse(call_,
             "an array on a mesh and one that is on none: place(x, mesh) first, or hold a MeshScope where it is made");
    const bool first = inputs_.empty() && targets_.empty();
    if (!first && !(placed->layout().mesh() == mesh())) {
      refuse(call_, "arrays on two meshes: " + to_string(mesh()) + ", and " + to_string(placed->layout().mesh()));
    }
    return placed->layout();
  }
  std::vector<NDArray> inputs_at(int rank) const {
    std::vector<NDArray> list;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      list.push_back(Placed::of(*call_.inputs()[i])->part(rank, placed_.inputs[i], call_.where()));
    }
    return list;
  }
  Attributes attributes(int rank) const {
    return placed_.local ? placed_.local(call_.attributes(), placed_.outputs[0], rank) : call_.attributes();
  }
  /// Whether what holds of the call of the place before holds of this one's: even cuts need one check for all.
  bool like_the_last(int rank) const {
    if (rank == 0 || placed_.local || mesh().device(rank).kind != mesh().device(rank - 1).kind) return false;
    const auto even = [&](const Layout& layout) { return layout.extent(rank) == layout.extent(rank - 1); };
    return std::ranges::all_of(placed_.inputs, even) && std::ranges::all_of(placed_.outputs, even);
  }
  /// The place's call must give the place's shards. Asked of all places before any of them makes its call.
  void check(int rank) const {
    std::vector<Spec> specs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      specs.push_back({placed_.inputs[i].extent(rank), call_.inputs()[i]->dtype(), mesh().device(rank)});
    }
    const Attributes own = attributes(rank);
    Signature signature(row_.name, call_.where(), std::span<const Spec>(specs), own, mesh().device(rank));
    try {
      row_.infer(signature);
    } catch (const ArrayError& e) {
      refuse(call_, "the call of place " + std::to_string(rank) + " is refused: " + e.what());
    }
    detail::check_kernel(row_, signature, mesh().device(rank), call_.where());
    for (std::size_t o = 0; o < placed_.outputs.size(); ++o) {
      const Dims wanted = placed_.outputs[o].extent(rank);
      if (signature.outputs()[o].shape == wanted) continue;
      refuse(call_, "the call of place " + std::to_string(rank) + " gives " + to_string(signature.outputs()[o].shape) +
                        " in place of " + to_string(wanted));
    }
  }

  Call& call_;
  const Operator& row_;
  std::vector<Layout> inputs_, targets_;
  PlacedCall placed_;
};

}  // namespace

const Placed* Placed::of(const NDArray& x) {
  return dynamic_cast<const Placed*>(x.array()->owned() ? owner_of(x).get() : nullptr);
}

NDArray Placed::array(const Layout& layout, DType dtype, std::vector<NDArray> shards, const std::source_location& where,
                      const Layout& in_calls) {
  return owned_array({layout.shape(), dtype, layout.mesh().device(0)},
                     Ref<Owner>(new Placed(layout, std::move(shards), in_calls)), where);
}

bool Placed::made_of_gathered(Call& call) {
  const auto gathers = [](const NDArray* x) {
    const Placed* const placed = of(*x);
    return placed && placed->gathers();
  };
  if (!call.targets().empty() || std::ranges::none_of(call.inputs(), gathers)) return false;
  // What the call waits for at all places: so no place runs ahead of the others, and no more is gathered at once than
  // the calls need that are near their turn.
  std::vector<NDArray> after;
  for (const NDArray* x : call.inputs()) {
    if (after.empty() && of(*x) && !gathers(x)) after = of(*x)->shards_;
  }
  std::vector<NDArray> inputs;
  for (const NDArray* x : call.inputs()) {
    if (!gathers(x)) {
      inputs.push_back(*x);
    } else {
      const ReshardAttributes to{of(*x)->in_calls_, after};
      inputs.push_back(sluice::apply(reshard_row(), {x}, to, {.where = call.where()}));
    }
  }
  call.answer(apply_all(row_of(call), pointers(inputs), call.attributes(), {.where = call.where()}));
  return true;
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

void Placed::apply(Call& call) {
  if (&call.row() == &reshard_row()) {
    const auto& [to, after] = call.attributes().get<ReshardAttributes>();
    const NDArray& x = call.input();
    return call.answer({array(to, x.dtype(), resharded(shards_, layout_, to, call.where(), after), call.where())});
  }
  if (!made_of_gathered(call)) Places(call).make();
}

Ref<Owner> Placed::snapshot() const {
  std::vector<NDArray> kept;
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
  static const Operator* const row = [] {
    auto* made = new Operator();
    made->name = "reshard";
    made->infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
    made->cost = [](const Signature&) { return Cost(); };
    made->relays_gradient = true;  // of a gather and a sum of terms: one reduce-scatter
    // The input's gradient is brought to its layout where it is added up.
    made->gradient = [](GradientContext& c) { c.set(0, c.gradient()); };
    return made;
  }();
  return *row;
}

}  // namespace builtin

// ---- functions

namespace {

/// Answers calls without operands.
class Creations final : public Interpreter {
 public:
  explicit Creations(Mesh mesh) : mesh_(std::move(mesh)) {}
  void apply(Call& call, Next next) override {
    const bool from_nothing = call.inputs().empty() && call.targets().empty();
    if (!from_nothing || !(call.specs()[0].device == mesh_.device(0))) return next(call);
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
  const Layout from = placed("reshard", x).layout();
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
