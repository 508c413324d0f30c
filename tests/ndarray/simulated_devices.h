// Devices: an engine with simulated devices, for tests that want these whatever the other tests run on.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"
#include "sluice/sluice.h"

namespace sluice::testing {

/// Reports of the devices fail the test.
class Devices {
 public:
  explicit Devices(SimOptions options = {}, int count = 2) : control(std::make_shared<SimControl>()) {
    control->print_reports(false);
    options.observer = order_record;
    options.pinned_only = true;
    options.control = control;
    engine_.emplace(EngineOptions{.threads = 2, .providers = {sim_devices(count, options)}});
    engine_->on_unobserved_error([](const ErrorRoot&) {});
    before_ = &default_engine();
    set_default_engine(&*engine_);
  }
  ~Devices() {
    set_default_engine(before_);
    engine_->stop();
    for (const std::string& report : control->reports()) ADD_FAILURE() << report;
  }
  Engine* operator->() { return &*engine_; }
  Engine& operator*() { return *engine_; }

  const std::shared_ptr<SimControl> control;

 private:
  std::optional<Engine> engine_;
  Engine* before_;
};

}  // namespace sluice::testing
