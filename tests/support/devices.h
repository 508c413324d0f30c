// The devices that tests of arrays run on: cpu(i), or, with SLUICE_TEST_DEVICE=sim, simulated devices with random
// delays, freed memory poisoned, the host's memory copied from and to only where it is pinned, and a record of
// accesses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "sluice/resources/providers/sim.h"
#include "sluice/sluice.h"

namespace sluice::test {

inline bool on_sim() {
  const char* const device = std::getenv("SLUICE_TEST_DEVICE");
  return device && std::strcmp(device, "sim") == 0;
}

/// The i-th device that arrays live on.
inline Device device(int i = 0) { return on_sim() ? sim(i) : cpu(i); }

/// What a test's engine is made with: as many simulated devices as logical CPUs. New arrays of this thread go to
/// device(0). Reports of the simulated devices fail the test. Outlives the engine.
class TestDevices {
 public:
  explicit TestDevices(EngineOptions options) : options_(std::move(options)) {
    if (!on_sim()) return;
    const int count = std::max(1, options_.logical_cpus);
    control_ = std::make_shared<SimControl>();
    control_->print_reports(false);
    SimOptions devices;
    devices.random_delay = std::chrono::microseconds(20);
    devices.order_record = true;
    devices.pinned_only = true;
    devices.control = control_;
    options_.providers.push_back(sim_devices(count, devices));
    scope_.emplace(sim(0));
  }
  ~TestDevices() {
    if (!control_) return;
    for (const std::string& report : control_->reports()) ADD_FAILURE() << report;
  }
  TestDevices(const TestDevices&) = delete;
  TestDevices& operator=(const TestDevices&) = delete;
  const EngineOptions& options() const { return options_; }
  SimControl* control() const { return control_.get(); }

 private:
  EngineOptions options_;
  std::shared_ptr<SimControl> control_;
  std::optional<DeviceScope> scope_;
};

/// An engine that new arrays belong to while this lives. Arrays must go first: declare it before them.
class DefaultEngine {
 public:
  explicit DefaultEngine(const EngineOptions& options) : devices_(options), engine_(devices_.options()) {
    before_ = std::exchange(chosen_, &engine_);
    set_default_engine(&engine_);
  }
  ~DefaultEngine() {
    chosen_ = before_;
    set_default_engine(before_);
    engine_.stop();
  }
  Engine& engine() { return engine_; }
  /// Of the simulated devices; null on the CPU.
  SimControl* control() const { return devices_.control(); }

 private:
  inline static Engine* chosen_ = nullptr;
  TestDevices devices_;
  Engine engine_;
  Engine* before_ = nullptr;
};

/// For tests that make no engine of their own.
class DevicesOfAllTests final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (on_sim()) engine_.emplace(EngineOptions{.logical_cpus = 2});
  }
  void TearDown() override { engine_.reset(); }

 private:
  std::optional<DefaultEngine> engine_;
};
[[maybe_unused]] inline ::testing::Environment* const devices_of_all_tests =
    ::testing::AddGlobalTestEnvironment(new DevicesOfAllTests);

}  // namespace sluice::test
