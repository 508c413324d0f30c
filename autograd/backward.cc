// Running the tape backwards.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "sluice/autograd/gradients.h"
#include "sluice/autograd/node.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/optimizer_steps.h"

namespace sluice {
namespace autograd {
namespace {

struct Options {
  bool create_graph = false;
  bool retain = false;
  std::source_location where;
};

/// What a gradient rule sees of a node.
class Rule final : public GradientContext {
 public:
  Rule(Node& node, std::vector<NDArray>& gradients, const Options& options)
      : node_(node), gradients_(gradients), options_(options), results_(node.edges.size()) {
    if (!options.create_graph) return;
    for (std::size_t i = 0; i < node.saved_outputs.size(); ++i) {
      outputs_.push_back(node.saved_outputs[i].defined() ? with_history(i) : NDArray());
    }
  }
  bool wanted(int i) const override { return static_cast<bool>(node_.edges[index(i)].node) && useful_[index(i)]; }
  const NDArray& gradient(int i) override {
    NDArray& g = gradients_[index(i)];
    if (!g.defined()) {
      const DeviceScope scope(node_.device);
      g = zeros(node_.outputs[index(i)].shape, node_.outputs[index(i)].dtype, options_.where);
    }
    return g;
  }
  bool has_gradient(int i) const override { return gradients_[index(i)].defined(); }
  const NDArray& input(int i) const override { return kept(node_.saved_inputs, i); }
  const NDArray& output(int i) const override { return kept(outputs_.empty() ? node_.saved_outputs : outputs_, i); }
  const Spec& input_spec(int i) const override { return node_.inputs[index(i)]; }
  int inputs() const override { return static_cast<int>(node_.edges.size()); }
  const Attributes& attributes() const override { return node_.attributes; }
  std::source_location where() const override { return node_.where; }
  bool create_graph() const override { return options_.create_graph; }
  void set(int i, NDArray gradient) override {
    if (!(gradient.shape() == node_.inputs[index(i)].shape)) {
      throw ArrayError(node_.op->name, node_.where,
                       "its gradient rule gave " + to_string(gradient.shape()) + " for an input of " +
                           to_string(node_.inputs[index(i)].shape));
    }
    results_[index(i)] = std::move(gradient);
  }

  std::vector<NDArray>& results() { return results_; }
  void set_useful(std::vector<bool> useful) { useful_ = std::move(useful); }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  const NDArray& kept(const std::vector<NDArray>& list, int i) const {
    if (index(i) >= list.size() || !list[index(i)].defined()) {
      throw ArrayError(node_.op->name, node_.where, "its gradient rule uses a value that `needs` does not name");
    }
    return list[index(i)];
  }
  /// The saved output as this node's output, so that a recorded gradient leads back here.
  NDArray with_history(std::size_t i) {
    const NDArray& saved = node_.saved_outputs[i];
    NDArray own;
    {
      const NoGrad scope;
      own = window_of(saved) ? saved.copy(options_.where) : saved.detach();
    }
    own.array()->history = Ref<History>(&node_);
    own.array()->history_output = static_cast<std::int32_t>(i);
    return own;
  }

  Node& node_;
  std::vector<NDArray>& gradients_;
  const Options& options_;
  std::vector<NDArray> results_;
  std::vector<NDArray> outputs_;
  std::vector<bool> useful_;
};

/// The same value under an identity of its own: a write to either leaves the other as it is. Free where the first goes
/// soon after. It wants gradients itself only where those are recorded.
NDArray alias(const NDArray& x, bool recorded) {
  {
    std::lock_guard lock(x.array()->mutex());
    if (x.array()->refs() == 1 && (recorded || !x.array()->history)) return x;
    if (recorded) return x.on(x.array()->snapshot());
  }
  return x.detach();
}

/// One run. Nodes are visited from the youngest to the oldest, so that a node is reached after all its uses.
class Run {
 public:
  explicit Run(const Options& options) : options_(options) {}

