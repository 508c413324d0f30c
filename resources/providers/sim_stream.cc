#include "sluice/resources/providers/detail/sim_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <typeinfo>
#include <utility>

#include "sluice/engine/errors.h"

namespace sluice::detail {
namespace {

constexpr std::array kLanes = {"compute", "copy_in", "copy_out", "copy_peer", "io"};

thread_local const KernelContext* kernel_here = nullptr;

LateError planted(const char* what, std::uint64_t number, DeviceOp op) {
  return {op, std::make_exception_ptr(SimError("planted: " + std::string(what) + " " + std::to_string(number))), false};
}

}  // namespace

const KernelContext* current_kernel() noexcept { return kernel_here; }

/// Shared with the stream's thread and with streams that wait for it: what a command let go of may have destroyed the
/// stream.
struct SimStream::State {
  State(std::shared_ptr<SimCore> c, int d, std::uint64_t seed)
      : core(std::move(c)), device(d), random(static_cast<std::minstd_rand::result_type>(seed)) {}
  const std::shared_ptr<SimCore> core;
  const int device;
  AccessObserver::Stream observed_as = 0;  ///< where there is an observer
  std::mutex mutex;
  std::condition_variable issued, passed;
  std::vector<Command> queue;              ///< with the mutex
  std::uint64_t late_record = 0;           ///< a point after all of the queue, for which it had no room; with the mutex
  std::vector<DeviceTimes> spans;          ///< what was timed, at its number - 1; with the mutex, as the next
  std::vector<std::uint64_t> spare_spans;  ///< numbers
  std::atomic<bool> closing{false};        ///< set with the mutex
  std::atomic<bool> ended{false};          ///< the thread is done
  std::atomic<std::uint64_t> reached{0};
  std::atomic<int> awaiting{0};  ///< threads in await()
  std::minstd_rand random;       ///< the thread's

  SimControl& control() const { return *core->control; }
  /// What does not answer would never be worked off.
  bool gives_up() const { return closing.load() && control().broken(); }
  void take_time() {
    const SimOptions& options = core->options;
    auto time = options.delay;
    if (options.random_delay.count() > 0) {
      time += std::chrono::microseconds(
          std::uniform_int_distribution<std::int64_t>(0, options.random_delay.count())(random));
    }
    if (time.count() > 0) std::this_thread::sleep_for(time);
  }
};

SimStream::SimStream(std::shared_ptr<SimCore> core, int device, LaneKind lane)
    : state_(std::make_shared<State>(core, device, core->options.seed * 1000003 + core->streams.fetch_add(1) + 1)) {
  if (core->observer) {
    state_->observed_as = core->observer->add(
        to_string(sim(device)) + " " + kLanes[static_cast<std::size_t>(lane)], &state_->reached,
        [control = core->control, device] { return control->condition(device) == SimControl::Condition::lost; });
  }
}

SimStream::~SimStream() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closing.store(true);
  }
  state_->issued.notify_all();
  state_->core->advance();  // a thread that stands before a silent device
  if (!thread_.joinable()) {
    state_->ended.store(true);
    state_->core->advance();
  } else if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // what its own last kernel held let go of the stream; it ends after it, on its own share
  } else {
    thread_.join();
  }
  if (AccessObserver* const observer = state_->core->observer.get()) observer->remove(state_->observed_as);
}

AccessObserver::Stream SimStream::observed_as() const { return state_->observed_as; }
const SimCore* SimStream::core() const { return state_->core.get(); }

/// With the mutex. Where it throws, nothing is issued.
void SimStream::push(Command command) {
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { work(*state); });
  state_->queue.push_back(std::move(command));
  if (state_->queue.size() == 1) state_->issued.notify_one();
}

/// Queues a command, and then, in the same order, calls `tell(observer)` where there is one.
template <class F>
void SimStream::issue(Command command, F tell) {
  const std::shared_ptr<State> state = state_;  // the command may run at once, and let go of the stream
  std::lock_guard lock(state->mutex);
  push(std::move(command));
  if (AccessObserver* const observer = state->core->observer.get()) tell(*observer);
}

bool SimStream::record(std::uint64_t point) noexcept {
  try {
    issue(Record{point}, [&](AccessObserver& observer) { observer.recorded(state_->observed_as, point); });
    return true;
  } catch (...) {  // no memory, or no thread
  }
  {
    std::lock_guard lock(state_->mutex);
    if (thread_.joinable()) {
      state_->late_record = point;
    } else {
      state_->reached.store(point);  // nothing was ever issued
    }
    if (AccessObserver* const observer = state_->core->observer.get()) observer->recorded(state_->observed_as, point);
  }
  state_->issued.notify_one();
  state_->core->advance();
  return true;
}

