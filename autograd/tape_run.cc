// Running the tape backwards.
#include "sluice/autograd/tape_run.h"

#include <algorithm>
#include <utility>

#include "sluice/autograd/gradient_undo.h"
#include "sluice/autograd/gradients.h"
#include "sluice/autograd/owned.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/add_n.h"

namespace sluice::autograd {
namespace {
const GradientLayout* layout_of(const Node& node, std::size_t output) {
  if (!node.layouts || output >= node.layouts->size()) [[likely]]
    return nullptr;
  return (*node.layouts)[output].get();
}
/// Whether it may be written in place: a whole array, laid out as a new one, to which nobody else has a handle.
bool is_own(const NDArray& x) {
  if (window_of(x) || x.array()->group() || sluice::detail::is_owned_view(x)) return false;
  const std::lock_guard lock(x.array()->mutex());
  return x.array()->refs() == 1 && !x.array()->history;
}
}  // namespace

Ref<Node> maker_of(const NDArray& x) {
  Array& array = *x.array();
  sluice::detail::follow_writes(array);
  std::lock_guard lock(array.mutex());
  return Ref<Node>(static_cast<Node*>(array.history.get()));
}

Edge edge_to(const NDArray& x) {
  Array& array = *x.array();
  std::unique_ptr<Window> window = window_of(x);
  sluice::detail::follow_writes(array);
  std::lock_guard lock(array.mutex());
  return {Ref<Node>(static_cast<Node*>(array.history.get())), array.history_output, std::move(window)};
}

void check_roots(const char* name, std::span<const NDArray> roots, std::span<const NDArray> gradients,
                 const std::source_location& where) {
  if (roots.size() != gradients.size()) {
    throw ArrayError(name, where,
                     std::to_string(roots.size()) + " roots and " + std::to_string(gradients.size()) + " gradients");
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const NDArray& root = roots[i];
    root.checked(name, where);
    if (!maker_of(root)) throw ArrayError(name, where, "an array that no recorded operator made");
    if (!gradients[i].defined()) {
      if (root.count() == 1) continue;
      throw ArrayError(name, where, to_string(root.shape()) + " has not one element: give its gradient");
    }
    if (gradients[i].shape() == root.shape() && gradients[i].dtype() == root.dtype()) continue;
    throw ArrayError(name, where,
                     "a gradient of shape " + to_string(gradients[i].shape()) + " for a root of " +
                         to_string(root.shape()) + " " + std::string(name_of(root.dtype())));
  }
}

void add_to_leaf(Node& leaf, const NDArray& gradient, const std::source_location& where) {
  GradientUndo::changing(leaf);
  // .grad() must be an array of its own, because the next backward adds to it in place.
  NDArray existing;
  {
    std::lock_guard lock(leaf.mutex);
    existing = leaf.grad;
  }
  if (!existing.defined()) {
    NDArray own = window_of(gradient) || gradient.array()->group() ? gradient.copy(where) : alias(gradient, false);
    std::lock_guard lock(leaf.mutex);
    if (!leaf.grad.defined()) {
      restore_after_dry_run(leaf);
      leaf.grad = std::move(own);
      return;
    }
    existing = leaf.grad;
  }
  accumulate(existing, std::span(&gradient, 1), where);
}

NDArray brought(const Node& leaf, const NDArray& gradient, const std::source_location& where) {
  const GradientLayout* const layout = layout_of(leaf, 0);
  return layout ? layout->bring(gradient, where) : gradient;
}

// ---- what a run is of

void Run::find_useful(std::span<const NDArray> roots, const std::unordered_set<Node*>& targets) {
  restricted_ = true;
  if (targets.empty()) return;
  std::vector<Node*> found, stack;
  std::unordered_set<Node*> seen;
  bool freed = false;
  for (const Node* target : targets) oldest_target_ = std::min(oldest_target_, target->sequence);
  for (const NDArray& root : roots) stack.push_back(maker_of(root).get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!seen.insert(node).second) continue;
    freed = freed || node->freed;
    found.push_back(node);
    for (const Edge& edge : node->edges) {
      if (edge.node) stack.push_back(edge.node.get());
    }
  }
  if (freed) refuse_what_was_freed(roots, targets);
  std::sort(found.begin(), found.end(), [](Node* a, Node* b) { return a->sequence < b->sequence; });
  for (Node* node : found) {
    const bool leads = targets.count(node) != 0 ||
                       std::any_of(node->edges.begin(), node->edges.end(),
                                   [&](const Edge& e) { return e.node && useful_.count(e.node.get()) != 0; });
    if (leads) useful_.insert(node);
  }
}

