// A device's queue under the explorer: a FIFO that a strand works off while there is something in it.
#include "streams.h"

namespace sluice::mutants {

struct ExploredStream::State {
  detail::ExplorePolicy::Mutex mutex;
  std::deque<std::function<void()>> queue;
  std::uint64_t issued = 0;
  bool running = false;
  detail::ExplorePolicy::Atomic<std::uint64_t> completed{0};
  std::exception_ptr error;
};

ExploredStream::ExploredStream() : state_(std::make_shared<State>()) {}

void ExploredStream::issue(std::function<void()> command) {
  std::lock_guard lock(state_->mutex);
  state_->queue.push_back(std::move(command));
  ++state_->issued;
  if (std::exchange(state_->running, true)) return;
  detail::ExplorePolicy::start_substitute([state = state_] {
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
      next = nullptr;
      state->completed.fetch_add(1, std::memory_order_release);
    }
  });
}

void ExploredStream::launch(std::function<void()> kernel) {
  issue([state = state_.get(), kernel = std::move(kernel)] {
    try {
      kernel();
    } catch (...) {
      if (!state->error) state->error = std::current_exception();
    }
  });
}

StreamEvent ExploredStream::record() {
  std::lock_guard lock(state_->mutex);
  return {this, state_->issued};
}

void ExploredStream::wait(const StreamEvent& event) {
  auto* const other = static_cast<ExploredStream*>(event.stream);
  if (!other || other == this) return;
  issue([other = other->state_, sequence = event.sequence] {
    while (other->completed.load(std::memory_order_acquire) < sequence) detail::ExplorePolicy::pause();
  });
}

void ExploredStream::notify(std::function<void(std::exception_ptr)> callback) {
  issue([state = state_.get(), callback = std::move(callback)] { callback(std::exchange(state->error, nullptr)); });
}

std::exception_ptr ExploredStream::synchronize() noexcept { return nullptr; }

std::unique_ptr<Stream> make_stream() { return std::make_unique<ExploredStream>(); }

}  // namespace sluice::mutants
