// What a step holds at a time: activations go with the last action that needs them, and rings bound the microbatches
// that are in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "network.h"
#include "sluice/autograd/custom.h"
#include "sluice/ndarray/push.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {
namespace {

using namespace test;  // NOLINT: network.h
using parallel::Rings;

constexpr std::int64_t kUnits = 64, kRowsEach = 64;

/// tanh(x . weight).
struct Dense {
  nn::Parameter weight{{kUnits, kUnits}, nn::constant(.01)};
  NDArray operator()(const NDArray& x) const { return tanh(matmul(x, weight)); }
};

/// The bytes that a step of so many microbatches has in use at most on both devices, beside what was there before it.
std::size_t peak_of(int microbatches) {
  DefaultEngine engine({.threads = 1, .logical_cpus = 2});
  const Chain net(std::make_shared<Dense>(), std::make_shared<Dense>());
  nn::initialise(net, 1);
  parallel::Pipeline stages(net, Spec{{kRowsEach, kUnits}}, {.devices = {cpu(0), cpu(1)}, .loss = loss_of});
  const NDArray x = ones({microbatches * kRowsEach, kUnits});
  const NDArray y = zeros({microbatches * kRowsEach, kUnits}).to(cpu(1));
  default_engine().wait_all();  // the weights are where they belong
  std::size_t before = 0, peak = 0;
  for (const Device device : {cpu(0), cpu(1)}) {
    memory_pool(device).reset_peak();
    before += memory_pool(device).stats().in_use;
  }
  stages.step(x, y, {.microbatches = microbatches, .schedule = parallel::one_f_one_b}).wait();
  default_engine().wait_all();
  for (const Device device : {cpu(0), cpu(1)}) peak += memory_pool(device).stats().peak;
  return peak - before;
}

TEST(StepMemory, DoesNotGrowWithTheMicrobatches) {
  constexpr std::size_t kActivation = kUnits * kRowsEach * sizeof(float);
  const std::size_t few = peak_of(8), many = peak_of(64);
  EXPECT_LE(many, few + 8 * kActivation) << few << " bytes for 8 microbatches";
}

/// Counts how many microbatches have begun, and how many are over with each half of their backward pass.
struct Counting {
  NDArray operator()(const NDArray& x) {
    return tanh(matmul(counted(x, &begun, &inputs), counted(weight, nullptr, &weights)));
  }
  auto parts() { return nn::parts("weight", weight); }
  /// The same values, by operations that count in the forward pass and in the backward pass.
  NDArray counted(const NDArray& x, int* forwards, int* backwards) {
    const auto copy = [this](const NDArray& of, int* count) {
      const NDArray from = of.contiguous(), to = zeros_like(from);
      push_op(
          [this, count](ArrayContext& c) {
            std::copy_n(c.input(0).as<float>(), c.input(0).count(), c.output().as<float>());
            const std::lock_guard lock(mutex);
            if (count) ++*count;
            most_saved = std::max(most_saved, begun - inputs);
            most_kept = std::max(most_kept, begun - weights);
          },
          {from}, {to});
      return to;
    };
    return apply_custom({.name = "counted",
                         .forward = [=](Saved&, const auto& xs) { return std::vector{copy(xs[0], forwards)}; },
                         .backward = [=](const Saved&, const auto& g) { return std::vector{copy(g[0], backwards)}; }},
                        {x})[0];
  }

  nn::Parameter weight{{kWidth, kWidth}, nn::constant(.1)};
  std::mutex mutex;
  int begun = 0, inputs = 0, weights = 0, most_saved = 0, most_kept = 0;
};

TEST(Rings, BoundWhatIsInFlightInAFreeOrder) {
  constexpr int kMicrobatches = 8;
  for (const Rings rings : {Rings{1, 1}, {2, 2}, {4, 1}, {4, 2}, {2, 5}}) {
    SCOPED_TRACE(std::to_string(rings.saved) + "," + std::to_string(rings.kept));
    DefaultEngine engine({.threads = 2, .logical_cpus = 2});
    const auto first = std::make_shared<Counting>(), second = std::make_shared<Counting>();
    const Chain net(first, second);
    nn::initialise(net, 1);
    parallel::Pipeline stages = pipeline(net, on_devices({0, 1}));
    const auto [x, y] = batch(DType::f32, 1);
    stages.step(x, y, {.microbatches = kMicrobatches, .schedule = parallel::dynamic(rings)(2, kMicrobatches)}).wait();
    default_engine().wait_all();
    for (const auto& part : {first, second}) {
      EXPECT_EQ(part->begun, kMicrobatches);
      EXPECT_EQ(part->weights, kMicrobatches);
      EXPECT_LE(part->most_kept, rings.kept);
    }
    EXPECT_EQ(second->inputs, kMicrobatches);  // nobody wants the gradient of the first one's input
    EXPECT_LE(second->most_saved, rings.saved);
  }
}

}  // namespace
}  // namespace sluice
