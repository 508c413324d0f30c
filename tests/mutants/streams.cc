// Devices with streams under the explorer.
#include "streams.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "chosen.h"

namespace sluice::mutants {
namespace {

using detail::ExplorePolicy;
template <class T>
using Atomic = ExplorePolicy::Atomic<T>;

class ExploredStream;

/// One device.
struct Condition {
  Atomic<std::uint64_t> reports{0};
  Atomic<bool> lost{false}, silent{false};
  ExplorePolicy::Mutex mutex;
  std::deque<LateError> late;  ///< the last reports; under the mutex
  std::vector<ExploredStream*> streams;
};

/// What the streams of a provider share.
struct Devices {
  explicit Devices(const DeviceTraits& t) : traits(t), devices(static_cast<std::size_t>(t.count)) {}
  Condition& at(int device) { return devices[static_cast<std::size_t>(device)]; }
  void advance() { progress.fetch_add(1, std::memory_order_acq_rel); }
  void report(int device, LateError error) {
    Condition& c = at(device);
    {
      std::lock_guard lock(c.mutex);
      c.late.push_back(std::move(error));
      if (c.late.size() > traits.kept_errors) c.late.pop_front();
      c.reports.fetch_add(1, std::memory_order_release);
    }
    advance();
  }
  /// A thread waits until it is over; where time matters it looks once more at the limit, and then sees all that was
  /// passed before: no device is that slow.
  template <class Over>
  void wait(std::chrono::nanoseconds limit, Over&& over) {
    if (traits.timed) {
      if (!over()) ExplorePolicy::Parker().wait(limit);
      progress.fetch_add(0, std::memory_order_acq_rel);
      return;
    }
    while (!over()) ExplorePolicy::pause();
  }
  /// One in so many, counted for itself.
  static bool one_in(int n, int& turn) { return n > 0 && ++turn % n == 0; }

  const DeviceTraits traits;
  std::deque<Condition> devices;
  Atomic<std::uint64_t> progress{0};
  int records = 0, reads = 0;  ///< how many there were, for those that fail
};

class ExploredStream final : public Stream {
 public:
  ExploredStream(std::shared_ptr<Devices> devices, int device)
      : state_(std::make_shared<State>(std::move(devices), device)) {
    state_->here().streams.push_back(this);
  }
  ~ExploredStream() override { std::erase(state_->here().streams, this); }

  void launch(std::function<void()> kernel, std::span<const MemoryUse>) override {
    issue([state = state_.get(), op = current_device_op(), kernel = std::move(kernel)] {
      try {
        kernel();
      } catch (...) {
        state->devices->report(state->device, {op, std::current_exception(), false});
      }
    });
  }
  bool record(std::uint64_t point) noexcept override {
    Devices& devices = *state_->devices;
    if (Devices::one_in(devices.traits.failing_records, devices.records)) return false;
    expect(point > state_->recorded.load(std::memory_order_relaxed), "a point that is not behind the last one");
    issue([state = state_.get(), point] {
      state->reached.store(point, std::memory_order_release);
      state->devices->advance();
    });
    state_->recorded.store(point, std::memory_order_relaxed);
    // No point of a lost device is ever passed. The watcher looks all the same, at the latest at its time limit; here
    // it does so at once, so that a time limit that passes is a wake-up that was lost.
    if (state_->here().lost.load(std::memory_order_acquire)) devices.advance();
    return true;
  }
  std::uint64_t reached() const noexcept override { return state_->reached.load(std::memory_order_acquire); }
  bool wait(const StreamEvent& event) override {
    const auto other = static_cast<ExploredStream*>(event.stream)->state_;
    // Nothing but what the caller did orders the two.
    expect(other->recorded.load(std::memory_order_relaxed) >= event.point, "a wait for a point that is not recorded");
    if (other->devices != state_->devices) return false;
    issue([state = state_.get(), other, point = event.point] {
      const auto over = [&] {
        return other->reached.load(std::memory_order_acquire) >= point ||
               other->here().lost.load(std::memory_order_acquire) || state->here().lost.load(std::memory_order_acquire);
      };
      while (!over()) state->devices->wait(ExplorePolicy::kTick, over);
    });
    return true;
  }
  void after(std::span<const StreamEvent> passed) noexcept {
    for (const StreamEvent& event : passed) {
      State& other = *static_cast<ExploredStream*>(event.stream)->state_;
      expect(other.reached.load(std::memory_order_relaxed) >= event.point ||
                 other.here().lost.load(std::memory_order_relaxed),
             "a point is said to be passed, and is not");
    }
  }
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override {
    if (state_->here().lost.load(std::memory_order_acquire)) return ExplorePolicy::pause();  // others are to go on
    state_->devices->wait(limit, [&] {
      return state_->reached.load(std::memory_order_acquire) >= point ||
             state_->here().lost.load(std::memory_order_acquire);
    });
  }

