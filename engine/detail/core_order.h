// Core<P>, the order of the host's accesses, for providers that observe it (order_observer.h): what the host's code
// comes after on the devices, by what its op lists and what its thread has waited for, and not by what happens to be
// over. If no provider observes it, order_ is null. If one does, each op has kOwnScope from its lane (Lane::path), so
// that no body runs on the common path.
//
// Such knowledge is a place for each lane. An op of the host has it from its variables' last uses on streams, and
// leaves it with them for the ops behind it, which may know the uses by it alone. A wait gives the waiting thread what
// the wait's own op has. A push hands nothing on: what an op touches it must list.
#pragma once

#include <algorithm>
#include <array>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

/// The rest of what an engine keeps for it.
template <class P>
struct Core<P>::HostOrder {
  static constexpr std::size_t kTickets = 65'536;
  /// A provider that is told.
  struct Told {
    Provider* provider;
    OrderObserver* observer;
  };
  std::vector<Told> told;
  std::mutex mutex;                                      ///< guards what follows, and VariableRare::host
  std::unordered_map<std::uint64_t, HostClock> tickets;  ///< what comes with the end of an op, by its id
  std::deque<std::uint64_t> ids;                         ///< of them, in the order in which they came
  std::atomic<bool> forgets{false};  ///< there was no memory for something: what is passed is taken as known
};

template <class P>
void Core<P>::prepare_order() {
  if (!P::kOwnThreads) return;
  std::vector<typename HostOrder::Told> told;
  for (const auto& provider : options_.providers) {
    auto* const observer = dynamic_cast<OrderObserver*>(provider.get());
    if (observer && observer->watches_host()) told.push_back({provider.get(), observer});
  }
  if (told.empty()) return;
  order_ = std::make_unique<HostOrder>();
  order_->told = std::move(told);
  quick_waits_ = false;
  for (auto& lane : lanes_.all) lane->path |= kOwnScope;
}

/// Tells the providers what the calling thread knows as passed: `at` says the place in each lane, 0 for none.
template <class P>
template <class At>
void Core<P>::tell_places(bool afresh, At&& at) noexcept {
  for (const auto& [provider, observer] : order_->told) {
    std::array<StreamEvent, 16> events;
    std::size_t count = 0;
    bool begins = afresh;
    for (const auto& lane : lanes_.all) {
      if (!lane->queue || &lane->queue->provider != provider) continue;
      const std::uint64_t place = at(*lane);
      if (place == 0) continue;
      if (count == events.size()) {
        observer->host_after(events, std::exchange(begins, false));
        count = 0;
      }
      events[count++] = {lane->stream, place};
    }
    observer->host_after(std::span(events).first(count), begins);  // also if it knows of nothing
  }
}

template <class P>
void Core<P>::tell_host(bool afresh, const HostClock& clock) noexcept {
  if (order_->forgets.load(std::memory_order_relaxed)) return tell_passed(afresh);
  tell_places(afresh, [&](const Lane<P>& lane) { return lane.index < clock.size() ? clock[lane.index] : 0; });
}

/// After a wait for everything, or where nothing better is known.
template <class P>
void Core<P>::tell_passed(bool afresh) noexcept {
  tell_places(afresh, [](const Lane<P>& lane) { return lane.stream->reached(); });
}

/// After the end of an op, which a ticket told.
template <class P>
void Core<P>::tell_ticket(std::uint64_t id) noexcept {
  HostClock clock;
  bool known = false;
  try {
    std::lock_guard lock(order_->mutex);
    const auto it = order_->tickets.find(id);
    known = it != order_->tickets.end();
    if (known) clock = it->second;
  } catch (const std::bad_alloc&) {
    known = false;
  }
  known ? tell_host(false, clock) : tell_passed(false);
}

