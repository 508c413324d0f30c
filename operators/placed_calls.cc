// A call of arrays on a mesh: the same call at each place, of the shards there.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/short_list.h"
#include "sluice/operators/compose.h"
#include "sluice/operators/infer.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"

namespace sluice::builtin {
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

/// What was found out of a call, which holds of every other with these operands' layouts.
struct Answered {
  const Operator* row = nullptr;
  Attributes attributes;
  std::vector<Layout> inputs, targets;
  std::vector<DType> dtypes;  ///< of the inputs
  PlacedCall placed;
  std::vector<bool> cut;  ///< which inputs are to be cut first; empty: none

  /// Not for attributes whose fields nobody knows: they may hold arrays.
  static bool may_be_kept(const Call& call) { return !call.attributes() || !call.attributes().fields().empty(); }
  bool is_of(const Call& call, std::span<const Placed* const> operands) const {
    if (row != &call.row() || inputs.size() != call.inputs().size() || targets.size() != call.targets().size()) {
      return false;
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const bool input = i < inputs.size();
      const Layout& layout = input ? inputs[i] : targets[i - inputs.size()];
      if (!operands[i] || !(operands[i]->layout() == layout)) return false;
      if (input && call.inputs()[i]->dtype() != dtypes[i]) return false;
    }
    return attributes == call.attributes() || same_but_slots(call.attributes());
  }
  /// Slots are numbers that change from call to call, as a draw's: no layout depends on them.
  bool same_but_slots(const Attributes& others) const {
    const std::span<const AttributeField> fields = attributes.fields();
    if (fields.empty() || fields.data() != others.fields().data()) return false;
    Attributes same = attributes;
    for (const AttributeField& field : fields) {
      if (field.slot) same = same.with(field.name, field.get(others.data()));
    }
    return same == others;
  }
};

/// Where a thread keeps the answer for a call.
std::shared_ptr<const Answered>& kept_answer(const Call& call, std::span<const Placed* const> operands) {
  thread_local std::array<std::shared_ptr<const Answered>, 64> answers;
  auto key = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(&call.row()) >> 4U);
  const auto mix = [&key](std::int64_t with) { key = key * 31 + static_cast<std::size_t>(with); };
  for (const Placed* const x : operands) {
    if (!x) continue;
    const Dims& shape = x->layout().shape();
    for (int axis = 0; axis < shape.rank(); ++axis) mix(shape[axis]);
    mix(x->layout().replicated() ? 1 : 2);
  }
  return answers[(key ^ (key >> 6U)) % answers.size()];
}

/// One call, made at each place.
class Places {
 public:
  explicit Places(Call& call) : call_(call), row_(row_of(call)) {
    for (const NDArray* x : call.inputs()) operands_.emplace_back(Placed::of(*x));
    for (const NDArray& y : call.targets()) operands_.emplace_back(Placed::of(y));
    const std::span<const Placed* const> operands(operands_.begin(), operands_.size());
    std::shared_ptr<const Answered>& kept = kept_answer(call, operands);
    if (kept && kept->is_of(call, operands)) {
      answered_ = kept;
    } else {
      answered_ = answer();
      if (!answered_) return;
      if (Answered::may_be_kept(call)) kept = answered_;
    }
    for (std::size_t i = 0; i < answered_->cut.size(); ++i) {
      if (!answered_->cut[i] || !call.inputs()[i]->requires_grad()) continue;
      refuse(call, "operand " + std::to_string(i) + " wants a gradient and is to be cut: reshard(x, ..) as " +
                       to_string(placed().inputs[i]) + " first");
    }
  }

  /// False if the row's rule does not allow these layouts, and the row can be made of others.
  bool allowed() const { return answered_ != nullptr; }

