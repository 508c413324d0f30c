// Rule: what a gradient rule sees of a node. Internal to autograd/.
#pragma once

#include <utility>
#include <vector>

#include "sluice/autograd/node.h"

namespace sluice::autograd {

/// How the tape runs.
struct Options {
  bool create_graph = false;
  bool retain = false;
  std::source_location where;
};

class Rule final : public GradientContext {
 public:
  /// `wanted[i]`: the gradient of input i is. `gradients`: of the outputs; empty handles where nothing used them.
  Rule(Node& node, std::vector<NDArray>& gradients, std::vector<bool> wanted, const Options& options);

  bool wanted(int i) const override { return static_cast<bool>(node_.edges[index(i)].node) && wanted_[index(i)]; }
  const NDArray& gradient(int i) override;
  bool has_gradient(int i) const override { return gradients_[index(i)].defined(); }
  const NDArray& input(int i) const override { return kept(node_.saved_inputs, i); }
  const NDArray& output(int i) const override { return kept(outputs_.empty() ? node_.saved_outputs : outputs_, i); }
  const Spec& input_spec(int i) const override { return node_.inputs[index(i)]; }
  int inputs() const override { return static_cast<int>(node_.edges.size()); }
  const Attributes& attributes() const override { return node_.attributes; }
  std::source_location where() const override { return node_.where; }
  bool create_graph() const override { return options_.create_graph; }
  const NDArray& common(NDArray (*make)(GradientContext&)) override;
  void set(int i, NDArray gradient) override;

  /// Calls the operator's gradient rule.
  void ask();
  /// Gradients of the inputs: what was set.
  std::vector<NDArray>& results() { return results_; }
  /// What common() made; empty if it was not called.
  NDArray& made_common() { return common_; }
  /// For the second of two calls: what common() made in the first.
  void resume(NDArray common) {
    common_ = std::move(common);
    resumed_ = common_.defined();
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  const NDArray& kept(const std::vector<NDArray>& list, int i) const;
  NDArray with_history(std::size_t i);
  NDArray no_gradient(const Spec& spec) const;

  Node& node_;
  std::vector<NDArray>& gradients_;
  const Options& options_;
  std::vector<NDArray> results_;
  std::vector<NDArray> outputs_;
  std::vector<bool> wanted_;
  NDArray common_;
  bool resumed_ = false;
};

}  // namespace sluice::autograd
