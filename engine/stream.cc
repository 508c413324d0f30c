// The simulated stream: a FIFO worked off by a thread of its own.
#include "sluice/engine/stream.h"

#include <utility>

namespace sluice {

SimulatedStream::~SimulatedStream() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SimulatedStream::issue(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(command));
    ++issued_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void SimulatedStream::launch(std::function<void()> kernel) {
  issue([this, kernel = std::move(kernel)] {
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);  // the device's time, not a wait for something
    try {
      kernel();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  });
}

StreamEvent SimulatedStream::record() {
  std::lock_guard lock(mutex_);
  return {this, issued_};
}

void SimulatedStream::wait(const StreamEvent& event) {
  auto* other = static_cast<SimulatedStream*>(event.stream);
  if (!other || other == this) return;
  issue([other, sequence = event.sequence] {
    std::unique_lock lock(other->mutex_);
    other->changed_.wait(lock, [&] { return other->completed_ >= sequence; });
  });
}

void SimulatedStream::notify(std::function<void(std::exception_ptr)> callback) {
  issue([this, callback = std::move(callback)] { callback(std::exchange(error_, nullptr)); });
}

void SimulatedStream::run() {
  for (;;) {
    std::function<void()> command;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      command = std::move(queue_.front());
      queue_.pop_front();
    }
    command();
    command = nullptr;
    {
      std::lock_guard lock(mutex_);
      ++completed_;
    }
    changed_.notify_all();
  }
}

}  // namespace sluice
