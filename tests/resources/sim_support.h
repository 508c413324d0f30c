// What the tests of simulated devices share.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <source_location>
#include <string>
#include <utility>

#include "sluice/engine/order_observer.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"

namespace sluice::testing {

/// Holds kernels until opened.
class Gate {
 public:
  void open() {
    open_.store(true);
    open_.notify_all();
  }
  void pass() const { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

/// Simulated devices without an engine, and what plants faults in them.
struct Sim {
  explicit Sim(int devices = 2, SimOptions options = {}) {
    options.control = control;
    control->print_reports(false);
    provider = sim_devices(devices, options)();
  }
  std::unique_ptr<Stream> stream(int device = 0, LaneKind lane = LaneKind::compute) {
    return provider->make_stream(device, lane);
  }
  /// Where options have an observer.
  OrderObserver& observer() { return dynamic_cast<OrderObserver&>(*provider); }
  std::shared_ptr<SimControl> control = std::make_shared<SimControl>();
  std::shared_ptr<Provider> provider;
};

/// The label of what the calling thread issues, for SimOptions::label.
inline thread_local OpLabel label_here{};
inline OpLabel test_label() noexcept { return label_here; }

/// Names what is issued while it lives.
class Named {
 public:
  explicit Named(const char* name, std::source_location where = std::source_location::current())
      : before_(std::exchange(label_here, {name, where})) {}
  ~Named() { label_here = before_; }
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;

 private:
  OpLabel before_;
};

/// Waits for a point, however long it takes.
inline void reach(Stream& stream, std::uint64_t point) {
  while (stream.reached() < point) stream.await(point, std::chrono::hours(1));
}

}  // namespace sluice::testing