  void seed(const NDArray& root, const NDArray& gradient) {
    Ref<Node> node(static_cast<Node*>(history_of(root).get()));
    const std::unique_ptr<Window> window = window_of(root);
    add(node, output_of(root), window ? fold(gradient, *window, options_.where) : gradient);
  }

  /// Restricts the run to what leads to these arrays; what() gives their gradients afterwards.
  void restrict_to(std::span<const NDArray> roots, std::span<const NDArray> xs) {
    restricted_ = true;
    for (const NDArray& x : xs) {
      if (const Ref<History> history = history_of(x)) {
        captured_[static_cast<Node*>(history.get())].resize(static_cast<std::size_t>(output_of(x)) + 1);
      }
    }
    std::vector<Node*> found, stack;
    std::unordered_set<Node*> seen;
    for (const NDArray& root : roots) stack.push_back(static_cast<Node*>(history_of(root).get()));
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (!seen.insert(node).second) continue;
      found.push_back(node);
      for (const Edge& edge : node->edges) {
        if (edge.node) stack.push_back(edge.node.get());
      }
    }
    std::sort(found.begin(), found.end(), [](Node* a, Node* b) { return a->sequence < b->sequence; });
    for (Node* node : found) {
      const bool leads = captured_.count(node) != 0 ||
                         std::any_of(node->edges.begin(), node->edges.end(),
                                     [&](const Edge& e) { return e.node && useful_.count(e.node.get()) != 0; });
      if (leads) useful_.insert(node);
    }
  }

  void run() {
    const detail::Layer* const outer = current_scope().layer;  // Mode restores it after an exception
    while (!queue_.empty()) {
      const Ref<Node> node = queue_.top().node;
      queue_.pop();
      current_scope().layer = node->layer;
      const auto at = pending_.find(node.get());
      std::vector<std::vector<NDArray>> lists = std::move(at->second);
      pending_.erase(at);
      std::vector<NDArray> gradients;
      for (std::vector<NDArray>& list : lists) {
        gradients.push_back(list.empty() ? NDArray() : total(list));
        list.clear();
      }
      gradients.resize(std::max(gradients.size(), std::max<std::size_t>(1, node->outputs.size())));
      if (node->hooks) call_hooks(*node, gradients);
      capture(*node, gradients);
      visit(*node, gradients);
    }
    current_scope().layer = outer;
  }

  NDArray what(const NDArray& x) const {
    const Ref<History> history = history_of(x);
    const auto at = captured_.find(static_cast<Node*>(history.get()));
    if (at == captured_.end()) return {};
    const NDArray& whole = at->second[static_cast<std::size_t>(output_of(x))];
    const std::unique_ptr<Window> window = window_of(x);
    if (!whole.defined()) return {};
    // Contiguous, so that the program may write to it.
    return alias((window ? look(whole, *window, options_.where) : whole).contiguous(options_.where),
                 options_.create_graph);
  }

  static Ref<History> history_of(const NDArray& x) {
    Array& array = *x.array();
    std::lock_guard lock(array.mutex());
    return array.history;
  }

 private:
  static constexpr std::size_t kMostTerms = 16;  // part of what gradients.h says of the order of sums

  struct Entry {
    std::uint64_t sequence;
    Ref<Node> node;
    bool operator<(const Entry& other) const { return sequence < other.sequence; }
  };

  static std::int32_t output_of(const NDArray& x) {
    Array& array = *x.array();
    std::lock_guard lock(array.mutex());
    return array.history_output;
  }

  bool leads_on(const Edge& edge) const { return edge.node && (!restricted_ || useful_.count(edge.node.get()) != 0); }

  void add(const Ref<Node>& node, std::int32_t output, NDArray gradient) {
    const auto [at, fresh] = pending_.try_emplace(node.get());
    if (fresh) queue_.push({node->sequence, node});
    auto& lists = at->second;
    if (lists.size() <= static_cast<std::size_t>(output)) lists.resize(static_cast<std::size_t>(output) + 1);
    std::vector<NDArray>& list = lists[static_cast<std::size_t>(output)];
    list.push_back(std::move(gradient));
    // However often an array was used, few gradients of it wait here: what has come becomes one.
    if (list.size() == kMostTerms) list = {total(list)};
  }

