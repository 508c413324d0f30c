// Memory that a part of the tape keeps. Internal to autograd/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "sluice/autograd/kept_memory.h"
#include "sluice/autograd/node.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/ndarray/owner.h"

namespace sluice::autograd {

/// Used once: add() and start(), then pieces().
class Kept {
 public:
  struct Piece {
    KeptMemory memory;
    const detail::Layer* layer = nullptr;  ///< of the oldest node that keeps it; null also for what add() was given
  };

  void add(const NDArray& x, const detail::Layer* layer = nullptr) {
    if (!x.defined()) return;
    detail::each_plain(x, [&](const NDArray& part) {
      const KeptMemory piece = memory_of(part);
      if (seen_.insert(piece.id).second) pieces_.push_back({piece, layer});
    });
  }
  void add(const std::vector<NDArray>& list, const detail::Layer* layer = nullptr) {
    for (const NDArray& x : list) add(x, layer);
  }
  /// A leaf whose value counts.
  void count_leaf(const Ref<Node>& leaf) { counted_.insert(leaf.get()); }
  void start(const Ref<Node>& node) { nodes_.push_back(node.get()); }
  /// With all that the nodes lead to.
  const std::vector<Piece>& pieces() {
    std::vector<const Node*> found;
    std::unordered_set<const Node*> visited;
    while (!nodes_.empty()) {
      const Node* const node = nodes_.back();
      nodes_.pop_back();
      if (!node || !visited.insert(node).second) continue;
      found.push_back(node);
      for (const Edge& edge : node->edges) nodes_.push_back(edge.node.get());
      // A program's own function may keep arrays that have a tape of their own (per_shard).
      if (!node->op || !node->op->joint_gradient) continue;
      for (const NDArray& x : node->saved_inputs) {
        const Node* const maker = x.defined() ? maker_of(x).get() : nullptr;
        const auto made_by = [&](const Edge& edge) { return edge.node.get() == maker; };
        nodes_.push_back(maker);
        const bool own = maker && std::none_of(node->edges.begin(), node->edges.end(), made_by);
        if (own && maker->kind == Node::Kind::leaf) counted_.insert(maker);
      }
    }
    std::sort(found.begin(), found.end(), [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    // The values of leaves first: they have been seen then, and do not count.
    const std::size_t before = pieces_.size();
    for (const Node* node : found) each_saved(*node, true);
    pieces_.resize(before);
    for (const Node* node : found) each_saved(*node, false);
    return pieces_;
  }

 private:
  void each_saved(const Node& node, bool leaves) {
    for (std::size_t i = 0; i < node.saved_inputs.size(); ++i) {
      const Node* const from = i < node.edges.size() ? node.edges[i].node.get() : nullptr;
      const bool is_leaf = from && from->kind == Node::Kind::leaf && counted_.count(from) == 0;
      if (is_leaf == leaves) add(node.saved_inputs[i], node.layer);
    }
    if (!leaves) add(node.saved_outputs, node.layer);
  }

  std::vector<Piece> pieces_;
  std::unordered_set<std::uint32_t> seen_;
  std::unordered_set<const Node*> counted_;
  std::vector<const Node*> nodes_;
};

}  // namespace sluice::autograd
