// A simulated device's stream: a queue that a thread of its own works off.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "sluice/resources/providers/detail/sim_core.h"

namespace sluice::detail {

class SimStream final : public Stream {
 public:
  SimStream(std::shared_ptr<SimCore> core, int device, LaneKind lane);
  ~SimStream() override;

  bool record(std::uint64_t point) noexcept override;
  std::uint64_t reached() const noexcept override;
  bool wait(const StreamEvent& event) override;
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override;
  void launch(std::function<void()> kernel, std::span<const MemoryUse> uses) override;
  std::uint64_t begin_times() noexcept override;
  void end_times(std::uint64_t span) noexcept override;
  bool take_times(std::uint64_t span, DeviceTimes& times) noexcept override;

  // For the provider.
  /// Its number with the core's observer.
  AccessObserver::Stream observed_as() const;
  /// All that is issued here later comes after these points of streams of the same core.
  void ordered_after(std::span<const StreamEvent> passed) noexcept;
  const SimCore* core() const;
  void copy(void* to, const void* from, std::size_t bytes);
  void fill(void* to, std::byte value, std::size_t bytes);
  /// False where there is no memory for the command.
  bool free(void* block, int device) noexcept;
  void* allocate(int device, std::size_t bytes) noexcept;

 private:
  struct State;
  class Running;
  struct Kernel {
    std::function<void()> run;
    AccessObserver::Caller caller;
    std::vector<MemoryUse> uses;  ///< where there is an observer
  };
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    DeviceOp op;
  };
  struct Fill {
    void* to;
    std::byte value;
    std::size_t bytes;
    DeviceOp op;
  };
  struct Free {
    void* block;
    std::uint64_t ticket;
    int device;
  };
  struct Wait {
    std::shared_ptr<State> other;
    std::uint64_t point;
  };
  struct Record {
    std::uint64_t point;
  };
  struct Time {
    std::uint64_t span;
    std::int64_t DeviceTimes::*which;
  };
  using Command = std::variant<std::monostate, Kernel, Copy, Fill, Free, Wait, Record, Time>;

  void push(Command command);
  template <class F>
  void issue(Command command, F tell);
  static void work(State& state);
  static bool goes_on(State& state);
  static void execute(State& state, Kernel& kernel);
  static void execute(State& state, Copy& copy);
  static void execute(State& state, Fill& fill);
  static void execute(State& state, Free& free);
  static void execute(State& state, Wait& wait);
  static void execute(State& state, Record& record);
  static void execute(State& state, Time& time);
  static void execute(State&, std::monostate) {}

  const std::shared_ptr<State> state_;
  std::thread thread_;  ///< started with the first command, under the state's mutex
};

/// What kernel_address() and report_late_error() know of the kernel that the calling thread is in; null outside.
struct KernelContext {
  SimCore* core;
  int device;
  const AccessObserver::Caller& caller;
  std::span<const MemoryUse> uses;
};
const KernelContext* current_kernel() noexcept;

}  // namespace sluice::detail