std::uint64_t SimStream::reached() const noexcept { return state_->reached.load(std::memory_order_acquire); }

bool SimStream::wait(const StreamEvent& event) {
  if (!event.stream || event.stream == this) return true;
  if (typeid(*event.stream) != typeid(SimStream)) return false;
  const auto& other = static_cast<SimStream*>(event.stream)->state_;
  if (other->core != state_->core) return false;
  issue(Wait{other, event.point},
        [&](AccessObserver& observer) { observer.waits(state_->observed_as, other->observed_as, event.point); });
  return true;
}

void SimStream::ordered_after(std::span<const StreamEvent> passed) noexcept {
  AccessObserver* const observer = state_->core->observer.get();
  if (!observer) return;
  std::lock_guard lock(state_->mutex);
  for (const StreamEvent& event : passed) {
    if (!event.stream || typeid(*event.stream) != typeid(SimStream)) continue;
    const State& other = *static_cast<SimStream*>(event.stream)->state_;
    if (other.core != state_->core) continue;
    observer->ordered_after(state_->observed_as, other.observed_as, event.point, state_->core->caller());
  }
}

void SimStream::await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept {
  if (reached() >= point) return;
  std::unique_lock lock(state_->mutex);
  state_->awaiting.fetch_add(1);
  state_->passed.wait_for(lock, sensible(limit), [&] { return state_->reached.load() >= point; });
  state_->awaiting.fetch_sub(1);
}

void SimStream::launch(std::function<void()> kernel, std::span<const MemoryUse> uses) {
  if (!kernel) throw UsageError("a null kernel");
  SimCore& core = *state_->core;
  core.check_entered(state_->device);
  if (const auto n = state_->control().counts(SimFault::launch)) throw SimError("planted: launch " + std::to_string(n));
  const AccessObserver::Caller caller = core.caller();
  Kernel command{std::move(kernel), caller, {}};
  if (core.observer) command.uses.assign(uses.begin(), uses.end());
  issue(std::move(command), [&](AccessObserver& observer) { observer.touches(state_->observed_as, uses, caller); });
}

void SimStream::copy(void* to, const void* from, std::size_t bytes) {
  SimCore& core = *state_->core;
  if (const auto n = state_->control().counts(SimFault::copy)) throw SimError("planted: copy " + std::to_string(n));
  const AccessObserver::Caller caller = core.caller();
  issue(Copy{core.reach(to, bytes, false), core.reach(from, bytes, false), bytes, caller.op},
        [&](AccessObserver& observer) {
          observer.touches(state_->observed_as, {{{from, bytes, false}, {to, bytes, true}}}, caller);
        });
}

void SimStream::fill(void* to, std::byte value, std::size_t bytes) {
  SimCore& core = *state_->core;
  if (const auto n = state_->control().counts(SimFault::copy)) throw SimError("planted: copy " + std::to_string(n));
  const AccessObserver::Caller caller = core.caller();
  issue(Fill{core.reach(to, bytes, false), value, bytes, caller.op}, [&](AccessObserver& observer) {
    observer.touches(state_->observed_as, {{{to, bytes, true}}}, caller);
  });
}

std::uint64_t SimStream::begin_times() noexcept try {
  std::lock_guard lock(state_->mutex);
  if (state_->spare_spans.empty()) {
    state_->spare_spans.reserve(state_->spans.size() + 1);  // take_times() must not fail
    state_->spans.emplace_back();
    state_->spare_spans.push_back(state_->spans.size());
  }
  const std::uint64_t span = state_->spare_spans.back();
  state_->spans[span - 1] = {};
  push(Time{span, &DeviceTimes::begin});
  state_->spare_spans.pop_back();
  return span;
} catch (...) {
  return 0;  // no memory, or no thread
}

void SimStream::end_times(std::uint64_t span) noexcept try {
  std::lock_guard lock(state_->mutex);
  push(Time{span, &DeviceTimes::end});
} catch (...) {
  // It has no end.
}

bool SimStream::take_times(std::uint64_t span, DeviceTimes& times) noexcept {
  std::lock_guard lock(state_->mutex);
  const DeviceTimes found = state_->spans[span - 1];
  state_->spare_spans.push_back(span);
  if (found.begin == 0 || found.end == 0) return false;
  times = found;
  return true;
}

void* SimStream::allocate(int device, std::size_t bytes) noexcept {
  SimCore& core = *state_->core;
  // With the queue, so that the observer sees what happens to a block in its order.
  std::lock_guard lock(state_->mutex);
  void* const block = core.devices[static_cast<std::size_t>(device)]->memory.allocate(bytes, state_.get());
  if (block && core.observer) core.observer->allocated(state_->observed_as, block, bytes, core.caller());
  return block;
}

