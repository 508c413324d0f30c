#include "sluice/ndarray/overlaps.h"

#include <algorithm>
#include <array>
#include <functional>

namespace sluice {
namespace {

/// Where a view lies, told without locks: in its array, or in the buffer of one that stays in it.
Stretch place(const NDArray& x) {
  const Array& array = *x.array();
  if (array.stays()) return stretch_of(x, array.version()->buffer());
  const auto [low, high] = extent(x.shape(), x.strides(), x.offset());
  return {&array, low, high};
}

}  // namespace

bool any_overlap(std::span<const NDArray> views) {
  if (views.size() <= 8) {
    std::array<Stretch, 8> few;
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].count() == 0) continue;
      few[i] = place(views[i]);
      if (std::any_of(few.begin(), few.begin() + i, [&](const Stretch& s) { return s.overlaps(few[i]); })) return true;
    }
    return false;
  }
  std::vector<Stretch> places;
  for (const NDArray& x : views) {
    if (x.count() != 0) places.push_back(place(x));
  }
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.overlaps(b); }) !=
         places.end();
}

std::vector<Ref<Array>> holders(std::span<const NDArray> outputs) {
  std::vector<ShareGroup*> groups;
  std::vector<Stretch> memory;
  for (const NDArray& y : outputs) {
    const Array& array = *y.array();
    if (!array.stays() || array.shape().count() == 0) continue;
    ShareGroup& group = array.group()->root();
    if (!group.any_snapshot()) continue;
    groups.push_back(&group);
    memory.push_back(array.stretch());
  }
  std::vector<Ref<Array>> found;
  if (groups.empty()) return found;
  std::sort(groups.begin(), groups.end(), std::less<>());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::sort(memory.begin(), memory.end());
  std::size_t last = 0;  // those that overlap become one
  for (const Stretch& next : memory) {
    if (next.overlaps(memory[last])) {
      memory[last].end = std::max(memory[last].end, next.end);
    } else {
      memory[++last] = next;
    }
  }
  memory.resize(last + 1);
  for (ShareGroup* group : groups) {
    for (Ref<Array>& holder : group->snapshots()) {
      const Stretch shown = holder->stretch();
      const auto at = std::partition_point(memory.begin(), memory.end(), [&](const Stretch& m) {
        return m.space == shown.space ? m.end <= shown.begin : std::less<>()(m.space, shown.space);
      });
      if (at != memory.end() && at->overlaps(shown)) found.push_back(std::move(holder));
    }
  }
  return found;
}

}  // namespace sluice
