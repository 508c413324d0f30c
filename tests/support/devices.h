// The devices that tests of arrays run on. SLUICE_TEST_DEVICE says which:
//   cpu   logical CPUs, if nothing else is said
//   sim   simulated devices with random delays, freed memory poisoned, the host's memory copied from and to only where
//         it is pinned, and a record of accesses
//   gpu   GPUs: of the double of CUDA, which has all that too, in a program that is linked with it (cuda_devices.cc);
//         else logical devices of the machine's card
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/resources/cuda/cuda.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"
#include "sluice/sluice.h"

namespace sluice::test {

/// The kind of the devices that arrays live on.
inline DeviceKind device_kind() {
  const char* const device = std::getenv("SLUICE_TEST_DEVICE");
  if (device && std::strcmp(device, "sim") == 0) return DeviceKind::sim;
  if (device && std::strcmp(device, "gpu") == 0) return DeviceKind::gpu;
  return DeviceKind::cpu;
}
/// They have streams: bodies are issued there, and the host cannot reach their memory.
inline bool on_streams() { return device_kind() != DeviceKind::cpu; }

/// The i-th device that arrays live on.
inline Device device(int i = 0) { return {device_kind(), sluice::detail::device_number(i)}; }

/// The body of an op of a program's own that copies its input to its output, both contiguous.
inline void copy_body(ArrayContext& c) {
  const std::size_t bytes = static_cast<std::size_t>(c.input(0).count()) * size_of(c.input(0).dtype);
  if (c.device().kind == DeviceKind::gpu) {
    c.provider().copy(c.output().data, c.input(0).data, bytes, &c.stream());
  } else {
    std::memcpy(c.output().data, c.input(0).data, bytes);
  }
}

/// How many GPUs there are with SLUICE_TEST_DEVICE=gpu.
inline constexpr int kGpus = 4;

/// What a program that is linked with the double of CUDA sets.
struct CudaDouble {
  void (*begin)(int devices) = nullptr;
  std::vector<std::string> (*reports)() = nullptr;
  /// "" once nothing is left that an engine had; else what, after a while.
  std::string (*left_over)() = nullptr;
};
inline CudaDouble double_of_cuda;

/// What a test's engine is made with: as many simulated devices as logical CPUs, or all GPUs. New arrays of this thread
/// go to device(0). Reports of the devices fail the test. Outlives the engine.
class TestDevices {
 public:
  explicit TestDevices(EngineOptions options) : options_(std::move(options)) {
    if (!on_streams()) return;
    scope_.emplace(device(0));
    if (device_kind() == DeviceKind::gpu) {
      const ProviderFactory gpus = cuda_devices({.logical = double_of_cuda.begin ? 1 : kGpus});
      options_.providers.push_back([this, gpus] {
        std::shared_ptr<Provider> made = gpus();
        gpus_ = made;
        return made;
      });
      return;
    }
    const int count = std::max(1, options_.logical_cpus);
    control_ = std::make_shared<SimControl>();
    control_->print_reports(false);
    SimOptions devices;
    devices.random_delay = std::chrono::microseconds(20);
    devices.observer = order_record;
    devices.pinned_only = true;
    devices.control = control_;
    options_.providers.push_back(sim_devices(count, devices));
  }
  ~TestDevices() {
    // The watcher's thread keeps the provider a little longer than the engine. The next engine's start waits for the
    // card, so that nothing of this one may be there.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!gpus_.expired() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(gpus_.expired()) << "something keeps the GPUs of an engine that is gone";
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
  std::weak_ptr<Provider> gpus_;
  std::optional<DeviceScope> scope_;
};

/// An engine that new arrays belong to while this lives. Arrays must go first: declare it before them.
class DefaultEngine {
 public:
  explicit DefaultEngine(const EngineOptions& options) : devices_(options), engine_(devices_.options()) {
    // So that blocks go from stream to stream as if memory were short, by waits on the device.
    for (int i = 0; on_streams() && i < engine_.device_count(device_kind()); ++i) {
      device_pool(engine_, device(i)).spare(0);
    }
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

/// For tests that make no engine of their own: one for all of them on simulated devices, and one for each on GPUs.
class DevicesOfAllTests final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (device_kind() == DeviceKind::sim) engine_.emplace(EngineOptions{.logical_cpus = 2});
    if (device_kind() == DeviceKind::gpu) ::testing::UnitTest::GetInstance()->listeners().Append(new GpusOfEachTest);
  }
  void TearDown() override { engine_.reset(); }

 private:
  /// Each test begins with GPUs that nobody has used, and leaves nothing there.
  class GpusOfEachTest final : public ::testing::EmptyTestEventListener {
    void OnTestStart(const ::testing::TestInfo&) override {
      if (double_of_cuda.begin) double_of_cuda.begin(kGpus);
      engine_.emplace(EngineOptions{});
    }
    void OnTestEnd(const ::testing::TestInfo&) override {
      engine_.reset();
      if (!double_of_cuda.begin) return;
      EXPECT_EQ(double_of_cuda.left_over(), "");
      for (const std::string& report : double_of_cuda.reports()) ADD_FAILURE() << report;
    }
    std::optional<DefaultEngine> engine_;
  };

  std::optional<DefaultEngine> engine_;
};
[[maybe_unused]] inline ::testing::Environment* const devices_of_all_tests =
    ::testing::AddGlobalTestEnvironment(new DevicesOfAllTests);

}  // namespace sluice::test
