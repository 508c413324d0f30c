#include "sluice/resources/testing/order_record.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "sluice/engine/errors.h"

namespace sluice {
namespace {

constexpr std::size_t kVersions = 1024, kReported = 10000;
constexpr OrderRecord::Stream kHost = std::numeric_limits<OrderRecord::Stream>::max();
const std::string kHostName = "the host";

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

std::string name_of(const OrderRecord::Caller& caller) {
  if (caller.label.name) return "[" + std::string(caller.label.name) + "] " + to_string(caller.label.where);
  const std::string name = caller.op.id == 0 ? "no op" : "op " + std::to_string(caller.op.id);
  return caller.label.where.line() == 0 ? name : name + " " + to_string(caller.label.where);
}

void raise(std::vector<std::uint64_t>& clock, std::size_t component, std::uint64_t to) {
  if (clock.size() <= component) clock.resize(component + 1);
  clock[component] = std::max(clock[component], to);
}

void join(std::vector<std::uint64_t>& clock, const std::vector<std::uint64_t>& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

/// A number that no other thread has, nor had.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = threads.fetch_add(1);
  return number;
}

}  // namespace

OrderRecord::OrderRecord(std::function<void(std::string)> report) : report_(std::move(report)) {}

template <class F>
void OrderRecord::guarded(F f) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (!forgets_) f();
  } catch (...) {  // out of memory: an order that is not kept would be missed later
    forget();
  }
}

void OrderRecord::forget() noexcept {
  std::lock_guard lock(mutex_);
  forgets_ = true;
}

OrderRecord::Stream OrderRecord::add(std::string name, const std::atomic<std::uint64_t>* reached,
                                     std::function<bool()> lost) {
  std::lock_guard lock(mutex_);
  streams_.emplace_back();
  streams_.back().name = std::move(name);
  streams_.back().reached = reached;
  streams_.back().lost = std::move(lost);
  return static_cast<Stream>(streams_.size() - 1);
}

void OrderRecord::remove(Stream stream) noexcept {
  guarded([&] {
    StreamState& state = streams_[stream];
    state.gone = true;
    state.held.clear();
    run_held();
  });
  std::lock_guard lock(mutex_);
  streams_[stream].gone = true;
  streams_[stream].reached = nullptr;
}

// ---- the commands of a stream

void OrderRecord::recorded(Stream stream, std::uint64_t point) noexcept {
  guarded([&] { issue(stream, Recorded{point}); });
}

void OrderRecord::waits(Stream stream, Stream other, std::uint64_t point) noexcept {
  if (stream != other) guarded([&] { issue(stream, Join{other, point}); });
}

void OrderRecord::ordered_after(Stream stream, Stream other, std::uint64_t point, const Caller& caller) noexcept {
  if (stream == other) return;
  guarded([&] {
    const StreamState& state = streams_[other];
    if (!state.over() && state.reached->load() < point && is_new(caller, caller, "early")) {
      report_(name_of(caller) + " takes a point of " + state.name + " as passed that is not");
    }
    issue(stream, Join{other, point});
  });
}

void OrderRecord::touches(Stream stream, std::span<const MemoryUse> uses, const Caller& caller) noexcept {
  guarded([&] {
    for (const MemoryUse& use : uses) {
      if (use.bytes > 0) issue(stream, Touch{use, caller});
    }
  });
}

void OrderRecord::allocated(Stream stream, const void* block, std::size_t bytes, const Caller& caller) noexcept {
  guarded([&] { issue(stream, Allocated{block, bytes, caller}); });
}

void OrderRecord::freed(Stream stream, const void* block, const Caller& caller) noexcept {
  guarded([&] { issue(stream, Freed{block, caller}); });
}

void OrderRecord::issue(Stream stream, const Command& command) {
  StreamState& state = streams_[stream];
  if (!state.held.empty() || !execute(stream, command)) {
    state.held.push_back(command);
    holds_ = true;
  } else if (holds_ && std::holds_alternative<Recorded>(command)) {
    run_held();
  }
}

/// Whatever need not wait any more, and what that lets go on.
void OrderRecord::run_held() {
  for (bool went = true; went;) {
    went = holds_ = false;
    for (Stream stream = 0; stream < streams_.size(); ++stream) {
      auto& held = streams_[stream].held;
      for (; !held.empty() && execute(stream, held.front()); held.pop_front()) went = true;
      holds_ |= !held.empty();
    }
  }
}

/// False where it has to wait.
bool OrderRecord::execute(Stream stream, const Command& command) {
  if (const auto* const other = std::get_if<Join>(&command)) return execute(stream, *other);
  if (const auto* const point = std::get_if<Recorded>(&command)) execute(stream, *point);
  if (const auto* const touch = std::get_if<Touch>(&command)) execute(stream, *touch);
  if (const auto* const block = std::get_if<Allocated>(&command)) execute(stream, *block);
  if (const auto* const block = std::get_if<Freed>(&command)) execute(stream, *block);
  return true;
}

