// Devices with streams under the explorer.
#include "streams.h"

#include <cstring>
#include <deque>

namespace sluice::mutants {
namespace {

using detail::ExplorePolicy;
template <class T>
using Atomic = ExplorePolicy::Atomic<T>;

/// What the streams of a provider share.
struct Devices {
  Atomic<std::uint64_t> progress{0};
  Atomic<std::uint64_t> errors{0};
  ExplorePolicy::Mutex mutex;
  std::vector<LateError> late;  ///< under the mutex
};

class ExploredStream final : public Stream {
 public:
  explicit ExploredStream(std::shared_ptr<Devices> devices) : state_(std::make_shared<State>()) {
    state_->devices = std::move(devices);
  }
  void launch(std::function<void()> kernel, std::span<const MemoryUse>) override {
    issue([state = state_.get(), op = current_device_op(), kernel = std::move(kernel)] {
      try {
        kernel();
      } catch (...) {
        Devices& devices = *state->devices;
        std::lock_guard lock(devices.mutex);
        devices.late.push_back({op, std::current_exception(), false});
        devices.errors.store(devices.late.size(), std::memory_order_release);
      }
    });
  }
  bool record(std::uint64_t point) noexcept override {
    issue([state = state_.get(), point] {
      state->reached.store(point, std::memory_order_release);
      state->devices->progress.fetch_add(1, std::memory_order_acq_rel);
    });
    return true;
  }
  std::uint64_t reached() const noexcept override { return state_->reached.load(std::memory_order_acquire); }
  bool wait(const StreamEvent& event) override {
    issue([other = static_cast<ExploredStream*>(event.stream)->state_, point = event.point] {
      while (other->reached.load(std::memory_order_acquire) < point) ExplorePolicy::pause();
    });
    return true;
  }
  void await(std::uint64_t point, std::chrono::nanoseconds) noexcept override {
    while (state_->reached.load(std::memory_order_acquire) < point) ExplorePolicy::pause();
  }

 private:
  struct State {
    std::shared_ptr<Devices> devices;
    ExplorePolicy::Mutex mutex;
    std::deque<std::function<void()>> queue;
    bool running = false;
    Atomic<std::uint64_t> reached{0};
  };

  void issue(std::function<void()> command) {
    std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(command));
    if (std::exchange(state_->running, true)) return;
    ExplorePolicy::start_substitute([state = state_] {
      for (;;) {
        std::function<void()> next;
        {
          std::lock_guard inner(state->mutex);
          if (state->queue.empty()) {
            state->running = false;
            return;
          }
          next = std::move(state->queue.front());
          state->queue.pop_front();
        }
        next();
      }
    });
  }

  std::shared_ptr<State> state_;
};

class ExploredDevices final : public Provider {
 public:
  explicit ExploredDevices(int count) : count_(count) {}
  DeviceKind kind() const override { return DeviceKind::sim; }
  int devices() const override { return count_; }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return std::make_unique<ExploredStream>(state_); }
  std::uint64_t progress() const noexcept override { return state_->progress.load(std::memory_order_acquire); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds) noexcept override {
    while (progress() == seen) ExplorePolicy::pause();
  }
  std::uint64_t errors(int device) const noexcept override {
    return device == 0 ? state_->errors.load(std::memory_order_acquire) : 0;  // one ring for all
  }
  std::vector<LateError> late_errors(int, std::uint64_t from) override {
    std::lock_guard lock(state_->mutex);
    return {state_->late.begin() + static_cast<std::ptrdiff_t>(from), state_->late.end()};
  }
  void* allocate(int, std::size_t bytes, Stream*) noexcept override { return ::operator new(bytes, std::nothrow); }
  void free(int, void* block, std::size_t, Stream*) noexcept override { ::operator delete(block); }
  void copy(void* to, const void* from, std::size_t bytes, Stream*) override { std::memcpy(to, from, bytes); }
  void fill(void* to, std::byte value, std::size_t bytes, Stream*) override {
    std::memset(to, static_cast<int>(value), bytes);
  }

 private:
  const int count_;
  std::shared_ptr<Devices> state_ = std::make_shared<Devices>();
};

}  // namespace

std::shared_ptr<Provider> explored_devices(int count) { return std::make_shared<ExploredDevices>(count); }

}  // namespace sluice::mutants