  void make() {
    const int places = mesh().places();
    const std::size_t outputs = placed().outputs.size(), given = inputs().size();
    const bool in_place = !call_.targets().empty(), cuts = !answered_->cut.empty();
    ShortList<std::vector<NDArray>, 1> shards;
    shards.resize(outputs);
    for (std::vector<NDArray>& list : shards) list.reserve(in_place ? 0 : at(places));
    ShortList<const NDArray*, 4> list;
    list.resize(given);
    const std::span<const NDArray* const> operands(list.begin(), given);
    std::vector<NDArray> parts(cuts ? given : 0), targets;
    const ScopeGuard scope;  // one for all places' devices
    for (int rank = 0; rank < places; ++rank) {
      for (std::size_t i = 0; i < given; ++i) {
        const Placed& x = *operands_[i];
        const bool cut = cuts && answered_->cut[i];
        if (cut) parts[i] = x.part(rank, placed().inputs[i], call_.where());
        list[i] = cut ? &parts[i] : &x.shards()[at(rank)];
      }
      current_scope().device = mesh().device(rank);
      const Attributes own = placed().local ? attributes(rank) : Attributes();
      const Attributes& with = placed().local ? own : call_.attributes();
      if (in_place) {
        targets.clear();
        for (std::size_t i = given; i < operands_.size(); ++i) targets.push_back(operands_[i]->shards()[at(rank)]);
        apply_into(row_, operands, with, {.where = call_.where(), .into = targets, .updates = call_.updates()});
      } else if (outputs == 1) {
        shards[0].push_back(apply_one(row_, operands, with, call_.where()));
      } else {
        std::vector<NDArray> made = apply_all(row_, operands, with, {.where = call_.where()});
        for (std::size_t o = 0; o < outputs; ++o) shards[o].push_back(std::move(made[o]));
      }
    }
    if (in_place) return call_.answer({call_.targets().begin(), call_.targets().end()});
    std::vector<NDArray> results;
    results.reserve(outputs);
    for (std::size_t o = 0; o < outputs; ++o) {
      results.push_back(
          Placed::array(placed().outputs[o], call_.specs()[o].dtype, std::move(shards[o]), call_.where()));
    }
    call_.answer(std::move(results));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  const std::vector<Layout>& inputs() const { return answered_->inputs; }
  const PlacedCall& placed() const { return answered_->placed; }
  const Mesh& mesh() const { return (inputs().empty() ? answered_->targets : inputs())[0].mesh(); }
  const Layout& layout(const Placed* placed, const Mesh& mesh) const {
    if (!placed)
      refuse(call_,
             "an array on a mesh and one that is on none: place(x, mesh) first, or hold a MeshScope where it is made");
    if (mesh && !(placed->layout().mesh() == mesh)) {
      refuse(call_, "arrays on two meshes: " + to_string(mesh) + ", and " + to_string(placed->layout().mesh()));
    }
    return placed->layout();
  }
  Attributes attributes(int rank) const {
    return placed().local ? placed().local(call_.attributes(), placed(), rank) : call_.attributes();
  }

  /// Asks the row's rule, and whether each place can make its call.
  std::shared_ptr<const Answered> answer() {
    const auto made = std::make_shared<Answered>();
    Mesh mesh;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      std::vector<Layout>& list = i < call_.inputs().size() ? made->inputs : made->targets;
      list.push_back(layout(operands_[i], mesh));
      mesh = list.back().mesh();
    }
    Signature signature(row_.name, call_.where(), call_.inputs(), call_.attributes(), call_.specs()[0].device);
    row_.infer(signature);
    made->placed = place_call(row_, signature, made->inputs, made->targets);
    if (!made->placed.refusal.empty()) return otherwise(made->placed.refusal, !row_.place && !row_.elementwise);
    for (const NDArray* x : call_.inputs()) made->dtypes.push_back(x->dtype());
    made->row = &row_;
    made->attributes = call_.attributes();
    for (std::size_t i = 0; i < made->inputs.size(); ++i) {
      if (made->placed.inputs[i] == made->inputs[i]) continue;
      made->cut.resize(made->inputs.size());
      made->cut[i] = true;
    }
    answered_ = made;
    for (int rank = 0; rank < mesh.places(); ++rank) {
      if (like_the_last(rank)) continue;
      Attributes own;
      try {
        own = attributes(rank);
      } catch (const std::invalid_argument& e) {
        return otherwise(e.what(), true);
      }
      check(rank, own);
    }
    return made;
  }
  /// Null where the call can be made of other rows: where it may, by what the rule says, and none of its operands is a
  /// list of terms, which they might take for numbers.
  std::shared_ptr<const Answered> otherwise(const std::string& refusal, bool may) const {
    const auto has_terms = [](const Placed* x) { return x && x->in_calls().partial(); };
    if (!may || !detail::may_compose(row_) || !call_.targets().empty() || std::ranges::any_of(operands_, has_terms)) {
      refuse(call_, refusal);
    }
    return nullptr;
  }
  /// Whether what holds of the call of the place before holds of this one's: even cuts need one check for all.
  bool like_the_last(int rank) const {
    if (rank == 0 || placed().local || mesh().device(rank).kind != mesh().device(rank - 1).kind) return false;
    const auto even = [&](const Layout& layout) { return layout.extent(rank) == layout.extent(rank - 1); };
    return std::ranges::all_of(placed().inputs, even) && std::ranges::all_of(placed().outputs, even);
  }
  /// The place's call must give the place's shards. Asked of all places before any of them makes its call.
  void check(int rank, const Attributes& own) const {
    std::vector<Spec> specs;
    for (std::size_t i = 0; i < inputs().size(); ++i) {
      specs.push_back({placed().inputs[i].extent(rank), call_.inputs()[i]->dtype(), mesh().device(rank)});
    }
    Signature signature(row_.name, call_.where(), std::span<const Spec>(specs), own, mesh().device(rank));
    try {
      row_.infer(signature);
    } catch (const ArrayError& e) {
      refuse(call_, "the call of place " + std::to_string(rank) + " is refused: " + e.what());
    }
    detail::check_kernel(row_, signature, mesh().device(rank), call_.where());
    for (std::size_t o = 0; o < placed().outputs.size(); ++o) {
      const Dims wanted = placed().outputs[o].extent(rank);
      if (signature.outputs()[o].shape == wanted) continue;
      refuse(call_, "the call of place " + std::to_string(rank) + " gives " + to_string(signature.outputs()[o].shape) +
                        " in place of " + to_string(wanted));
    }
  }