  /// They came from the youngest use to the oldest; sums follow the program.
  NDArray total(std::vector<NDArray>& list) const {
    std::reverse(list.begin(), list.end());
    return add_n(list, options_.where);
  }

  void send(const Edge& edge, NDArray gradient) {
    if (!leads_on(edge) || !gradient.defined()) return;
    add(edge.node, edge.output, edge.window ? fold(gradient, *edge.window, options_.where) : std::move(gradient));
  }

  void call_hooks(Node& node, std::vector<NDArray>& gradients) const {
    std::vector<Hook> hooks;
    {
      std::lock_guard lock(node.mutex);
      hooks = *node.hooks;
    }
    for (const Hook& hook : hooks) {
      NDArray& gradient = gradients[static_cast<std::size_t>(hook.output)];
      const auto call = *hook.call;  // it may remove itself
      if (!call || !gradient.defined()) continue;
      NDArray instead = call(gradient);
      if (!instead.defined()) continue;
      if (!(instead.shape() == gradient.shape()) || instead.dtype() != gradient.dtype() ||
          !(instead.device() == gradient.device())) {
        throw ArrayError("on_gradient", node.where,
                         "the hook gave " + to_string(instead.shape()) + " " + std::string(name_of(instead.dtype())) +
                             " for a gradient of " + to_string(gradient.shape()) + " " +
                             std::string(name_of(gradient.dtype())));
      }
      gradient = std::move(instead);
    }
  }

  void capture(Node& node, const std::vector<NDArray>& gradients) {
    const auto at = captured_.find(&node);
    if (at == captured_.end()) return;
    for (std::size_t i = 0; i < at->second.size(); ++i) at->second[i] = gradients[i];
  }

  void visit(Node& node, std::vector<NDArray>& gradients) {
    if (node.kind == Node::Kind::leaf) {
      if (!restricted_) add_to_leaf(node, gradients[0]);
      gradients.clear();
      return;
    }
    if (node.freed) {
      throw ArrayError("backward", options_.where, "the tape was freed by an earlier backward; pass retain there");
    }
    if (node.checkpoint) {
      const Ref<Recomputation> checkpoint = node.checkpoint;
      checkpoint->again(gradients);
    }
    if (node.kind == Node::Kind::write) {
      visit_write(node, gradients[0]);
    } else {
      Rule rule(node, gradients, options_);
      std::vector<bool> useful;
      for (const Edge& edge : node.edges) useful.push_back(leads_on(edge));
      rule.set_useful(std::move(useful));
      {
        const ScopeGuard scope;
        current_scope().where = node.where;
        node.op->gradient(rule);
      }
      gradients.clear();
      for (std::size_t i = node.edges.size(); i-- > 0;) send(node.edges[i], std::move(rule.results()[i]));
    }
    if (!options_.retain && !options_.create_graph) {
      node.freed = true;
      node.attributes = Attributes();  // it may own what a program's callables hold
      node.release();
    }
  }

  // After a write to a window: what was written gets the window's gradient, the array before it the rest.
  void visit_write(Node& node, NDArray& gradient) {
    const std::unique_ptr<Window>& window = node.edges[1].window;
    if (leads_on(node.edges[1])) {
      const Edge plain{node.edges[1].node, node.edges[1].output, nullptr};
      send(plain, window ? look(gradient, *window, options_.where) : gradient);
    }
    if (leads_on(node.edges[0])) {
      const NDArray rest = gradient.copy(options_.where);
      rest.strided(window->shape, window->strides, window->offset, options_.where).fill({0, options_.where});
      send(node.edges[0], rest);
    }
  }