  /// A strand that works off what there is, if none does.
  void go_on() {
    std::lock_guard lock(state_->mutex);
    start();
  }

 private:
  struct State {
    State(std::shared_ptr<Devices> d, int i) : devices(std::move(d)), device(i) {}
    Condition& here() { return devices->at(device); }
    const std::shared_ptr<Devices> devices;
    const int device;
    ExplorePolicy::Mutex mutex;
    std::deque<std::function<void()>> queue;
    bool running = false;
    Atomic<std::uint64_t> recorded{0};  ///< the last point
    Atomic<std::uint64_t> reached{0};
  };

  void issue(std::function<void()> command) {
    std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(command));
    start();
  }
  /// With the mutex.
  void start() {
    if (state_->queue.empty() || std::exchange(state_->running, true)) return;
    ExplorePolicy::start_substitute([state = state_] {
      for (;;) {
        std::function<void()> next;
        {
          std::lock_guard inner(state->mutex);
          const bool lost = state->here().lost.load(std::memory_order_acquire);
          if (state->queue.empty() || (!lost && state->here().silent.load(std::memory_order_acquire))) {
            state->running = false;
            return;
          }
          next = std::move(state->queue.front());
          state->queue.pop_front();
          if (lost) continue;
        }
        next();
      }
    });
  }

  std::shared_ptr<State> state_;
};

class Explored final : public ExploredDevices {
 public:
  explicit Explored(const DeviceTraits& traits) : state_(std::make_shared<Devices>(traits)) {}
  DeviceKind kind() const override { return state_->traits.kind; }
  int devices() const override { return state_->traits.count; }
  std::unique_ptr<Stream> make_stream(int device, LaneKind) override {
    return std::make_unique<ExploredStream>(state_, device);
  }
  void stream_after(Stream& stream, std::span<const StreamEvent> passed) noexcept override {
    static_cast<ExploredStream&>(stream).after(passed);
  }
  std::uint64_t progress() const noexcept override { return state_->progress.load(std::memory_order_acquire); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    state_->wait(limit, [&] { return progress() != seen; });
  }
  std::uint64_t errors(int device) const noexcept override {
    Condition& c = state_->at(device);
    const bool gone = c.lost.load(std::memory_order_acquire);
    return c.reports.load(std::memory_order_acquire) + (gone ? 1 : 0);
  }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override {
    if (Devices::one_in(state_->traits.failing_reads, state_->reads)) throw std::bad_alloc();
    Condition& c = state_->at(device);
    std::lock_guard lock(c.mutex);
    const std::uint64_t first = c.reports.load(std::memory_order_relaxed) - c.late.size();
    return {c.late.begin() +
                static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(from - std::min(from, first), c.late.size())),
            c.late.end()};
  }
  std::exception_ptr lost(int device) const noexcept override {
    if (!state_->at(device).lost.load(std::memory_order_acquire)) return nullptr;
    return std::make_exception_ptr(std::runtime_error("it is gone"));
  }
  void give_up(int device) noexcept override { lose(device); }
  DeviceLimits limits(int) const override { return {.unconfirmed = state_->traits.unconfirmed}; }

  void lose(int device) override {
    state_->at(device).lost.store(true, std::memory_order_release);
    state_->advance();
    for (ExploredStream* stream : state_->at(device).streams) stream->go_on();
  }
  void silence(int device) override { state_->at(device).silent.store(true, std::memory_order_release); }
  void report(int device, DeviceOp op) override {
    state_->report(device, {op, std::make_exception_ptr(std::runtime_error("x")), false});
  }

  void* allocate(int, std::size_t bytes, Stream*) noexcept override { return ::operator new(bytes, std::nothrow); }
  void free(int, void* block, std::size_t, Stream*) noexcept override { ::operator delete(block); }
  void copy(void* to, const void* from, std::size_t bytes, Stream*) override { std::memcpy(to, from, bytes); }
  void fill(void* to, std::byte value, std::size_t bytes, Stream*) override {
    std::memset(to, static_cast<int>(value), bytes);
  }

 private:
  std::shared_ptr<Devices> state_;
};

}  // namespace

std::shared_ptr<ExploredDevices> explored_devices(const DeviceTraits& traits) {
  return std::make_shared<Explored>(traits);
}

}  // namespace sluice::mutants
