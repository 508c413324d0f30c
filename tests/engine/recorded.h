// An engine on simulated devices with a record of accesses, for several tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/engine/order_observer.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"
#include "support.h"

namespace sluice::testing {

inline constexpr std::size_t kWords = 16, kBytes = kWords * sizeof(std::uint32_t);

/// An engine with simulated devices and a record of accesses.
struct Recorded {
  explicit Recorded(SimOptions options = {}, EngineMode mode = EngineMode::threaded, int devices = 2) {
    control->print_reports(false);
    options.observer = order_record;
    options.control = control;
    engine = std::make_unique<QuietEngine>(
        EngineOptions{.mode = mode, .providers = {[=, this] { return provider = sim_devices(devices, options)(); }}});
  }
  std::uint32_t* block(int device = 0) {
    return static_cast<std::uint32_t*>(provider->allocate(device, kBytes, nullptr));
  }
  std::vector<std::string> reports() { return control->take_reports(); }
  /// For what the test itself does on the host.
  OrderObserver& observer() { return dynamic_cast<OrderObserver&>(*provider); }

  std::shared_ptr<SimControl> control = std::make_shared<SimControl>();
  std::shared_ptr<Provider> provider;
  std::unique_ptr<QuietEngine> engine;
};

}  // namespace sluice::testing