template <class P>
void Core<P>::raise_clock(HostClock& clock, const HostClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

/// What an op knows that has the right to complete these accesses.
template <class P>
template <class Accesses>
auto Core<P>::known_to_host(const Accesses& accesses) noexcept -> HostClock try {
  HostClock clock(lanes_.all.size());
  const auto add = [&](std::uint64_t use) {
    if (use == 0) return;
    if (use != StreamUses<P>::kAnyLane) {
      std::uint64_t& at = clock[StreamUse::lane(use)];
      at = std::max(at, StreamUse::place(use));
      return;
    }
    for (const auto& lane : lanes_.all)
      if (lane->queue) clock[lane->index] = std::max(clock[lane->index], lane->stream->reached());
  };
  std::lock_guard lock(order_->mutex);
  for (const auto& a : accesses) {
    const VariableRare<P>* const rare = a.variable->rare.load(std::memory_order_acquire);
    if (!rare) continue;
    add(rare->uses.last_write.load(std::memory_order_relaxed));
    if (rare->host) raise_clock(clock, rare->host->writes);
    if (a.mode == AccessMode::read) continue;
    for (const auto& r : rare->uses.reads) add(r.load(std::memory_order_relaxed));
    if (rare->host) raise_clock(clock, rare->host->reads);
  }
  return clock;
} catch (...) {
  order_->forgets.store(true, std::memory_order_relaxed);
  return {};
}

/// Leaves what an op of the host knows with its variables, for those that come after it.
template <class P>
template <class Accesses>
void Core<P>::leave_order(const Accesses& accesses) noexcept {
  const HostClock clock = known_to_host(accesses);
  if (std::all_of(clock.begin(), clock.end(), [](std::uint64_t at) { return at == 0; })) return;
  try {
    for (const auto& a : accesses) {
      VariableRare<P>& rare = rare_of(*a.variable);
      std::lock_guard lock(order_->mutex);
      if (!rare.host) rare.host = std::make_unique<HostUses>();
      raise_clock(a.mode == AccessMode::read ? rare.host->reads : rare.host->writes, clock);
      if (a.mode != AccessMode::read) rare.host->reads.clear();
    }
  } catch (...) {
    order_->forgets.store(true, std::memory_order_relaxed);
  }
}

/// The same, also for those that wait for the op's end.
template <class P>
void Core<P>::pass_order(Op* op) noexcept {
  leave_order(tokens(op));
  keep_order(id_of(op), known_to_host(tokens(op)));
}

template <class P>
void Core<P>::keep_order(std::uint64_t id, HostClock&& clock) noexcept try {
  std::lock_guard lock(order_->mutex);
  order_->ids.push_back(id);
  order_->tickets.insert_or_assign(id, std::move(clock));
  if (order_->ids.size() <= HostOrder::kTickets) return;
  order_->tickets.erase(order_->ids.front());
  order_->ids.pop_front();
} catch (...) {
  // tell_ticket does without
}

/// Called before the ops of a stream at these places are over on the host.
template <class P>
void Core<P>::keep_places(DeviceQueue<P>& queue, std::uint64_t first, std::uint64_t last) noexcept {
  for (std::uint64_t at = first; at <= last; ++at) {
    const Run* const run = queue.ring[at % DeviceQueue<P>::kRing];
    if (run->is(kCaptured)) continue;
    try {
      HostClock clock(lanes_.all.size());
      clock[run->lane] = at;
      keep_order(id_of(static_cast<const Op*>(run)), std::move(clock));
    } catch (...) {
      // tell_ticket does without
    }
  }
}

/// Tells the observer of a stream what its next op comes after through ops of the host.
template <class P>
template <class Accesses>
void Core<P>::order_after_host(DeviceQueue<P>& queue, const Accesses& accesses) noexcept {
  if (!queue.observer) return;
  HostClock clock;
  try {
    std::lock_guard lock(order_->mutex);
    for (const auto& a : accesses) {
      const HostUses* const host = a.variable->rare.load(std::memory_order_relaxed)->host.get();
      if (!host) continue;
      raise_clock(clock, host->writes);
      if (a.mode != AccessMode::read) raise_clock(clock, host->reads);
    }
  } catch (...) {
    order_->forgets.store(true, std::memory_order_relaxed);
  }
  const bool forgets = order_->forgets.load(std::memory_order_relaxed);
  for (const auto& lane : lanes_.all) {
    if (!lane->queue || lane->queue.get() == &queue || &lane->queue->provider != &queue.provider) continue;
    const std::uint64_t at = forgets ? lane->stream->reached() : lane->index < clock.size() ? clock[lane->index] : 0;
    const StreamEvent passed{lane->stream, at};
    if (at > 0) queue.observer->stream_after(*queue.stream, {&passed, 1});
  }
}

/// While it lives, the calling thread is in a body: it knows what the op comes after, and nothing else. A body that
/// issues work to a stream knows nothing, because what its op comes after need not be over.
template <class P>
class Core<P>::HostBody {
 public:
  HostBody(Core& core, Operation& operation, const Lane<P>& lane) : core_(core.order_ ? &core : nullptr) {
    if (core_) [[unlikely]]
      begin(operation, lane);
  }
  ~HostBody() {
    if (core_) [[unlikely]]
      for (const auto& each : core_->order_->told) each.observer->host_returns();
  }
  HostBody(const HostBody&) = delete;
  HostBody& operator=(const HostBody&) = delete;

 private:
  void begin(Operation& operation, const Lane<P>& lane) {
    if (lane.queue) {
      core_->tell_places(true, [](const Lane<P>&) { return std::uint64_t{0}; });
    } else if (operation.kind == OpKind::captured) {
      core_->tell_host(true, core_->known_to_host(static_cast<Info&>(operation).accesses));
    } else {
      core_->tell_host(true, core_->known_to_host(core_->tokens(static_cast<Op*>(&operation))));
    }
  }
  Core* const core_;
};

}  // namespace sluice::detail