void OrderRecord::execute(Stream stream, const Recorded& recorded) { streams_[stream].last = recorded.point; }

bool OrderRecord::execute(Stream stream, const Join& other) {
  const StreamState& target = streams_[other.other];
  if (!target.over() && target.last < other.point) return false;
  StreamState& state = streams_[stream];
  Clock clock = state.clock;
  join(clock, clock_at(other.other, other.point));
  raise(clock, other.other, other.point);
  if (clock == state.clock) return true;
  state.clock = clock;
  if (!state.versions.empty() && state.versions.back().after == state.last) {
    state.versions.back().clock = std::move(clock);
    return true;
  }
  state.versions.push_back({state.last, std::move(clock)});
  if (state.versions.size() > kVersions) {
    state.versions.pop_front();
    state.pruned = true;
  }
  return true;
}

/// The stream's clock as of the first recorded point not below: all joins before that, which are those that came when
/// less than `point` was recorded.
OrderRecord::Clock OrderRecord::clock_at(Stream stream, std::uint64_t point) const {
  const StreamState& state = streams_[stream];
  const auto next = std::partition_point(state.versions.begin(), state.versions.end(),
                                         [&](const Version& v) { return v.after < point; });
  if (next != state.versions.begin()) return std::prev(next)->clock;
  // Of what is forgotten more is taken as ordered than was: never less.
  if (state.pruned) return state.versions.front().clock;
  return {};
}

void OrderRecord::execute(Stream stream, const Touch& touch) {
  const StreamState& state = streams_[stream];
  const auto at = find(touch.use.begin);
  if (at == allocations_.end()) return;
  Access access{stream, touch.use.writes, touch.use.writes ? "writes" : "reads", state.last, 0, 0, touch.caller};
  if (!place(touch, state.name, at, access)) return;
  Allocation& allocation = at->second;
  allocation.accesses.conflicts(access.begin, access.end, access.writes, [&](const Access& earlier) {
    if (!is_before(earlier, stream, state.clock)) report(earlier, access, state.name, allocation);
  });
  allocation.accesses.enter(access);
}

void OrderRecord::execute(Stream stream, const Allocated& allocated) {
  if (Allocation* const allocation = begin_allocation(allocated.block, allocated.bytes)) {
    allocation->accesses.enter(
        {stream, true, "allocates", streams_[stream].last, 0, allocated.bytes, allocated.caller});
  }
}

void OrderRecord::execute(Stream stream, const Freed& freed) {
  const auto at = find(freed.block);
  if (at == allocations_.end() || !at->second.live) return;
  const StreamState& state = streams_[stream];
  Allocation& allocation = at->second;
  const Access access{stream, true, "frees", state.last, 0, allocation.bytes, freed.caller};
  allocation.accesses.conflicts(0, allocation.bytes, true, [&](const Access& earlier) {
    if (!is_before(earlier, stream, state.clock)) report(earlier, access, state.name, allocation);
  });
  allocation.live = false;
  allocation.freed = freed.caller;
  allocation.accesses = detail::AccessMap(allocation.bytes);
}

// ---- the host

void OrderRecord::allocated(const void* block, std::size_t bytes) noexcept {
  guarded([&] { begin_allocation(block, bytes); });
}

void OrderRecord::freed(const void* block, const Caller& caller) noexcept {
  guarded([&] {
    const auto at = find(block);
    if (at == allocations_.end() || !at->second.live) return;
    Allocation& allocation = at->second;
    const Access access{kHost, true, "frees", 0, 0, allocation.bytes, caller};
    allocation.accesses.conflicts(0, allocation.bytes, true, [&](const Access& earlier) {
      if (!is_passed(earlier)) report(earlier, access, kHostName, allocation);
    });
    allocation.live = false;
    allocation.freed = caller;
    allocation.accesses = detail::AccessMap(allocation.bytes);
  });
}

void OrderRecord::raise_all(Clock& clock, Points passed) const {
  for (const auto& [stream, point] : passed) {
    join(clock, clock_at(stream, point));
    raise(clock, stream, point);
  }
}

void OrderRecord::host_after(Points passed, bool afresh) noexcept {
  guarded([&] {
    std::vector<Clock>& told = told_[this_thread()];
    if (afresh || told.empty()) told.emplace_back();
    raise_all(told.back(), passed);
  });
}

void OrderRecord::host_returns() noexcept {
  guarded([&] {
    const auto told = told_.find(this_thread());
    if (told == told_.end()) return;
    told->second.pop_back();
    if (told->second.empty()) told_.erase(told);
  });
}

void OrderRecord::block_reused(const void* block) noexcept {
  guarded([&] {
    const auto at = find(block);
    if (at == allocations_.end() || !at->second.live) return;
    at->second.accesses.forget([&](const Access& access) { return is_passed(access); });
  });
}