  void add_to_leaf(Node& leaf, NDArray& gradient) {
    // .grad() must be an array of its own, because the next backward adds to it in place.
    NDArray existing;
    {
      std::lock_guard lock(leaf.mutex);
      existing = leaf.grad;
    }
    if (!existing.defined()) {
      NDArray own =
          window_of(gradient) || gradient.array()->group() ? gradient.copy(options_.where) : alias(gradient, false);
      std::lock_guard lock(leaf.mutex);
      if (!leaf.grad.defined()) {
        leaf.grad = std::move(own);
        return;
      }
      existing = leaf.grad;
    }
    accumulate(existing, std::span(&gradient, 1), options_.where);
  }

  const Options& options_;
  bool restricted_ = false;
  std::priority_queue<Entry> queue_;
  std::unordered_map<Node*, std::vector<std::vector<NDArray>>> pending_;  ///< of each output: what came from its uses
  std::unordered_map<Node*, std::vector<NDArray>> captured_;
  std::unordered_set<Node*> useful_;
};

std::vector<NDArray> seeds(std::span<const NDArray> roots, std::span<const NDArray> gradients,
                           const std::source_location& where) {
  if (roots.size() != gradients.size()) {
    throw ArrayError("backward", where,
                     std::to_string(roots.size()) + " roots and " + std::to_string(gradients.size()) + " gradients");
  }
  std::vector<NDArray> result;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const NDArray& root = roots[i];
    root.checked("backward", where);
    if (!Run::history_of(root)) throw ArrayError("backward", where, "an array that no recorded operator made");
    if (!gradients[i].defined()) {
      if (root.count() != 1) {
        throw ArrayError("backward", where, to_string(root.shape()) + " has not one element: give its gradient");
      }
      result.push_back(ones_like({root, where}));
    } else {
      if (!(gradients[i].shape() == root.shape()) || gradients[i].dtype() != root.dtype()) {
        throw ArrayError("backward", where,
                         "a gradient of shape " + to_string(gradients[i].shape()) + " for a root of " +
                             to_string(root.shape()) + " " + std::string(name_of(root.dtype())));
      }
      result.push_back(gradients[i]);
    }
  }
  return result;
}

/// Grad mode while the tape runs: on only where gradients are recorded themselves.
struct Mode : ScopeGuard {
  explicit Mode(bool record) {
    if (record) {
      current_scope().flags &= ~kNoGradFlag;
    } else {
      current_scope().flags |= kNoGradFlag;
    }
  }
};

}  // namespace
}  // namespace autograd

void backward(const NDArrays& roots, const NDArrays& gradients, bool retain, std::source_location where) {
  const autograd::Mode mode(false);
  const autograd::Options options{.create_graph = false, .retain = retain, .where = where};
  std::vector<NDArray> first = autograd::seeds(roots, gradients, where);
  autograd::Run run(options);
  for (std::size_t i = roots.size(); i-- > 0;) run.seed(roots[i], first[i]);
  first.clear();
  run.run();
}

std::vector<NDArray> grad(const NDArrays& roots, const NDArrays& gradients, const NDArrays& xs, bool create_graph,
                          bool retain, std::source_location where) {
  const autograd::Mode mode(create_graph);
  const autograd::Options options{.create_graph = create_graph, .retain = retain, .where = where};
  for (const NDArray& x : xs) x.checked("grad", where);
  std::vector<NDArray> first = autograd::seeds(roots, gradients, where);
  autograd::Run run(options);
  run.restrict_to(roots, xs);
  for (std::size_t i = roots.size(); i-- > 0;) run.seed(roots[i], first[i]);
  first.clear();
  run.run();
  std::vector<NDArray> result;
  for (const NDArray& x : xs) result.push_back(run.what(x));
  return result;
}

std::vector<NDArray> grad(const NDArray& y, const NDArrays& xs, bool create_graph, bool retain,
                          std::source_location where) {
  const NDArray one;
  return grad(std::span(&y, 1), std::span(&one, 1), xs, create_graph, retain, where);
}

}  // namespace sluice
