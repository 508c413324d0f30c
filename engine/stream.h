// Streams: in-order queues of a device. An op on a stream lane is issued when its body returns and complete when the
// device says so; between streams the device waits, never the host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace sluice {

class Stream;

/// A point in a stream: everything issued before it. Empty: reached since ever.
struct StreamEvent {
  Stream* stream = nullptr;
  std::uint64_t sequence = 0;
};

/// A device's in-order queue, as the engine uses it. Implementations are thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;
  /// The point after everything issued so far. Does not block.
  virtual StreamEvent record() = 0;
  /// What is issued later waits, on the device, for that point of another stream. Does not block.
  virtual void wait(const StreamEvent& event) = 0;
  /// Calls back once everything issued so far is complete, with the first error of a kernel since the last notify, or
  /// null. The callback runs on a thread of the stream's and must only hand over.
  virtual void notify(std::function<void(std::exception_ptr)> callback) = 0;
  /// Blocks until everything issued so far is complete, and returns what notify would tell. Takes no memory.
  virtual std::exception_ptr synchronize() noexcept = 0;
  /// The backend's handle (a cudaStream_t); null for a simulated stream.
  virtual void* native() const { return nullptr; }
};

/// A stream simulated on the host: a FIFO that a thread of its own works off, each kernel after a delay. For the
/// protocol's logic; it proves nothing about a real device.
class SimulatedStream final : public Stream {
 public:
  explicit SimulatedStream(std::chrono::microseconds delay) : state_(std::make_shared<State>(delay)) {}
  ~SimulatedStream() override;
  /// Issues a kernel: runs later, in order. An exception is this stream's error, told at the next notify.
  void launch(std::function<void()> kernel);
  StreamEvent record() override;
  void wait(const StreamEvent& event) override;
  void notify(std::function<void(std::exception_ptr)> callback) override;
  std::exception_ptr synchronize() noexcept override;

 private:
  /// Shared with the stream's thread and with streams that wait for it, because the last callback may destroy the
  /// stream.
  struct State {
    explicit State(std::chrono::microseconds d) : delay(d) {}
    const std::chrono::microseconds delay;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    std::uint64_t issued = 0, completed = 0;
    std::exception_ptr error;  ///< touched by the stream's thread, and by who has waited for it
    bool closing = false;
  };
  void issue(std::function<void()> command);
  static void run(State& state);

  std::shared_ptr<State> state_;
  std::thread thread_;  ///< started with the first command, under the state's mutex
};

}  // namespace sluice
