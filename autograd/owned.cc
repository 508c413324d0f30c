#include "sluice/autograd/owned.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "sluice/autograd/recomputation.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/rearranging.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace autograd {
namespace {

// ---- views: rows of their own, which are not registered. Their gradients are views and calls in turn.

NDArray unpermuted(const NDArray& g, const ViewCall& view, const std::source_location& where) {
  Dims back = view.axes();
  for (int i = 0; i < back.rank(); ++i) back[static_cast<int>(view.axes()[i])] = i;
  return g.permute(back, where);
}

NDArray unbroadcast(const NDArray& g, const ViewCall& view, const std::source_location& where) {
  const Dims& from = view.input().shape();
  const int added = g.rank() - from.rank();
  Dims gone;
  for (int i = 0; i < g.rank(); ++i) {
    if (i < added || (from[i - added] == 1 && g.shape()[i] != 1)) gone.push_back(i);
  }
  return (gone.empty() ? g : sum({g, where}, gone)).reshape(from, where);
}

/// The elements that were cut out, in their places among zeros.
NDArray unsliced(NDArray g, const ViewCall& view, const std::source_location& where) {
  std::vector<Padding> sizes;
  bool any = false;
  for (int i = 0; i < g.rank(); ++i) {
    const std::int64_t n = view.input().shape()[i], length = view.shape()[i];
    auto [begin, step] = view.cuts()[static_cast<std::size_t>(i)];
    if (length == 0) begin = 0;
    if (step < 0) {
      begin += (length - 1) * step;
      step = -step;
      g = g.flip(i, where);
    }
    if (step > 1 && length > 1) {  // step - 1 zeros behind each element but the last
      Dims apart, joined = g.shape();
      int behind_it = i + 1;
      if (g.rank() < kMaxRank) {
        for (int k = 0; k < g.rank(); ++k) {
          apart.push_back(g.shape()[k]);
          if (k == i) apart.push_back(1);
        }
      } else {  // there is no room for one more axis
        std::int64_t outer = 1, inner = 1;
        for (int k = 0; k < g.rank(); ++k) (k < i ? outer : inner) *= k == i ? 1 : g.shape()[k];
        apart = {outer, length, 1, inner};
        behind_it = 2;
      }
      std::vector<Padding> behind(static_cast<std::size_t>(apart.rank()));
      behind[static_cast<std::size_t>(behind_it)].after = step - 1;
      joined[i] = length * step;
      g = pad({g.reshape(apart, where), where}, behind).reshape(joined, where);
      g = g.narrow(i, 0, (length - 1) * step + 1, where);
    }
    sizes.push_back({begin, n - begin - g.shape()[i]});
    any = any || sizes.back().before > 0 || sizes.back().after > 0;
  }
  return any ? pad({g, where}, sizes) : g;
}

void view_gradient(GradientContext& context) {
  const ViewCall& view = *context.attributes().get<std::shared_ptr<const ViewCall>>();
  const NDArray& g = context.gradient();
  const std::source_location where = context.where();
  switch (view.kind()) {
    case ViewKind::permute:
      return context.set(0, unpermuted(g, view, where));
    case ViewKind::broadcast_to:
      return context.set(0, unbroadcast(g, view, where));
    case ViewKind::slice:
      return context.set(0, unsliced(g, view, where));
    default:
      return context.set(0, g.reshape(view.input().shape(), where));
  }
}

const Operator& view_row() {
  return detail::first_use([] {
    auto* made = new Operator();
    made->name = "view";
    made->gradient = view_gradient;
    return made;
  });
}

}  // namespace

bool is_view(const Node& node) { return node.op == &view_row(); }

void keep_layout(Node& node, std::size_t output, const Array& array) {
  if (array.kind() != Array::Kind::owned) return;
  std::shared_ptr<const GradientLayout> layout = array.owned()->owner->gradient_layout();
  if (!layout) return;
  if (!node.layouts) node.layouts = std::make_unique<std::vector<std::shared_ptr<const GradientLayout>>>();
  if (node.layouts->size() <= output) node.layouts->resize(output + 1);
  (*node.layouts)[output] = std::move(layout);
}

