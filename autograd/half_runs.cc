// What a run does beside the whole one's work where it is a half.
#include <algorithm>
#include <functional>

#include "sluice/autograd/tape_run.h"

namespace sluice::autograd {

void Run::first_half(std::span<const NDArray> roots, std::span<const NDArray> leaves) {
  first_half_ = true;
  std::unordered_set<Node*> targets;
  for (const NDArray& leaf : leaves) {
    if (const Ref<Node> node = maker_of(leaf)) targets.insert(node.get());
  }
  find_useful(roots, targets);
}

void Run::second_half(std::vector<Rest>& rests) {
  for (Rest& rest : rests) {
    rest_of_[rest.node.get()] = &rest;
    queue_.push({rest.node->sequence, rest.node});
  }
}

/// A node that leads to the inputs by the edges `useful`, and elsewhere by those `later`. All of its uses lead to the
/// inputs too, so its gradients are complete.
void Run::visit_half(Node& node, std::vector<NDArray>& gradients, std::vector<bool> useful, std::vector<bool> later) {
  Rest rest{Ref<Node>(&node), later, later, gradients, {}, {}};
  if (node.kind == Node::Kind::write) {
    send_write(node, gradients[0], useful);
  } else {
    std::vector<bool> asked = useful;
    if (node.op->joint_gradient)
      std::transform(asked.begin(), asked.end(), later.begin(), asked.begin(), std::logical_or<>());
    Rule rule(node, gradients, std::move(asked), options_);
    rule.ask();
    rest.results.resize(node.edges.size());
    for (std::size_t i = 0; i < later.size(); ++i) {
      if (!later[i]) continue;
      if (rule.results()[i].defined()) {
        rest.results[i] = std::move(rule.results()[i]);
        rest.ask[i] = false;
      } else if (node.op->joint_gradient) {
        rest.ask[i] = rest.follow[i] = false;  // it has none
      }
    }
    rest.common = std::move(rule.made_common());
    gradients.clear();
    for (std::size_t i = node.edges.size(); i-- > 0;) send(node.edges[i], std::move(rule.results()[i]));
  }
  gradients.clear();
  const bool asks = std::find(rest.ask.begin(), rest.ask.end(), true) != rest.ask.end();
  if (!asks || rest.common.defined()) rest.gradients.clear();
  // The program must not reach what waits here: it may hold these arrays too, from a hook or as a root's gradient.
  for (NDArray& g : rest.gradients) g = g.defined() ? alias(g, false) : g;
  for (NDArray& g : rest.results) g = g.defined() ? alias(g, false) : g;
  if (!keeps_tape()) release_half(rest);
  if (std::find(rest.follow.begin(), rest.follow.end(), true) != rest.follow.end()) rests_.push_back(std::move(rest));
}

/// Lets go of what the second half does not use.
void Run::release_half(Rest& rest) {
  Node& node = *rest.node;
  node.freed = true;
  std::vector<bool> inputs(node.saved_inputs.size()), outputs(node.saved_outputs.size());
  const auto mark = [&](const Needs& needs, std::size_t input, bool needed) {
    for (const Needs::Value& value : needs.values()) {
      const bool of_inputs = value.kind == Needs::Kind::input || value.kind == Needs::Kind::own_input;
      const std::size_t at = value.kind == Needs::Kind::own_input ? input : value.index;
      if (value.kind == Needs::Kind::every_input) std::fill(inputs.begin(), inputs.end(), needed);
      if (value.kind == Needs::Kind::every_output) std::fill(outputs.begin(), outputs.end(), needed);
      std::vector<bool>& list = of_inputs ? inputs : outputs;
      if ((of_inputs || value.kind == Needs::Kind::output) && at < list.size()) list[at] = needed;
    }
  };
  bool asks = false;
  for (std::size_t i = 0; i < rest.ask.size(); ++i) {
    if (!rest.ask[i]) continue;
    asks = true;
    if (node.op && !node.op->needs.empty()) mark(node.op->needs[std::min(i, node.op->needs.size() - 1)], i, true);
  }
  if (rest.common.defined()) mark(node.op->common_needs, 0, false);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) node.saved_inputs[i] = NDArray();
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) node.saved_outputs[i] = NDArray();
  }
  if (!asks) node.attributes = Attributes();
  for (std::size_t i = 0; i < node.edges.size(); ++i) {
    if (!rest.follow[i]) const Ref<Node> dropped = std::move(node.edges[i].node);
  }
}

void Run::visit_rest(Rest& rest) {
  Node& node = *rest.node;
  if (node.kind == Node::Kind::write) {
    send_write(node, rest.gradients[0], rest.follow);
  } else {
    if (std::find(rest.ask.begin(), rest.ask.end(), true) != rest.ask.end()) {
      Rule rule(node, rest.gradients, rest.ask, options_);
      rule.resume(std::move(rest.common));
      rule.ask();
      for (std::size_t i = 0; i < rest.ask.size(); ++i) {
        if (rest.ask[i]) rest.results[i] = std::move(rule.results()[i]);
      }
    }
    for (std::size_t i = node.edges.size(); i-- > 0;) {
      if (rest.follow[i]) send(node.edges[i], std::move(rest.results[i]));
    }
  }
  if (!keeps_tape()) {
    node.attributes = Attributes();
    node.release();
  }
  rest = Rest();  // the queue's own reference is the last
}

}  // namespace sluice::autograd
