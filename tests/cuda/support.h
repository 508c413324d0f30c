// What the tests of the CUDA backend on its double share. Tests that say OnCuda run on a card too, in a program that is
// not linked with the double (tests/card.sh).
#pragma once

#ifdef SLUICE_ON_CARD
#include "on_card.h"
#else

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_double/cuda_double.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/sluice.h"

namespace sluice {

/// A double with these devices, and an engine on them that is the default one while this lives. At the end it finds
/// nothing left over and nothing reported.
class OnDouble {
 public:
  explicit OnDouble(cuda_double::Options options = {}, CudaOptions cuda = {}, EngineOptions engine = {}) {
    cuda_double::reset(options);
    if (engine.providers.empty()) engine.providers = {cuda_devices(cuda)};
    engine_.emplace(engine);
    set_default_engine(&*engine_);
  }
  ~OnDouble() {
    std::shared_ptr<Provider> provider = engine_->provider(gpu(0));
    set_default_engine(nullptr);
    engine_.reset();
    // A watcher keeps the provider a little longer. What is there after 20 s leaks.
    const auto begin = std::chrono::steady_clock::now();
    const auto wait_until = [&](auto over) {
      while (!over() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) std::this_thread::yield();
      EXPECT_TRUE(over());
    };
    wait_until([&] { return provider.use_count() == 1; });
    provider.reset();
    const auto left = [] {
      const cuda_double::Live live = cuda_double::live();
      return live.blocks + live.pinned + live.streams + live.events + live.handles;
    };
    if (!lost_) wait_until([&] { return left() == 0; });
    if (!planted_) {
      EXPECT_THAT(cuda_double::take_reports(), ::testing::IsEmpty());
    }
  }
  Engine& engine() { return *engine_; }
  /// A card is lost in this test: what it was given stays with it.
  void leaves_what_a_lost_card_has() { lost_ = true; }
  /// A mistake is planted in this test: what it leaves over stays, and what is reported is for the test to take.
  void has_a_mistake() { lost_ = planted_ = true; }

 private:
  std::optional<Engine> engine_;
  bool lost_ = false, planted_ = false;
};

using OnCuda = OnDouble;

}  // namespace sluice

#endif  // SLUICE_ON_CARD
