// The interval map of one allocation: who wrote each byte last, and who has read it since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "sluice/resources/providers/access_observer.h"

namespace sluice::detail {

/// An access by a stream: after the point that the stream had recorded last, and so before any that it recorded later.
struct RecordedAccess {
  std::uint32_t stream = 0;
  bool writes = false;
  const char* verb = "";  ///< in reports
  std::uint64_t after = 0;
  std::size_t begin = 0, end = 0;  ///< bytes of the allocation
  AccessObserver::Caller caller;
};

class AccessMap {
 public:
  explicit AccessMap(std::size_t bytes) : bytes_(bytes) { segments_[0]; }

  /// Calls `conflict(earlier)` for each access so far of the same bytes, at least one of both a write: the last write,
  /// and for a write the last read of each stream since.
  template <class F>
  void conflicts(std::size_t begin, std::size_t end, bool writes, F conflict) const;
  /// Enters an access. May throw std::bad_alloc.
  void enter(const RecordedAccess& access);

  /// Forgets the accesses for which it is true.
  template <class F>
  void forget(F over);

  std::size_t segments() const { return segments_.size(); }

 private:
  struct Segment {
    bool written = false;
    RecordedAccess write;
    std::vector<RecordedAccess> reads;  ///< since the write, one for each stream
  };
  using Segments = std::map<std::size_t, Segment>;  ///< by their begins; each ends where the next begins

  Segments::iterator split(std::size_t at);

  std::size_t bytes_;
  Segments segments_;
};

template <class F>
void AccessMap::conflicts(std::size_t begin, std::size_t end, bool writes, F conflict) const {
  if (begin >= end) return;
  for (auto at = std::prev(segments_.upper_bound(begin)); at != segments_.end() && at->first < end; ++at) {
    const Segment& segment = at->second;
    if (segment.written) conflict(segment.write);
    if (!writes) continue;
    for (const RecordedAccess& read : segment.reads) conflict(read);
  }
}

template <class F>
void AccessMap::forget(F over) {
  for (auto& [begin, segment] : segments_) {
    if (segment.written && over(segment.write)) segment.written = false;
    std::erase_if(segment.reads, over);
  }
}

}  // namespace sluice::detail