/// What a freed node depended on is not known any more: it may have been a target, if that is older. Behind targets it
/// does not matter, but for what visit() refuses.
void Run::refuse_what_was_freed(std::span<const NDArray> roots, const std::unordered_set<Node*>& targets) const {
  std::vector<Node*> stack;
  std::unordered_set<Node*> seen;
  for (const NDArray& root : roots) stack.push_back(maker_of(root).get());
  while (!stack.empty()) {
    Node* const node = stack.back();
    stack.pop_back();
    if (targets.count(node) != 0 || !seen.insert(node).second) continue;
    if (node->freed && node->sequence > oldest_target_) refuse_freed();
    for (const Edge& edge : node->edges) {
      if (edge.node) stack.push_back(edge.node.get());
    }
  }
}

void Run::restrict_to(std::span<const NDArray> roots, std::span<const NDArray> xs) {
  std::unordered_set<Node*> targets;
  for (const NDArray& x : xs) {
    const Edge edge = edge_to(x);
    if (!edge.node) continue;
    std::vector<NDArray>& wanted = captured_[edge.node.get()];  // another output may have been wanted before
    wanted.resize(std::max(wanted.size(), static_cast<std::size_t>(edge.output) + 1));
    targets.insert(edge.node.get());
  }
  find_useful(roots, targets);
}

NDArray Run::what(const NDArray& x) const {
  const Edge edge = edge_to(x);
  const auto at = captured_.find(edge.node.get());
  if (at == captured_.end()) return {};
  const NDArray& whole = at->second[static_cast<std::size_t>(edge.output)];
  if (!whole.defined()) return {};
  // Contiguous, so that the program may write to it.
  return alias((edge.window ? look(whole, *edge.window, options_.where) : whole).contiguous(options_.where),
               options_.create_graph);
}

// ---- the way through the tape

void Run::run() {
  const detail::Layer* const outer = current_scope().layer;  // Mode restores it after an exception
  while (!queue_.empty()) {
    const Ref<Node> node = queue_.top().node;
    queue_.pop();
    current_scope().layer = node->layer;
    if (!rest_of_.empty()) {
      if (const auto rest = rest_of_.find(node.get()); rest != rest_of_.end()) {
        visit_rest(*rest->second);
        continue;
      }
    }
    const auto at = pending_.find(node.get());
    std::vector<Terms> terms = std::move(at->second);
    pending_.erase(at);
    if (node->uses && adds_to_leaves()) {
      hand_out(*node, terms[0].list());
      continue;
    }
    std::vector<NDArray> gradients;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      gradients.push_back(terms[i].empty() ? NDArray() : terms[i].take_total(options_.where));
      const GradientLayout* const layout = layout_of(*node, i);
      if (!layout || !gradients[i].defined()) continue;
      const bool seen = !node->relays || node->hooks || captured_.count(node.get()) != 0;
      if (seen || !layout->terms_alone(gradients[i])) gradients[i] = layout->bring(gradients[i], options_.where);
    }
    gradients.resize(std::max(gradients.size(), std::max<std::size_t>(1, node->outputs.size())));
    if (node->hooks) {
      call_hooks(*node, gradients);
      for (std::size_t i = 0; node->layouts && i < gradients.size(); ++i) {  // what a hook gave may lie otherwise
        const GradientLayout* const layout = layout_of(*node, i);
        if (layout && gradients[i].defined()) gradients[i] = layout->bring(gradients[i], options_.where);
      }
    }
    capture(*node, gradients);
    visit(*node, gradients);
  }
  current_scope().layer = outer;
}

Terms& Run::terms_of(const Ref<Node>& node, std::int32_t output) {
  const auto [at, fresh] = pending_.try_emplace(node.get());
  if (fresh) queue_.push({node->sequence, node});
  std::vector<Terms>& all = at->second;
  if (all.size() <= static_cast<std::size_t>(output)) all.resize(static_cast<std::size_t>(output) + 1);
  return all[static_cast<std::size_t>(output)];
}

void Run::send_to(const Edge& edge, NDArray gradient) {
  Node& node = *edge.node;
  const bool by_use = node.uses && adds_to_leaves();
  const GradientLayout* const layout = layout_of(node, static_cast<std::size_t>(edge.output));
  if (edge.window && !by_use && !layout && !options_.create_graph) {
    terms_of(edge.node, edge.output).add(gradient, *edge.window, options_.where);
    return;
  }
  if (edge.window) gradient = fold(gradient, *edge.window, options_.where);
  Terms& terms = terms_of(edge.node, edge.output);
  if (by_use) {
    terms.list().push_back(std::move(gradient));
    return;
  }
  if (layout && !terms.empty() && !layout->alike(terms.list().back(), gradient)) {
    for (NDArray& term : terms.list()) term = layout->bring(term, options_.where);
    gradient = layout->bring(gradient, options_.where);
  }
  terms.add(std::move(gradient), options_.where);
}

