// What the tests of the CUDA backend share where they run on a real card (tests/card.sh).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice {

/// An engine on the machine's GPUs that is the default one while this lives. Throws where there is none.
class OnCard {
 public:
  explicit OnCard(CudaOptions cuda = {}, EngineOptions engine = {}) {
    if (!cuda_unavailable().empty()) throw std::runtime_error("no CUDA device: " + cuda_unavailable());
    engine.providers = {cuda_devices(cuda)};
    engine_.emplace(engine);
    set_default_engine(&*engine_);
  }
  ~OnCard() { set_default_engine(nullptr); }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;
  Engine& engine() { return *engine_; }

 private:
  std::optional<Engine> engine_;
};

using OnCuda = OnCard;

/// A size; with SLUICE_CARD_DRY=1, on the double, a smaller one, which a line says.
inline std::int64_t size_or(std::int64_t full, std::int64_t dry) {
  if (!std::getenv("SLUICE_CARD_DRY")) return full;
  std::printf("cut: %s, %lld to %lld\n", ::testing::UnitTest::GetInstance()->current_test_info()->name(),
              static_cast<long long>(full), static_cast<long long>(dry));
  return dry;
}

}  // namespace sluice