namespace {

/// It keeps no values, so a checkpoint has nothing to compute again for it.
Ref<Node> view_node(const ViewCall& call, const Array& view, const Past& past) {
  Ref<Node> node(new Node(next_sequence() + 1));
  node->op = &view_row();
  const Spec from = call.input().spec();
  auto shown = std::make_shared<ViewCall>(call);
  shown->let_go();  // the tape need not keep the arrays
  node->attributes = Attributes(std::shared_ptr<const ViewCall>(std::move(shown)));
  node->where = call.where();
  node->layer = current_scope().layer;
  node->device = from.device;
  node->edges.resize(1);
  node->edges[0] = {past.node, past.output, nullptr};
  node->inputs.emplace_back(from);
  node->outputs.emplace_back(Spec{call.shape(), from.dtype, from.device});
  keep_layout(*node, 0, view);
  node->relays = past.node->relays && call.kind() != ViewKind::slice;  // whose gradient is among zeros
  return node;
}

// ---- calls

void refuse_write(const Operator& op, const std::source_location& where, const char* why) {
  throw ArrayError(op.name, where, why);
}

/// Throws where a write to the targets cannot be recorded, as Resolution does for plain arrays.
bool check_targets(const Operator& op, std::span<const NDArray> targets, const Updates& updates, bool record,
                   const std::source_location& where) {
  bool view = false, part = false;
  for (const NDArray& given : targets) {
    const NDArray y = Rerun::seen(given);
    Array& array = *y.array();
    sluice::detail::follow_writes(array);
    const std::lock_guard lock(array.mutex());
    if (array.leaf) {
      refuse_write(op, where, "writes in place to an array that wants a gradient; use a NoGrad scope");
    }
    record = record || array.history;
    view = view || (array.owned() && array.owned()->view);
    part = part || window_of(y) || array.stays();
  }
  if (!record) return false;
  if (view) refuse_write(op, where, "a recorded write to a view of an array of an owner; write to the array itself");
  if (part) refuse_write(op, where, "a recorded write of an array of an owner to a part of a plain array");
  if (targets.size() > 1 || updates.any()) {
    refuse_write(op, where, "has no gradient: call it in a NoGrad scope, or on detached arrays");
  }
  return true;
}

/// Which inputs and outputs the gradients of the inputs with a past use.
struct Keeping {
  std::vector<bool> inputs, outputs;

  Keeping(const Operator& op, std::span<const Past> past, std::size_t results) {
    inputs.resize(past.size());
    outputs.resize(results);
    for (std::size_t i = 0; i < past.size() && !op.needs.empty(); ++i) {
      if (past[i].node) add(op.needs[std::min(i, op.needs.size() - 1)], i);
    }
  }

 private:
  void add(const Needs& needs, std::size_t own) {
    for (const Needs::Value& value : needs.values()) {
      std::vector<bool>& list =
          value.kind == Needs::Kind::output || value.kind == Needs::Kind::every_output ? outputs : inputs;
      if (value.kind == Needs::Kind::every_input || value.kind == Needs::Kind::every_output) {
        list.assign(list.size(), true);
      } else {
        const std::size_t at = value.kind == Needs::Kind::own_input ? own : value.index;
        if (at < list.size()) list[at] = true;
      }
    }
  }
};

NDArray kept_value(const NDArray& given) {
  const NDArray x = Rerun::seen(given);
  return x.on(sluice::detail::snapshot_of(x.array()));
}

/// Whether the answers are arrays of their own already: those of a mesh are, of shards that each place made; but for a
/// reshard's, whose places may share what did not move, and where an interpreter might have answered for a place.
bool answers_anew(const Operator& op, std::span<const NDArray* const> inputs) {
  if (current_scope().interpreter != 0 || &op == &builtin::reshard_row()) return false;
  const auto owned = [](const NDArray* x) { return static_cast<bool>(x->array()->owned()); };
  const auto first = std::ranges::find_if(inputs, owned);  // whose owner answers
  return first != inputs.end() && builtin::Placed::of(**first);
}

/// An answer as an array of its own: an owner may answer with an operand, or with an array that it keeps.
NDArray own_result(const NDArray& y, const std::source_location& where) {
  if (window_of(y) || y.array()->stays()) return y.copy(where);
  Ref<Array> array = sluice::detail::snapshot_of(y.array());  // not detach(), by which a checkpoint would find y
  array->history = Ref<History>();
  array->leaf = false;
  const NDArray own = y.on(std::move(array));
  Rerun::made(own);
  return own;
}

/// Gives an array its history. An array that was `found` has its old one again at the end of a dry run.
void set_history(const NDArray& y, const Ref<Node>& node, std::size_t output, bool found) {
  const Ref<Array> array = Rerun::seen(y).array();
  struct Said {
    bool found;
    ~Said() {
      if (found) sluice::detail::one_more_history_changed();
    }
  } const said{found};  // after the change; there is no view yet of an array that is new
  Ref<History> before;  // goes after the lock
  const std::lock_guard lock(array->mutex());
  if (DryRun* const run = found && !array->absent() ? DryRun::current() : nullptr) {
    run->at_end([array, old = array->history, at = array->history_output, leaf = array->leaf]() mutable {
      const std::lock_guard undo(array->mutex());
      std::swap(array->history, old);
      array->history_output = at;
      array->leaf = leaf;
      sluice::detail::one_more_history_changed();
    });
  }
  before = std::exchange(array->history, Ref<History>(node));
  array->history_output = static_cast<std::int32_t>(output);
  array->leaf = false;
}

}  // namespace

