// What the tests of the CUDA backend on its double share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_double/cuda_double.h>

#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice {

/// A double with these devices, and an engine on them that is the default one while this lives. At the end it finds
/// nothing left over and nothing reported.
class OnDouble {
 public:
  explicit OnDouble(cuda_double::Options options = {}, CudaOptions cuda = {}, EngineOptions engine = {}) {
    cuda_double::reset(options);
    engine.providers = {cuda_devices(cuda)};
    engine_.emplace(engine);
    set_default_engine(&*engine_);
  }
  ~OnDouble() {
    engine_->wait_all();
    set_default_engine(nullptr);
    engine_.reset();
    EXPECT_THAT(cuda_double::take_reports(), testing::IsEmpty());
  }
  Engine& engine() { return *engine_; }

 private:
  std::optional<Engine> engine_;
};

}  // namespace sluice