  Call& call_;
  const Operator& row_;
  ShortList<const Placed*, 4> operands_;  ///< inputs, then targets; null: on no mesh
  std::shared_ptr<const Answered> answered_;
};

}  // namespace

bool Placed::made_of_gathered(Call& call) {
  const auto gathers = [](const NDArray* x) {
    const Placed* const placed = of(*x);
    return placed && placed->gathers();
  };
  const auto is_written = [&](const NDArray& y) { return gathers(&y); };
  // What is written in place is written as it lies, and so is read what it is made of.
  if (std::ranges::none_of(call.inputs(), gathers) || std::ranges::any_of(call.targets(), is_written)) return false;
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
  call.answer(apply_all(row_of(call), pointers(inputs), call.attributes(),
                        {.where = call.where(), .into = call.targets(), .updates = call.updates()}));
  return true;
}

void Placed::apply(Call& call) {
  if (&call.row() == &reshard_row()) {
    const auto& [to, after] = call.attributes().get<ReshardAttributes>();
    const NDArray& x = call.input();
    return call.answer({array(to, x.dtype(), resharded(shards_, layout_, to, call.where(), after), call.where())});
  }
  for (const NDArray& y : call.targets()) {
    const Placed* const placed = of(y);
    if (!placed || !placed->is_copy()) continue;
    refuse(call,
           "a view of an array that calls see in another layout than it lies (ZeRO 3) is a copy here: what is "
           "written to it would be lost");
  }
  if (made_of_gathered(call)) return;
  Places places(call);
  if (places.allowed()) return places.make();
  const std::vector<NDArray> values = detail::values_now(call.inputs());
  std::vector<NDArray> results = composed(row_of(call), pointers(values), call.attributes(), call.where());
  for (NDArray& y : results) {  // arrays of their own, for the tape
    if (detail::is_owned_view(y) || std::ranges::any_of(values, [&](const NDArray& x) { return x.same_array(y); })) {
      y = y.copy(call.where());
    }
  }
  call.answer(std::move(results));
}

}  // namespace sluice::builtin
