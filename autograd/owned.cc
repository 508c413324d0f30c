#include "sluice/autograd/owned.h"

#include <algorithm>
#include <utility>

#include "sluice/autograd/tape_run.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/ndarray/rerun.h"
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
      Dims apart = g.shape();
      apart.push_back(1);
      std::vector<Padding> behind(static_cast<std::size_t>(apart.rank()));
      for (int k = g.rank(); k > i + 1; --k) std::swap(apart[k], apart[k - 1]);
      behind[static_cast<std::size_t>(i) + 1].after = step - 1;
      Dims joined = g.shape();
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
  static const Operator* const row = [] {
    auto* made = new Operator();
    made->name = "view";
    made->gradient = view_gradient;
    return made;
  }();
  return *row;
}

/// It keeps no values, so a checkpoint has nothing to compute again for it.
Ref<Node> view_node(const ViewCall& call, const Past& past) {
  Ref<Node> node(new Node(next_sequence() + 1));
  node->op = &view_row();
  // Without the arrays, which the tape need not keep.
  const Spec from = call.input().spec();
  auto shown = std::make_shared<ViewCall>(call);
  shown->let_go();
  node->attributes = Attributes(std::shared_ptr<const ViewCall>(std::move(shown)));
  node->where = call.where();
  node->layer = current_scope().layer;
  node->device = from.device;
  node->edges.resize(1);
  node->edges[0] = {past.node, past.output, nullptr};
  node->inputs.emplace_back(from);
  node->outputs.emplace_back(Spec{call.shape(), from.dtype, from.device});
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
    follow_writes(array);
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
  const std::lock_guard lock(x.array()->mutex());
  return x.on(x.array()->snapshot());
}

/// Gives an array its history; in a dry run the old one comes back at the end.
void set_history(const NDArray& y, const Ref<Node>& node, std::size_t output) {
  const Ref<Array> array = Rerun::seen(y).array();
  Ref<History> before;  // goes after the lock
  const std::lock_guard lock(array->mutex());
  if (DryRun* const run = DryRun::current()) {
    run->at_end([array, old = array->history, at = array->history_output, leaf = array->leaf]() mutable {
      const std::lock_guard undo(array->mutex());
      std::swap(array->history, old);
      array->history_output = at;
      array->leaf = leaf;
    });
  }
  before = std::exchange(array->history, Ref<History>(node));
  array->history_output = static_cast<std::int32_t>(output);
  array->leaf = false;
}

}  // namespace

void follow_writes(Array& array) {
  if (array.kind() != Array::Kind::owned) [[likely]]
    return;
  detail::Owned::View* const view = array.owned()->view.get();
  if (!view) return;
  Array& shown = *view->call.input().array();
  follow_writes(shown);
  Past now;
  {
    const std::lock_guard lock(shown.mutex());
    now = {Ref<Node>(static_cast<Node*>(shown.history.get())), shown.history_output};
  }
  Ref<History> before;
  const std::lock_guard lock(array.mutex());
  if (view->history.get() == now.node.get() && view->output == now.output) return;
  before = std::exchange(array.history, now.node ? Ref<History>(view_node(view->call, now)) : Ref<History>());
  array.history_output = 0;
  view->history = now.node;
  view->output = now.output;
}

std::vector<NDArray> record_owned(const Operator& op, std::span<const NDArray* const> inputs,
                                  const Attributes& attributes, std::span<const NDArray> targets,
                                  const Updates& updates, const std::source_location& where,
                                  const std::function<std::vector<NDArray>()>& ask) {
  std::vector<Past> past;
  bool flows = false;
  for (const NDArray* x : inputs) {
    Past one = is_floating(x->dtype()) ? past_of(*x) : Past();
    flows = flows || one.node;
    past.push_back(std::move(one));
  }
  flows = flows && op.gradient;
  const bool writes = check_targets(op, targets, updates, flows, where);
  Ref<Node> node;
  std::vector<NDArray> saved_inputs, saved_outputs;
  std::optional<Keeping> keeping;
  const Recomputation* const checkpoint = Recomputation::current();
  if (flows) {
    node = node_for_push();
    if (!checkpoint || computed_again()) keeping.emplace(op, past, std::max<std::size_t>(1, targets.size()));
  }
  std::vector<NDArray> results;
  {
    const NoGrad scope;
    // Before the call, which may write them.
    for (std::size_t i = 0; keeping && i < inputs.size(); ++i) {
      if (!keeping->inputs[i]) continue;
      saved_inputs.resize(inputs.size());
      saved_inputs[i] = kept_value(*inputs[i]);
    }
    for (NDArray& y : ask()) {
      const NDArray given = std::move(y);
      // An array of its own: an owner may answer with an operand, or with one that it keeps.
      results.push_back(window_of(given) || given.array()->stays() ? given.copy(where) : given.detach(where));
    }
  }
  const std::span<const NDArray> made = targets.empty() ? std::span<const NDArray>(results) : targets;
  if (!flows) {
    // What was written whole, and not recorded, is a constant from now on.
    for (std::size_t i = 0; writes && i < targets.size(); ++i) set_history(targets[i], {}, 0);
    return results;
  }
  if (keeping) {
    const NoGrad scope;
    keeping->outputs.resize(made.size(), !keeping->outputs.empty() && keeping->outputs.back());
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!keeping->outputs[i]) continue;
      saved_outputs.resize(made.size());
      saved_outputs[i] = made[i].detach(where);
    }
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (is_floating(made[i].dtype())) set_history(made[i], node, i);
  }
  if (node->freed) return results;
  if (!computed_again()) {
    node->op = &op;
    node->attributes = attributes;
    node->where = where;
    node->layer = current_scope().layer;
    node->device = made[0].device();
    node->edges.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      node->inputs.emplace_back(inputs[i]->spec());
      if (past[i].node) node->edges[i] = {past[i].node, past[i].output, window_of(*inputs[i])};
    }
    for (const NDArray& y : made) node->outputs.emplace_back(y.spec());
  } else if (node->op != &op) {
    throw ArrayError(op.name, where, "another operator than when a checkpoint ran it first");
  }
  node->saved_inputs = std::move(saved_inputs);
  node->saved_outputs = std::move(saved_outputs);
  return results;
}

}  // namespace autograd

void detail::make_owned_view(ViewCall& call) {
  const NDArray input = call.input();
  autograd::Past past;
  if (grad_mode() && is_floating(input.dtype())) past = autograd::past_of(input);
  {
    const NoGrad scope;
    ask_for_view(call);
  }
  // An identity of its own: the owner may answer with an array that it has.
  const Ref<Array>& given = call.result().array();
  Ref<Owned> owned(new Owned(given->owned()->owner));
  owned->view = std::make_unique<Owned::View>(Owned::View{call, Ref<History>(past.node), past.output});
  owned->view->call.result_ = {};
  Ref<Array> made(new Array(input.engine(), call.result().spec(), std::move(owned)));
  if (past.node) made->history = Ref<History>(autograd::view_node(call, past));
  call.result_ = NDArray(std::move(made));
  Rerun::made(call.result_);
}

}  // namespace sluice