bool SimStream::free(void* block, int device) noexcept {
  SimCore& core = *state_->core;
  std::lock_guard lock(state_->mutex);
  const std::uint64_t ticket = core.devices[static_cast<std::size_t>(device)]->memory.begin_free(block, state_.get());
  if (ticket == 0) return false;
  try {
    push(Free{block, ticket, device});
  } catch (...) {
    // No memory for the command. The block stays taken: what is lost is room, and it comes back with the provider.
  }
  if (core.observer) core.observer->freed(state_->observed_as, block, core.caller());
  return true;
}

void SimStream::work(State& state) {
  std::vector<Command> batch;
  for (;;) {
    Record late{};
    {
      std::unique_lock lock(state.mutex);
      state.issued.wait(lock, [&] { return state.closing.load() || !state.queue.empty() || state.late_record != 0; });
      if (state.queue.empty() && state.late_record == 0) break;
      batch.swap(state.queue);
      late.point = std::exchange(state.late_record, 0);
    }
    for (Command& command : batch) {
      std::visit([&](auto& c) { execute(state, c); }, command);
      command.emplace<std::monostate>();  // what a kernel holds lives until it is over, and no longer
    }
    batch.clear();
    if (late.point > state.reached.load()) execute(state, late);
  }
  state.ended.store(true);
  state.core->advance();
}

/// Before each command: waits while the device is silent. False: the command is dropped.
bool SimStream::goes_on(State& state) {
  using Condition = SimControl::Condition;
  for (;;) {
    const Condition now = state.control().condition(state.device);
    if (state.gives_up() || now == Condition::lost) return false;
    if (now == Condition::alive) return true;
    state.core->await([&] { return state.gives_up() || state.control().condition(state.device) != Condition::silent; });
  }
}

/// While it lives its stream may be touching memory. It is counted before it is asked whether the device is lost; so
/// whoever finds a lost device without any knows that none will come.
class SimStream::Running {
 public:
  explicit Running(State& state)
      : state_(state), device_(*state.core->devices[static_cast<std::size_t>(state.device)]) {
    device_.running.fetch_add(1);
  }
  ~Running() {
    if (device_.running.fetch_sub(1) == 1 && state_.control().broken()) state_.core->advance();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  State& state_;
  SimDevice& device_;
};

void SimStream::execute(State& state, Kernel& kernel) {
  state.control().come_to_kernel(state.device);
  const Running running(state);
  if (!goes_on(state)) return;
  state.take_time();
  if (const auto n = state.control().counts(SimFault::late_kernel)) {
    return state.core->report_error(state.device, planted("kernel", n, kernel.caller.op));
  }
  const KernelContext context{state.core.get(), state.device, kernel.caller, kernel.uses};
  kernel_here = &context;
  try {
    kernel.run();
  } catch (...) {
    state.core->report_error(state.device, {kernel.caller.op, std::current_exception(), false});
  }
  kernel_here = nullptr;
}

void SimStream::execute(State& state, Copy& copy) {
  const Running running(state);
  if (!goes_on(state)) return;
  state.take_time();
  if (const auto n = state.control().counts(SimFault::late_copy)) {
    return state.core->report_error(state.device, planted("late copy", n, copy.op));
  }
  if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
}

void SimStream::execute(State& state, Fill& fill) {
  const Running running(state);
  if (!goes_on(state)) return;
  state.take_time();
  if (const auto n = state.control().counts(SimFault::late_copy)) {
    return state.core->report_error(state.device, planted("late copy", n, fill.op));
  }
  if (fill.bytes > 0) std::memset(fill.to, std::to_integer<int>(fill.value), fill.bytes);
}

/// Dropped streams' memory comes back, too.
void SimStream::execute(State& state, Free& free) {
  (void)goes_on(state);
  state.core->end_free(free.device, free.block, free.ticket);
}

void SimStream::execute(State& state, Wait& wait) {
  if (!goes_on(state)) return;
  const State& other = *wait.other;
  const auto lost = [&](int device) { return state.control().condition(device) == SimControl::Condition::lost; };
  const auto over = [&] {
    return other.reached.load() >= wait.point || other.ended.load() || state.gives_up() || lost(other.device) ||
           lost(state.device);
  };
  if (!over()) state.core->await(over);
}

void SimStream::execute(State& state, Time& time) {
  if (!goes_on(state)) return;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::lock_guard lock(state.mutex);
  state.spans[time.span - 1].*time.which = now;
}

void SimStream::execute(State& state, Record& record) {
  if (!goes_on(state)) return;
  state.reached.store(record.point);
  if (state.awaiting.load() > 0) {
    { std::lock_guard lock(state.mutex); }
    state.passed.notify_all();
  }
  state.core->advance();
}

}  // namespace sluice::detail
