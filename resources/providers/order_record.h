// The order record: reports any two accesses to a device's memory that nothing orders.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/engine/provider.h"
#include "sluice/resources/providers/detail/access_map.h"

namespace sluice {

/// A provider tells it, in the order of each stream's commands, what the streams record, wait for and touch. Each
/// stream has a clock, which says for each other stream up to which of its points this one has waited. The clock rises
/// by waits on the device, and by points that the issuing thread names and knows as passed (ordered_after). It does not
/// rise because something happens to be over. So a missing wait is found however fast the device is.
///  - A recorded point carries its stream's clock; a stream that waits for the point joins this clock with its own.
///  - For each allocation an interval map keeps the last write, and the last read of each stream since. Allocation and
///    free are writes.
///  - A wait for a point that is not recorded yet holds the stream's later commands back, here as on the device.
///  - What the host touches is checked against the points that it was told as passed. It is not kept: whether a later
///    command comes after it is tested otherwise (ThreadSanitizer).
/// Two accesses without order make one report, with both ops' names, push sites and ranges; the same two places in a
/// program are reported once. If memory is short it forgets accesses: then it reports less, but never wrongly.
/// Thread-safe; the functions of one stream are called one after the other.
class OrderRecord {
 public:
  using Stream = std::uint32_t;
  using Caller = detail::Caller;

  explicit OrderRecord(std::function<void(std::string)> report);

  /// A stream by its name in reports. `reached`: its last point that is passed; lives until remove(). `lost`: says
  /// whether its device is lost; a lost device touches nothing any more.
  Stream add(std::string name, const std::atomic<std::uint64_t>* reached, std::function<bool()> lost = {});
  /// The stream is gone and all its work is over: everything comes after that.
  void remove(Stream stream) noexcept;

  void recorded(Stream stream, std::uint64_t point) noexcept;
  void waits(Stream stream, Stream other, std::uint64_t point) noexcept;
  /// Reports a point that is not passed.
  void ordered_after(Stream stream, Stream other, std::uint64_t point, const Caller& caller) noexcept;
  void touches(Stream stream, std::span<const MemoryUse> uses, const Caller& caller) noexcept;

  /// A block that the stream may use, and others after it.
  void allocated(Stream stream, const void* block, std::size_t bytes, const Caller& caller) noexcept;
  /// A block that anyone may use.
  void allocated(const void* block, std::size_t bytes) noexcept;
  void freed(Stream stream, const void* block, const Caller& caller) noexcept;
  /// A free at once: reports what is not passed yet.
  void freed(const void* block, const Caller& caller) noexcept;

  using Points = std::span<const std::pair<Stream, std::uint64_t>>;
  /// Provider::host_after, host_returns and host_touches, for the calling thread. A thread that was told nothing, and
  /// is in no body, is judged by what is passed.
  void host_after(Points passed, bool afresh) noexcept;
  void host_returns() noexcept;
  void host_touches(std::span<const MemoryUse> uses, const Caller& caller) noexcept;
  /// Provider::host_reuses: forgets what was done with the block before these points.
  void host_reuses(const void* block, Points passed) noexcept;

  /// A kernel touches memory that its launch did not name: reports it.
  void undeclared(const Caller& caller) noexcept;

  /// Called when something could not be told to the record: it reports nothing any more.
  void forget() noexcept;

 private:
  /// By stream: up to which of its points, itself included.
  using Clock = std::vector<std::uint64_t>;
  /// A clock that a stream has had since it recorded a point.
  struct Version {
    std::uint64_t after;
    Clock clock;
  };
  struct Recorded {
    std::uint64_t point;
  };
  struct Join {
    Stream other;
    std::uint64_t point;
  };
  struct Touch {
    MemoryUse use;
    Caller caller;
  };
  struct Allocated {
    const void* block;
    std::size_t bytes;
    Caller caller;
  };
  struct Freed {
    const void* block;
    Caller caller;
  };
  using Command = std::variant<Recorded, Join, Touch, Allocated, Freed>;
  struct StreamState {
    std::string name;
    const std::atomic<std::uint64_t>* reached = nullptr;
    std::function<bool()> lost;
    bool gone = false;
    bool over() const { return gone || (lost && lost()); }
    std::uint64_t last = 0;  ///< recorded
    Clock clock;
    std::deque<Version> versions;  ///< by `after`; the last few
    bool pruned = false;           ///< there were more
    std::deque<Command> held;      ///< from a wait for a point that is not recorded yet
  };
  struct Allocation {
    std::size_t bytes = 0;
    bool live = true;
    Caller freed;
    detail::AccessMap accesses;
  };
  using Allocations = std::map<std::uintptr_t, Allocation>;
  using Access = detail::RecordedAccess;

  template <class F>
  void guarded(F f) noexcept;
  void issue(Stream stream, const Command& command);
  void run_held();
  bool execute(Stream stream, const Command& command);
  void execute(Stream stream, const Recorded& recorded);
  bool execute(Stream stream, const Join& join);
  void execute(Stream stream, const Touch& touch);
  void execute(Stream stream, const Allocated& allocated);
  void execute(Stream stream, const Freed& freed);
  Clock clock_at(Stream stream, std::uint64_t point) const;
  void raise_all(Clock& clock, Points passed) const;
  Allocation* begin_allocation(const void* block, std::size_t bytes);
  Allocations::iterator find(const void* address);
  /// Enters what is inside of a block; reports what is not.
  bool place(const Touch& touch, const std::string& stream, Allocations::iterator at, Access& access);

  bool is_before(const Access& earlier, Stream stream, const Clock& clock) const;
  bool is_passed(const Access& access) const;
  std::string describe(const Access& access, const std::string& stream) const;
  void report(const Access& earlier, const Access& later, const std::string& stream, const Allocation& allocation);
  bool is_new(const Caller& a, const Caller& b, const char* kind);

  const std::function<void(std::string)> report_;
  mutable std::mutex mutex_;
  std::vector<StreamState> streams_;
  Allocations allocations_;
  /// By thread: what it was told outside of bodies, if it was, and then in each body that it is in.
  std::unordered_map<std::uint64_t, std::vector<Clock>> told_;
  /// Places that were reported, in pairs, and for what.
  std::set<std::tuple<const void*, std::uint64_t, const void*, std::uint64_t, const char*>> reported_;
  bool holds_ = false;    ///< some stream has commands held back
  bool forgets_ = false;  ///< there was no memory for something: from then on nothing is known
};

}  // namespace sluice