void OrderRecord::host_touches(std::span<const MemoryUse> uses, const Caller& caller) noexcept {
  guarded([&] {
    const auto thread = told_.find(this_thread());
    const Clock* const told = thread == told_.end() ? nullptr : &thread->second.back();
    for (const MemoryUse& use : uses) {
      const auto at = find(use.begin);
      if (use.bytes == 0 || at == allocations_.end()) continue;
      Access access{kHost, use.writes, use.writes ? "writes" : "reads", 0, 0, 0, caller};
      if (!place({use, caller}, kHostName, at, access)) continue;
      const Allocation& allocation = at->second;
      allocation.accesses.conflicts(access.begin, access.end, access.writes, [&](const Access& earlier) {
        if (told ? !is_before(earlier, kHost, *told) : !is_passed(earlier)) {
          report(earlier, access, kHostName, allocation);
        }
      });
      // What is held back has not even begun.
      for (Stream stream = 0; stream < streams_.size(); ++stream) {
        for (const Command& command : streams_[stream].held) {
          const auto* const touch = std::get_if<Touch>(&command);
          if (!touch || (!touch->use.writes && !use.writes) || find(touch->use.begin) != at) continue;
          Access held{stream, touch->use.writes, touch->use.writes ? "writes" : "reads", 0, 0, 0, touch->caller};
          held.begin = address_of(touch->use.begin) - at->first;
          held.end = held.begin + touch->use.bytes;
          if (held.begin < access.end && held.end > access.begin) report(held, access, kHostName, allocation);
        }
      }
    }
  });
}

// ---- allocations

OrderRecord::Allocation* OrderRecord::begin_allocation(const void* block, std::size_t bytes) {
  const std::uintptr_t begin = address_of(block), end = begin + std::max<std::size_t>(bytes, 1);
  // What was freed there before is history.
  auto at = allocations_.lower_bound(begin);
  if (at != allocations_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > begin) --at;
  while (at != allocations_.end() && at->first < end) at = allocations_.erase(at);
  return &allocations_.emplace(begin, Allocation{bytes, true, {}, detail::AccessMap(bytes)}).first->second;
}

OrderRecord::Allocations::iterator OrderRecord::find(const void* address) {
  const auto next = allocations_.upper_bound(address_of(address));
  if (next == allocations_.begin()) return allocations_.end();
  const auto at = std::prev(next);
  return address_of(address) - at->first < std::max<std::size_t>(at->second.bytes, 1) ? at : allocations_.end();
}

bool OrderRecord::place(const Touch& touch, const std::string& stream, Allocations::iterator at, Access& access) {
  const Allocation& allocation = at->second;
  access.begin = address_of(touch.use.begin) - at->first;
  access.end = access.begin + std::min(touch.use.bytes, allocation.bytes - access.begin);
  if (!allocation.live) {
    if (is_new(allocation.freed, touch.caller, "freed")) {
      report_("use after free: " + describe(access, stream) + " of a block that " + name_of(allocation.freed) +
              " had freed");
    }
    return false;
  }
  if (touch.use.bytes > allocation.bytes - access.begin && is_new(touch.caller, touch.caller, "outside")) {
    report_(describe(access, stream) + " and more, behind the end of a block of " + std::to_string(allocation.bytes) +
            " bytes");
  }
  return true;
}

void OrderRecord::undeclared(const Caller& caller) noexcept {
  guarded([&] {
    if (is_new(caller, caller, "undeclared")) {
      report_(name_of(caller) + " has a kernel that touches memory which its launch did not name");
    }
  });
}

// ---- judgement and reports

bool OrderRecord::is_before(const Access& earlier, Stream stream, const Clock& clock) const {
  if (earlier.stream == stream || streams_[earlier.stream].over()) return true;
  return earlier.stream < clock.size() && clock[earlier.stream] > earlier.after;
}

bool OrderRecord::is_passed(const Access& access) const {
  const StreamState& stream = streams_[access.stream];
  return stream.over() || stream.reached->load() > access.after;
}

bool OrderRecord::is_new(const Caller& a, const Caller& b, const char* kind) {
  const auto place = [](const Caller& c) {
    return c.label.where.line() != 0 ? std::uint64_t{c.label.where.line()} : c.op.id;
  };
  return reported_.size() < kReported && reported_.emplace(a.label.name, place(a), b.label.name, place(b), kind).second;
}

std::string OrderRecord::describe(const Access& access, const std::string& stream) const {
  return name_of(access.caller) + " " + access.verb + " bytes [" + std::to_string(access.begin) + ", " +
         std::to_string(access.end) + ") on " + stream;
}

void OrderRecord::report(const Access& earlier, const Access& later, const std::string& stream,
                         const Allocation& allocation) {
  if (!is_new(earlier.caller, later.caller, later.verb)) return;
  report_("accesses without order: " + describe(earlier, streams_[earlier.stream].name) + ", and " +
          describe(later, stream) + ", of a block of " + std::to_string(allocation.bytes) + " bytes");
}

std::unique_ptr<AccessObserver> order_record(std::function<void(std::string)> report) {
  return std::make_unique<OrderRecord>(std::move(report));
}

}  // namespace sluice