std::vector<NDArray> record_owned(const Operator& op, std::span<const NDArray* const> inputs,
                                  const Attributes& attributes, std::span<const NDArray> targets,
                                  const Updates& updates, const std::source_location& where,
                                  const std::function<std::vector<NDArray>()>& ask) {
  std::vector<Past> past;
  const bool records = grad_mode();
  bool flows = false;
  past.reserve(records ? inputs.size() : 0);
  for (std::size_t i = 0; records && i < inputs.size(); ++i) {
    past.push_back(is_floating(inputs[i]->dtype()) ? past_of(*inputs[i]) : Past());
    flows = flows || past.back().node;
  }
  flows = flows && op.gradient;
  const bool writes = records && check_targets(op, targets, updates, flows, where);
  const Recomputation* const checkpoint = Recomputation::current();
  const bool keeps = flows && (!checkpoint || checkpoint->is_again());
  std::vector<NDArray> saved_inputs, saved_outputs, results;
  {
    const NoGrad scope;
    const std::vector<bool> kept = keeps ? Keeping(op, past, 0).inputs : std::vector<bool>();
    for (std::size_t i = 0; i < kept.size(); ++i) {  // before the call, which may write them
      if (!kept[i]) continue;
      saved_inputs.resize(inputs.size());
      saved_inputs[i] = kept_value(*inputs[i]);
    }
    const bool anew = answers_anew(op, inputs);
    results = ask();
    for (NDArray& y : results) {
      if (anew) {
        Rerun::made(y);
      } else {
        y = own_result(y, where);
      }
    }
  }
  const std::span<const NDArray> made = targets.empty() ? std::span<const NDArray>(results) : targets;
  if (!flows || !is_floating(made[0].dtype())) {
    // What was written whole, and not recorded, is a constant from now on.
    for (std::size_t i = 0; writes && i < targets.size(); ++i) set_history(targets[i], {}, 0, true);
    return results;
  }
  if (keeps) {
    const NoGrad scope;
    const std::vector<bool> kept = Keeping(op, past, made.size()).outputs;
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!kept[i]) continue;
      saved_outputs.resize(made.size());
      saved_outputs[i] = made[i].detach(where);
    }
  }
  const Ref<Node> node = node_for_push();
  node->relays = op.relays_gradient;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!is_floating(made[i].dtype())) continue;
    set_history(made[i], node, i, !targets.empty());
    keep_layout(*node, i, *Rerun::seen(made[i]).array());
  }
  if (node->freed) return results;
  if (!computed_again()) {
    fill(*node, op, attributes, inputs, past, made, where);
  } else if (node->op != &op) {
    throw ArrayError(op.name, where, "another operator than when a checkpoint ran it first");
  }
  node->saved_inputs = std::move(saved_inputs);
  node->saved_outputs = std::move(saved_outputs);
  return results;
}

}  // namespace autograd

namespace {

/// True if each part of the view is a view of a part of the array. Else it is a copy: there was no such view.
bool shows_parts(const NDArray& view, const NDArray& of) {
  std::vector<NDArray> parts;
  detail::each_plain(of, [&](const NDArray& part) { parts.push_back(part); });
  bool all = true;
  detail::each_plain(view, [&](const NDArray& part) {
    all = all && std::any_of(parts.begin(), parts.end(), [&](const NDArray& x) { return x.same_array(part); });
  });
  return all;
}

}  // namespace

/// Every view of an owner's array, down to the array itself, the outermost first.
void detail::follow_writes(Array& array) {
  if (array.kind() != Array::Kind::owned) [[likely]]
    return;
  Owned::View* const last = array.owned()->view.get();
  const std::uint64_t changed = histories_changed();
  if (!last || last->looked.load(std::memory_order_acquire) == changed) return;
  std::vector<Ref<Array>> chain{Ref<Array>(&array)};
  while (Owned::View* const view = chain.back()->owned()->view.get()) {
    chain.push_back(Rerun::seen(view->call.input()).array());
  }
  for (std::size_t i = chain.size() - 1; i-- > 0;) {
    Array &shown = *chain[i + 1], &at = *chain[i];
    Owned::View& view = *at.owned()->view;
    autograd::Past now;
    {
      const std::lock_guard lock(shown.mutex());
      now = {Ref<autograd::Node>(static_cast<autograd::Node*>(shown.history.get())), shown.history_output};
    }
    Ref<History> before, seen = now.node;  // the old ones go after the lock
    const std::lock_guard lock(at.mutex());
    if (view.history.get() == now.node.get() && view.output == now.output) continue;
    before =
        std::exchange(at.history, now.node ? Ref<History>(autograd::view_node(view.call, at, now)) : Ref<History>());
    at.history_output = 0;
    std::swap(view.history, seen);
    view.output = now.output;
  }
  last->looked.store(changed, std::memory_order_release);
}

void detail::make_owned_view(ViewCall& call) {
  const NDArray input = call.input();
  autograd::Past past;
  if (grad_mode() && is_floating(input.dtype())) past = autograd::past_of(input);
  {
    const NoGrad scope;
    ask_for_view(call);
  }
  // An identity of its own: the owner may answer with an array that it has.
  Ref<Owned> owned(new Owned(call.result().array()->owned()->owner));
  if (shows_parts(call.result(), input)) {
    owned->view.reset(new Owned::View{call, Ref<History>(past.node), past.output, {histories_changed()}});
    owned->view->call.result_ = {};
  }
  Ref<Array> made(new Array(input.engine(), call.result().spec(), std::move(owned)));
  if (past.node) made->history = Ref<History>(autograd::view_node(call, *made, past));
  call.result_ = NDArray(std::move(made));
  Rerun::made(call.result_);
}

}  // namespace sluice
