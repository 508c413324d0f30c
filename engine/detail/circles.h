// Circles in a graph of waits: the part of the search that knows nothing of operations (core_circles.h).
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::detail {

/// A directed graph; nodes are numbered from 0.
class Graph {
 public:
  int add() {
    edges_.emplace_back();
    return static_cast<int>(edges_.size()) - 1;
  }
  void connect(int from, int to) { edges_[static_cast<std::size_t>(from)].push_back(to); }
  /// For each node the number of its strongly connected component: two nodes have the same one if each can be reached
  /// from the other. Takes time and memory in proportion to nodes and edges.
  std::vector<int> components() const;
  /// The nodes of a shortest way, both ends included; empty if there is none.
  std::vector<int> way(int from, int to) const;

 private:
  std::vector<std::vector<int>> edges_;
};

}  // namespace sluice::detail
