// The simulated stream: a FIFO worked off by a thread of its own.
#include "sluice/engine/stream.h"

#include <utility>

namespace sluice {

SimulatedStream::~SimulatedStream() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // its own last callback let go of the engine; it ends after it, on its own share of the state
  } else {
    thread_.join();
  }
}

void SimulatedStream::issue(std::function<void()> command) {
  {
    std::lock_guard lock(state_->mutex);
    // First what can fail: nothing is issued then.
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(*state); });
    state_->queue.push_back(std::move(command));
    ++state_->issued;
  }
  state_->changed.notify_all();
}

void SimulatedStream::launch(std::function<void()> kernel) {
  issue([state = state_.get(), kernel = std::move(kernel)] {
    if (state->delay.count() > 0) std::this_thread::sleep_for(state->delay);  // the device's time
    try {
      kernel();
    } catch (...) {
      if (!state->error) state->error = std::current_exception();
    }
  });
}

StreamEvent SimulatedStream::record() {
  std::lock_guard lock(state_->mutex);
  return {this, state_->issued};
}

void SimulatedStream::wait(const StreamEvent& event) {
  auto* other = static_cast<SimulatedStream*>(event.stream);
  if (!other || other == this) return;
  issue([other = other->state_, sequence = event.sequence] {
    std::unique_lock lock(other->mutex);
    other->changed.wait(lock, [&] { return other->completed >= sequence; });
  });
}

void SimulatedStream::notify(std::function<void(std::exception_ptr)> callback) {
  issue([state = state_.get(), callback = std::move(callback)] { callback(std::exchange(state->error, nullptr)); });
}

std::exception_ptr SimulatedStream::synchronize() noexcept {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&, all = state_->issued] { return state_->completed >= all; });
  return std::exchange(state_->error, nullptr);
}

void SimulatedStream::run(State& state) {
  for (;;) {
    std::function<void()> command;
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock, [&] { return state.closing || !state.queue.empty(); });
      if (state.queue.empty()) return;
      command = std::move(state.queue.front());
      state.queue.pop_front();
    }
    command();
    command = nullptr;
    {
      std::lock_guard lock(state.mutex);
      ++state.completed;
    }
    state.changed.notify_all();
  }
}

}  // namespace sluice
