#include <algorithm>
#include <iterator>

#include "sluice/resources/testing/access_map.h"

namespace sluice::detail {

/// The segment that begins there; where there is none, one is cut in two.
AccessMap::Segments::iterator AccessMap::split(std::size_t at) {
  const auto next = segments_.lower_bound(at);
  if (at >= bytes_ || (next != segments_.end() && next->first == at)) return next;
  return segments_.emplace_hint(next, at, std::prev(next)->second);
}

void AccessMap::enter(const RecordedAccess& access) {
  if (access.begin >= access.end) return;
  const auto first = split(access.begin);
  const auto last = split(access.end);
  if (access.writes) {
    Segment& segment = first->second;
    segment.written = true;
    segment.write = access;
    segment.reads.clear();
    segments_.erase(std::next(first), last);
    return;
  }
  for (auto at = first; at != last; ++at) {
    auto& reads = at->second.reads;
    const auto own = std::find_if(reads.begin(), reads.end(), [&](const auto& r) { return r.stream == access.stream; });
    if (own != reads.end()) {
      *own = access;
    } else {
      reads.push_back(access);
    }
  }
}

}  // namespace sluice::detail