void Run::call_hooks(Node& node, std::vector<NDArray>& gradients) const {
  std::vector<Hook> hooks;
  {
    std::lock_guard lock(node.mutex);
    hooks = *node.hooks;
  }
  for (const Hook& hook : hooks) {
    NDArray& gradient = gradients[static_cast<std::size_t>(hook.output)];
    const auto call = *hook.call;  // it may remove itself
    if (!call || !gradient.defined()) continue;
    const NDArray seen = hook.window ? look(gradient, *hook.window, options_.where) : gradient;
    NDArray instead = call(seen);
    if (!instead.defined()) continue;
    if (!(instead.shape() == seen.shape()) || instead.dtype() != seen.dtype() || !(instead.device() == seen.device())) {
      throw ArrayError("on_gradient", node.where,
                       "the hook gave " + to_string(instead.shape()) + " " + std::string(name_of(instead.dtype())) +
                           " for a gradient of " + to_string(seen.shape()) + " " + std::string(name_of(seen.dtype())));
    }
    gradient = hook.window ? fold(instead, *hook.window, options_.where) : std::move(instead);
  }
}

void Run::hand_out(Node& leaf, std::vector<NDArray>& terms) const {
  std::shared_ptr<Uses> uses;
  {
    std::lock_guard lock(leaf.mutex);
    uses = leaf.uses;
  }
  std::reverse(terms.begin(), terms.end());
  // Arrays of their own: what a hook or a root's gradient shares with the program may be written there.
  std::vector<NDArray> own;
  const GradientLayout* const layout = layout_of(leaf, 0);
  for (NDArray& term : terms) {
    if (layout) term = layout->bring(term, options_.where);
    own.push_back(alias(std::exchange(term, {}), false));
  }
  (*uses)(own);
}

void Run::capture(Node& node, const std::vector<NDArray>& gradients) {
  const auto at = captured_.find(&node);
  if (at == captured_.end()) return;
  for (std::size_t i = 0; i < at->second.size(); ++i) at->second[i] = gradients[i];
}

void Run::refuse_freed() const {
  throw ArrayError("backward", options_.where,
                   "the tape was freed by an earlier backward; pass {.retain = true} there");
}

void Run::visit(Node& node, std::vector<NDArray>& gradients) {
  if (node.kind == Node::Kind::leaf) {
    if (adds_to_leaves()) add_to_leaf(node, gradients[0], options_.where);
    gradients.clear();
    return;
  }
  const bool view = is_view(node);
  if (node.freed) {
    if (captured_.count(&node) == 0 || node.sequence > oldest_target_) refuse_freed();
    gradients.clear();  // it is what was asked for, and all else that is asked for is younger
    return;
  }
  if (const DryRun* const run = DryRun::current(); run && !view && node.sequence < run->tape()) [[unlikely]] {
    throw ArrayError("backward", options_.where,
                     "shapes_of: the tape was recorded outside of it; call the function that made the root inside");
  }
  if (node.checkpoint) {
    const Ref<Recomputation> checkpoint = node.checkpoint;
    checkpoint->again(gradients);
  }
  std::vector<bool> useful;
  for (const Edge& edge : node.edges) useful.push_back(leads_on(edge));
  if (first_half_) {
    std::vector<bool> later;
    for (std::size_t i = 0; i < node.edges.size(); ++i) later.push_back(node.edges[i].node && !useful[i]);
    if (std::find(later.begin(), later.end(), true) != later.end()) {
      visit_half(node, gradients, std::move(useful), std::move(later));
      return;
    }
  }
  if (node.kind == Node::Kind::write) {
    send_write(node, gradients[0], useful);
  } else {
    Rule rule(node, gradients, std::move(useful), options_);
    rule.ask();
    gradients.clear();
    for (std::size_t i = node.edges.size(); i-- > 0;) send(node.edges[i], std::move(rule.results()[i]));
  }
  if (!keeps_tape() && !view) {
    node.freed = true;
    node.attributes = Attributes();  // it may own what a program's callables hold
    node.release();
  }
}

/// After a write to a window: what was written gets the window's gradient, the array before it the rest.
void Run::send_write(Node& node, NDArray& gradient, const std::vector<bool>& follow) {
  const std::unique_ptr<Window>& window = node.edges[1].window;
  // Of many writes to parts of one array the gradient is copied once: from then on it is nobody else's.
  const bool in_place = follow[0] && is_own(gradient);
  if (follow[1]) {
    const Edge plain{node.edges[1].node, node.edges[1].output, nullptr};
    const NDArray part = window ? look(gradient, *window, options_.where) : gradient;
    send(plain, in_place ? part.copy(options_.where) : part);
  }
  if (follow[0]) {
    const NDArray rest = in_place ? gradient : gradient.copy(options_.where);
    rest.strided(window->shape, window->strides, rest.offset() + window->offset, options_.where)
        .fill({0, options_.where});
    send(node.edges[0], rest);
  }
}

}  // namespace sluice::autograd
