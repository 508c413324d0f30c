// The order record: reports any two accesses to a device's memory that nothing orders.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/resources/testing/access_map.h"

namespace sluice {

/// Each stream has a clock, which says for each other stream up to which of its points this one has waited. The clock
/// rises by waits on the device, and by points that the issuing thread names and knows as passed (ordered_after). It
/// does not rise because something happens to be over. So a missing wait is found however fast the device is.
///  - A recorded point carries its stream's clock; a stream that waits for the point joins this clock with its own.
///  - For each allocation an interval map keeps the last write, and the last read of each stream since. Allocation and
///    free are writes.
///  - A wait for a point that is not recorded yet holds the stream's later commands back, here as on the device.
///  - What the host touches is checked against the points that it was told as passed. It is not kept: whether a later
///    command comes after it is tested otherwise (ThreadSanitizer). A thread that was told nothing, and is in no body,
///    is judged by what is passed.
///  - A block that is reused has no past but what is not passed.
/// Two accesses without order make one report, with both ops' names, push sites and ranges; the same two places in a
/// program are reported once. If memory is short it forgets accesses: then it reports less, but never wrongly.
class OrderRecord final : public AccessObserver {
 public:
  explicit OrderRecord(std::function<void(std::string)> report);

  Stream add(std::string name, const std::atomic<std::uint64_t>* reached, std::function<bool()> lost = {}) override;
  void remove(Stream stream) noexcept override;
  void recorded(Stream stream, std::uint64_t point) noexcept override;
  void waits(Stream stream, Stream other, std::uint64_t point) noexcept override;
  void ordered_after(Stream stream, Stream other, std::uint64_t point, const Caller& caller) noexcept override;
  void touches(Stream stream, std::span<const MemoryUse> uses, const Caller& caller) noexcept override;
  void allocated(Stream stream, const void* block, std::size_t bytes, const Caller& caller) noexcept override;
  void allocated(const void* block, std::size_t bytes) noexcept override;
  void freed(Stream stream, const void* block, const Caller& caller) noexcept override;
  void freed(const void* block, const Caller& caller) noexcept override;
  void host_after(Points passed, bool afresh) noexcept override;
  void host_returns() noexcept override;
  void host_touches(std::span<const MemoryUse> uses, const Caller& caller) noexcept override;
  void block_reused(const void* block) noexcept override;
  void undeclared(const Caller& caller) noexcept override;
  void forget() noexcept override;

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

/// A record for SimOptions::observer.
std::unique_ptr<AccessObserver> order_record(std::function<void(std::string)> report);

}  // namespace sluice
