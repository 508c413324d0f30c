// Run: one run of the tape backwards, whole or a half of it. Internal to autograd/.
#pragma once

#include <queue>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sluice/autograd/node.h"
#include "sluice/autograd/rule.h"
#include "sluice/autograd/terms.h"
#include "sluice/ndarray/anomaly.h"

namespace sluice::autograd {

/// Grad mode while the tape runs: on only where gradients are recorded themselves.
struct Mode : ScopeGuard {
  explicit Mode(bool record) {
    current_scope().flags |= kBackwardFlag;  // what anomalies are told as
    if (record) {
      current_scope().flags &= ~kNoGradFlag;
    } else {
      current_scope().flags |= kNoGradFlag;
    }
  }
};

/// What made the array; null if it has no history.
Ref<Node> maker_of(const NDArray& x);
/// What leads to an array; without a node, if it has no history.
Edge edge_to(const NDArray& x);
/// Throws ArrayError for numbers that differ, and for a root or a gradient that backward() does not take.
void check_roots(const char* name, std::span<const NDArray> roots, std::span<const NDArray> gradients,
                 const std::source_location& where);

/// A gradient as those of the leaf lie (ndarray/owner.h).
NDArray brought(const Node& leaf, const NDArray& gradient, const std::source_location& where);
/// Adds to .grad(), or sets it.
void add_to_leaf(Node& leaf, const NDArray& gradient, const std::source_location& where);

/// What the first half of a backward leaves of a node that leads to the inputs and to other leaves.
struct Rest {
  Ref<Node> node;
  std::vector<bool> follow;        ///< the edges that are left
  std::vector<bool> ask;           ///< those of them for which the gradient rule is still to be asked
  std::vector<NDArray> gradients;  ///< of the outputs; empty where `common` has taken their place
  NDArray common;                  ///< GradientContext::common
  std::vector<NDArray> results;    ///< gradients of the inputs that are there already
};

/// Nodes are visited from the youngest to the oldest, so that a node is reached after all its uses.
class Run {
 public:
  explicit Run(const Options& options) : options_(options) {}

  /// The gradient of a root, to which `root` leads.
  void seed(const Edge& root, const NDArray& gradient) { send_to(root, gradient); }
  /// Restricts the run to what leads to these arrays; what() gives their gradients afterwards.
  void restrict_to(std::span<const NDArray> roots, std::span<const NDArray> xs);
  NDArray what(const NDArray& x) const;
  /// Makes this the first half: it is restricted to what leads to these leaves, and adds to their .grad(). An array
  /// without history leads nowhere.
  void first_half(std::span<const NDArray> roots, std::span<const NDArray> leaves);
  /// In the first half: true if the node is part of it.
  bool reaches(const Edge& root) const { return leads_on(root); }
  /// After the first half's run(): what it left, from the youngest to the oldest.
  std::vector<Rest> take_rests() { return std::move(rests_); }
  /// Makes this the second half.
  void second_half(std::vector<Rest>& rests);

  void run();

 private:
  struct Entry {
    std::uint64_t sequence;
    Ref<Node> node;
    bool operator<(const Entry& other) const { return sequence < other.sequence; }
  };

  void find_useful(std::span<const NDArray> roots, const std::unordered_set<Node*>& targets);
  std::uint64_t oldest_target_ = ~std::uint64_t{0};  ///< the least sequence of a restricted run's targets
  void refuse_what_was_freed(std::span<const NDArray> roots, const std::unordered_set<Node*>& targets) const;
  [[noreturn]] void refuse_freed() const;
  bool leads_on(const Edge& edge) const { return edge.node && (!restricted_ || useful_.count(edge.node.get()) != 0); }
  void send(const Edge& edge, NDArray gradient) {
    if (leads_on(edge) && gradient.defined()) send_to(edge, std::move(gradient));
  }
  void send_to(const Edge& edge, NDArray gradient);
  Terms& terms_of(const Ref<Node>& node, std::int32_t output);
  void call_hooks(Node& node, std::vector<NDArray>& gradients) const;
  void capture(Node& node, const std::vector<NDArray>& gradients);
  void visit(Node& node, std::vector<NDArray>& gradients);
  void visit_half(Node& node, std::vector<NDArray>& gradients, std::vector<bool> useful, std::vector<bool> later);
  void visit_rest(Rest& rest);
  void release_half(Rest& rest);
  void send_write(Node& node, NDArray& gradient, const std::vector<bool>& follow);
  bool adds_to_leaves() const { return !restricted_ || first_half_; }
  void hand_out(Node& leaf, std::vector<NDArray>& terms) const;
  bool keeps_tape() const { return options_.retain || options_.create_graph; }

  const Options& options_;
  bool restricted_ = false, first_half_ = false;
  std::priority_queue<Entry> queue_;
  std::unordered_map<Node*, std::vector<Terms>> pending_;  ///< of each output: what came from its uses
  std::unordered_map<Node*, std::vector<NDArray>> captured_;
  std::unordered_set<Node*> useful_;
  std::vector<Rest> rests_;
  std::unordered_map<Node*, Rest*> rest_of_;  ///< the second half's
};

}  // namespace sluice::autograd
