// Tarjan's search for strongly connected components, without recursion: chains of waits can be long.
#include "sluice/engine/detail/circles.h"

#include <algorithm>

namespace sluice::detail {

std::vector<int> Graph::components() const {
  const std::size_t n = edges_.size();
  std::vector<int> component(n, -1), order(n, -1), lowest(n, 0), open, path;
  std::vector<std::size_t> edge(n, 0);
  int found = 0, count = 0;
  for (std::size_t start = 0; start < n; ++start) {
    if (order[start] >= 0) continue;
    path.push_back(static_cast<int>(start));
    while (!path.empty()) {
      const auto at = static_cast<std::size_t>(path.back());
      if (order[at] < 0) {
        order[at] = lowest[at] = found++;
        open.push_back(path.back());
      }
      if (edge[at] < edges_[at].size()) {
        const auto next = static_cast<std::size_t>(edges_[at][edge[at]++]);
        if (order[next] < 0) {
          path.push_back(static_cast<int>(next));
        } else if (component[next] < 0) {
          lowest[at] = std::min(lowest[at], order[next]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) {
        const auto before = static_cast<std::size_t>(path.back());
        lowest[before] = std::min(lowest[before], lowest[at]);
      }
      if (lowest[at] != order[at]) continue;
      for (int last = -1; last != static_cast<int>(at);) {
        last = open.back();
        open.pop_back();
        component[static_cast<std::size_t>(last)] = count;
      }
      ++count;
    }
  }
  return component;
}

std::vector<int> Graph::way(int from, int to) const {
  std::vector<int> came_from(edges_.size(), -1), reached{from};
  came_from[static_cast<std::size_t>(from)] = from;
  for (std::size_t i = 0; i < reached.size() && came_from[static_cast<std::size_t>(to)] < 0; ++i)
    for (const int next : edges_[static_cast<std::size_t>(reached[i])])
      if (came_from[static_cast<std::size_t>(next)] < 0) {
        came_from[static_cast<std::size_t>(next)] = reached[i];
        reached.push_back(next);
      }
  std::vector<int> way;
  if (came_from[static_cast<std::size_t>(to)] < 0) return way;
  for (int at = to; at != from; at = came_from[static_cast<std::size_t>(at)]) way.push_back(at);
  way.push_back(from);
  std::reverse(way.begin(), way.end());
  return way;
}

}  // namespace sluice::detail
