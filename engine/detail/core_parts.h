// The parts of Core's state: lanes, caps, waits and errors. Each says what it holds and what guards it; the functions
// that work on it are in core_lanes.h, core_caps.h, core_wait.h and core_circles.h, and core_errors.h.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sluice/engine/detail/core_base.h"
#include "sluice/engine/detail/device_queue.h"
#include "sluice/engine/detail/slot.h"

namespace sluice::detail {

/// Where ops run. Set when the engine is made, and not changed.
template <class P>
struct Lanes {
  struct Devices {
    std::size_t first_lane = 0;  ///< four for each device
    std::size_t count = 0;
  };
  std::vector<std::unique_ptr<Lane<P>>> all;  ///< the first is the I/O lane
  std::array<Devices, kDeviceKinds> devices;
  std::vector<std::shared_ptr<Watch<P>>> watches;  ///< of providers with streams
};

/// What bounds the work in flight: credits, one for each op, and bytes. Threads have credits in batches
/// (Slot::credits).
template <class P>
struct Caps {
  template <class T>
  using Atomic = typename P::template Atomic<T>;

  Caps(std::int64_t max_ops, std::size_t max_bytes)
      : batch(std::clamp<std::int64_t>(max_ops / 128, 1, 64)),
        small_bytes(max_bytes / 4 / static_cast<std::size_t>(max_ops)),
        credits(max_ops) {}

  std::int64_t batch;             ///< credits that a thread takes at a time
  const std::size_t small_bytes;  ///< so few are not counted: a whole cap of such ops has a quarter of max_bytes
  alignas(64) Atomic<std::int64_t> credits;
  Atomic<std::size_t> bytes{0};
  Atomic<std::int32_t> waiters{0};  ///< threads that wait for either
  typename P::Mutex mutex;          ///< guards the next
  std::vector<std::shared_ptr<WaitState<P>>> parked;
};

/// Threads that wait: for tickets, for variables without an end in sight, and in another engine.
template <class P>
struct Waits {
  using Wait = WaitState<P>;
  template <class T>
  using Atomic = typename P::template Atomic<T>;

  typename P::Mutex ticket_mutex;                               ///< guards the next
  std::multimap<std::uint64_t, std::shared_ptr<Wait>> tickets;  ///< by id

  std::mutex elsewhere_mutex;      ///< guards the next
  Elsewhere* elsewhere = nullptr;  ///< a list

  typename P::Mutex blocked_mutex;  ///< guards what follows
  Wait* blocked = nullptr;          ///< a list of the waits of threads whose slots say `blocked`, the latest first
  std::int64_t look_interval = 0, look_not_before = 0;
  std::uint64_t looks = 0;            ///< calls of all_stand
  Atomic<std::int64_t> next_look{0};  ///< for circles; changed under the mutex
  Atomic<std::int64_t> disowned{0};   ///< Borrows that are held and whose threads have ended; changed under the mutex
};

/// A root, and what the engine knows of it.
struct RootEntry {
  ErrorRef root;
  std::int64_t live_variables = 0;
  bool wrote_nothing = false;
  bool observed = false;
  bool told = false;  ///< `observed` is set because only bodies were told of it (Core::told)
};

/// The errors that the engine remembers. The mutex guards all but the atomics.
template <class P>
struct Errors {
  mutable typename P::Mutex mutex;
  std::map<std::uint64_t, RootEntry> roots;
  std::size_t many = std::size_t{1} << 13;  ///< with so many roots look_over_roots does its work
  std::atomic<bool> too_many{false};        ///< there were so many, and shed_roots was not called since
  std::atomic<bool> shedding{false};
  std::unordered_map<std::uint64_t, ErrorRef> failures;  ///< by ticket id
  std::deque<std::uint64_t> failure_order;
  ErrorRef stop_root;
  ErrorRef lost_root;  ///< of ops that fail while there is no memory for a root of their own; always in `roots`
  std::shared_ptr<const std::function<void(const ErrorRoot&)>> unobserved;  ///< the hook
};

}  // namespace sluice::detail
