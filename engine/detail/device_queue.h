// A stream lane's side of the protocol: what it has issued, which points are recorded, and what its device has
// confirmed. Each is one number, an op's place in the lane.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/order_observer.h"
#include "sluice/engine/provider.h"

namespace sluice::detail {

template <class P>
struct Watch;

/// Always issued >= pointed >= what the stream has reached, and issued >= finished. The lane's thread issues, and
/// perhaps a substitute beside it, hence the lock. Any thread may record a point. The provider's one watcher finishes
/// ops, or the lane's own thread does, if the device is over with ops when it records a point.
template <class P>
struct DeviceQueue {
  template <class T>
  using Atomic = typename P::template Atomic<T>;
  template <class T>
  using Plain = typename P::template Plain<T>;
  static constexpr std::uint64_t kRing = P::kDeviceRing;   ///< a power of two, twice what may be in flight
  static constexpr std::uint64_t kBatch = P::kPointBatch;  ///< ops after which a point is recorded at the latest
  static constexpr int kLostErrorsShift = 32;              ///< in `doubts`

  /// `limited`: the device is given up when it is silent for long (EngineOptions::device_limit). `ahead`: how many ops
  /// may be unconfirmed (EngineOptions::max_ahead); 0: as many as the device takes.
  DeviceQueue(Provider& p, int d, std::unique_ptr<Stream> s, std::size_t lanes, bool limited, std::uint64_t ahead)
      : provider(p),
        device(d),
        stream(std::move(s)),
        observer(dynamic_cast<OrderObserver*>(&p)),
        most(std::min(
            ahead != 0 ? ahead : kRing,
            std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::max(p.limits(d).unconfirmed, 1)), 1, kRing / 2))),
        ranges(p.wants_ranges()),
        awaits_known(limited),
        batch(limited ? 1 : kBatch),
        waited(std::make_unique<Atomic<std::uint64_t>[]>(lanes)) {}

  void lock() {
    for (int spins = 0; locked.exchange(true, std::memory_order_acquire);) {
      if (++spins > 100) P::yield();
      P::pause();
    }
  }
  void unlock() { locked.store(false, std::memory_order_release); }
  /// For an op that takes the place `at`, under the lock. `before`: the value of `doubts` before the op's inputs were
  /// looked at. If errors were lost since then, a kernel that the body launched may have had one of them. Returns true
  /// if an input may carry an error that the op did not see.
  bool heed(std::uint64_t before, std::uint64_t at) {
    const std::uint64_t now = doubts.load(std::memory_order_relaxed);
    if (now == before && !(now & 1)) [[likely]]
      return false;
    if ((now ^ before) >> kLostErrorsShift) suspects.store(at, std::memory_order_relaxed);
    return true;
  }
  /// Whether the first op that is not finished waits for another stream. Called under the watch's mutex.
  bool waits_for_another() {
    std::lock_guard guard(*this);
    forget_awaits();
    const std::uint64_t first = finished.load(std::memory_order_relaxed) + 1;
    return std::any_of(awaits.begin(), awaits.end(), [&](const Await& a) { return a.before <= first; });
  }
  /// Forgets the waits that are over. Called under the lock.
  void forget_awaits() {
    std::erase_if(awaits, [](const Await& a) { return a.other->finished.load(std::memory_order_acquire) >= a.at; });
  }
  bool in_flight() const { return finished.load(std::memory_order_acquire) != issued.load(std::memory_order_acquire); }

  Provider& provider;
  Watch<P>* watch = nullptr;
  const int device;
  const std::unique_ptr<Stream> stream;
  OrderObserver* const observer;  ///< the provider's, else null
  const std::uint64_t most;       ///< how many ops may be unconfirmed
  const bool ranges;              ///< the provider is told of each op that is issued
  const bool awaits_known;        ///< `awaits` is kept
  const std::uint64_t batch;      ///< ops after which a point is recorded: each one where a device's silence is timed

  // Written by the thread that issues.
  alignas(64) Atomic<bool> locked{false};
  Atomic<std::uint64_t> issued{0};   ///< changed under the lock
  Atomic<std::uint64_t> pointed{0};  ///< the place up to which points are recorded; changed under the lock
  std::array<Plain<Runnable<P>*>, kRing> ring{};
  std::unique_ptr<Atomic<std::uint64_t>[]> waited;  ///< for each lane: the place up to which this stream waits for it
  /// What the stream waits for before the op at a place, or before an op of a thread that is in its body, which gets
  /// that place or a later one.
  struct Await {
    std::uint64_t before;
    const DeviceQueue* other;
    std::uint64_t at;
  };
  std::vector<Await> awaits;           ///< those that may not be over; under the lock
  Plain<OpRecord<P>*> held = nullptr;  ///< ops of other lanes that are held back for this one; under the lock
  Atomic<std::uint64_t> points{0}, waits{0}, covered{0};  ///< for Engine::lane_stats; the first is under the lock

  // Written by the thread that finishes, under the watch's mutex.
  alignas(64) Atomic<std::uint64_t> finished{0};  ///< the place up to which ops are finished on the host
  Atomic<bool> lost{false};
  /// Changed under the lock too. The upper half counts how often errors of its device were lost. The lower half is odd
  /// while errors of the provider's devices are being settled (Core::settle_errors), and even else; it only rises.
  Atomic<std::uint64_t> doubts{0};
  Atomic<std::uint64_t> suspects{0};  ///< the place up to which ops may have had one of those; changed under the lock
  std::uint64_t reached = 0;          ///< as read in the present look
  std::uint64_t settles_at = 0;       ///< Watch::settling waits for the op at this place
  Plain<ErrorRef> root;               ///< the root of a lost device; written once, before `lost`
};

/// While it lives the calling thread issues the op: tells a provider that wants to know.
template <class P>
class IssueRange {
 public:
  IssueRange(DeviceQueue<P>& queue, const char* name) : provider_(queue.ranges ? &queue.provider : nullptr) {
    if (provider_) provider_->range_begins(name);
  }
  ~IssueRange() {
    if (provider_) provider_->range_ends();
  }
  IssueRange(const IssueRange&) = delete;
  IssueRange& operator=(const IssueRange&) = delete;

 private:
  Provider* const provider_;
};

/// The watcher of one provider's streams: a thread that is there while something is in flight, and a little longer.
template <class P>
struct Watch {
  enum : std::uint32_t { absent, active, parked, waking, ended };
  explicit Watch(std::shared_ptr<Provider> p) : provider(std::move(p)) {}

  const std::shared_ptr<Provider> provider;
  typename P::template Atomic<std::uint32_t> state{absent};
  typename P::template Atomic<std::int32_t> failed_starts{0};  ///< in a row
  typename P::Parker parker;
  typename P::template Plain<std::shared_ptr<CoreBase>> woken_for;  ///< its core, while it wakes
  typename P::Mutex mutex;  ///< held by the thread that finishes ops; guards what follows
  std::vector<DeviceQueue<P>*> queues;
  struct Device {
    std::uint64_t errors = 0;  ///< how many of its errors were read
    typename P::template Atomic<std::uint64_t> settled{0};
    bool lost = false;
    std::uint64_t seen = 0;  ///< the sum of `finished` of its queues when something was last found in flight
    std::int64_t since = 0;  ///< the time of the first look that found so, and something in flight; 0: none yet
  };
  std::vector<Device> devices;
  std::vector<LateError> late;  ///< errors of ops that are not finished yet
  std::uint64_t settled = 0;    ///< how many errors of all devices are settled (Core::settle_errors)
  std::uint64_t settling = 0;   ///< and how many are being settled
};

}  // namespace sluice::detail
