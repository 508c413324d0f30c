// Training steps on two simulated devices.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "sluice/resources/device_pool.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"
#include "training_steps.h"

namespace sluice::testing {

/// An engine with two simulated devices that new arrays belong to. Reports of the order record fail the test, so do
/// device memory that stays taken and an engine that does not stop.
class Devices {
 public:
  explicit Devices(std::uint64_t seed = 0, EngineOptions options = {}) : control(std::make_shared<SimControl>()) {
    control->print_reports(false);
    SimOptions devices;
    devices.observer = order_record;
    devices.pinned_only = devices.poison = true;
    // Some runs are as quick as they can, others mix the orders of the streams.
    devices.random_delay = std::chrono::microseconds(seed % 2 == 1 ? 15 : 0);
    devices.seed = seed;
    devices.control = control;
    options.threads = 2;
    options.providers.push_back(sim_devices(2, devices));
    engine_.emplace(options);
    engine_->on_unobserved_error([](const ErrorRoot&) {});
    before_ = &default_engine();
    set_default_engine(&*engine_);
    for (const Device device : {sim(0), sim(1)}) device_pool(*engine_, device).spare(seed % 4 < 2 ? 0 : 16 << 20);
  }
  ~Devices() {
    set_default_engine(before_);
    EXPECT_TRUE(engine_->stop());
    for (const std::string& report : control->reports()) ADD_FAILURE() << report;
    for (const Device device : {sim(0), sim(1)}) {
      for (const DevicePool::Kind kind : {DevicePool::device_memory, DevicePool::pinned_memory}) {
        EXPECT_EQ(device_pool(*engine_, device).stats(kind).in_use, 0u) << to_string(device) << " leaks";
      }
    }
  }
  Engine* operator->() { return &*engine_; }
  Engine& operator*() { return *engine_; }
  /// Until nothing is in flight; what failed is known to those who ask.
  void settle() {
    try {
      engine_->wait_all();
    } catch (const AggregateError&) {
    }
  }
  /// What is cached goes back, so that the next operations ask their devices for memory.
  void trim() {
    for (const Device device : {sim(0), sim(1)}) device_pool(*engine_, device).trim();
  }
  bool lost(int device) { return engine_->provider(sim(device))->lost(device) != nullptr; }

  const std::shared_ptr<SimControl> control;

 private:
  std::optional<Engine> engine_;
  Engine* before_;
};

/// What the training gives where nothing goes wrong.
inline const CleanRun& clean_run(Kind kind) {
  static const auto run = [](Kind which) {
    const Devices devices;
    Training training(which);
    return CleanRun(which, training);
  };
  static const CleanRun sgd = run(Kind::sgd), adam = run(Kind::adam);
  return kind == Kind::adam ? adam : sgd;
}

}  // namespace sluice::testing
