// Stages whose input gets no gradient, in every microbatch or in one, and integers between stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "network.h"

namespace sluice {
namespace {

using namespace test;  // NOLINT: network.h
using testing::HasSubstr;

struct Times {
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-.5, .5)};
  NDArray operator()(const NDArray& x) const { return tanh(matmul(x, weight)); }
};

/// What the function of the middle does with its input, in the microbatch of that number.
using Middle = std::function<NDArray(const NDArray& x, int microbatch)>;

/// Three products, and a function before the second one. The function stands at the beginning of its stage.
struct ThreeTimes {
  explicit ThreeTimes(Middle middle) {
    net.add(std::make_shared<Times>());
    net.add([middle, calls = std::make_shared<int>(0), active = active](const NDArray& x) {
      return *active ? middle(x, (*calls)++) : middle(x, -1);
    });
    net.add(std::make_shared<Times>());
    net.add(std::make_shared<Times>());
    nn::initialise(net, 3);
  }
  std::shared_ptr<bool> active = std::make_shared<bool>(false);  // false in the dry run
  Chain net;
};

constexpr int kMicrobatches = 4;

Bytes on_one_device(const Middle& middle) {
  DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  ThreeTimes made(middle);
  *made.active = true;
  const auto [x, y] = batch(DType::f32, 1);
  const NDArray loss = accumulate(made.net, x, y, kMicrobatches);
  Bytes all = gradients_of(made.net);
  all.push_back(loss.to_bytes());
  return all;
}

Bytes in_stages(const Middle& middle, const std::vector<int>& cut, const parallel::Schedule& schedule,
                parallel::ActionOrder order) {
  DefaultEngine engine({.threads = 2, .logical_cpus = schedule.devices()});
  ThreeTimes made(middle);
  parallel::Pipeline stages = pipeline(made.net, on_devices(devices_of(schedule)), cut);
  *made.active = true;
  const auto [x, y] = batch(DType::f32, 1);
  const NDArray loss = stages.step(x, y, {.microbatches = kMicrobatches, .schedule = schedule, .order = order});
  Bytes all = gradients_of(made.net);
  all.push_back(loss.to_bytes());
  return all;
}

void is_as_on_one_device(const Middle& middle) {
  const Bytes expected = on_one_device(middle);
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "dynamic"}) {
    for (const auto& cut : {std::vector<int>{0, 1, 3}, {0, 2, 3}}) {
      for (const auto order : {parallel::ActionOrder::listed, parallel::ActionOrder::ready}) {
        SCOPED_TRACE(std::string(name) + ", second stage from function " + std::to_string(cut[1]));
        EXPECT_TRUE(in_stages(middle, cut, parallel::make_schedule(name, 3, kMicrobatches), order) == expected);
      }
    }
  }
}

/// Below the cut nothing has gradients, as a trunk that is not trained.
TEST(PipelineNoGradient, OfAnInputThatIsDetached) {
  is_as_on_one_device([](const NDArray& x, int) { return x.detach(); });
}

/// A branch that one microbatch does not take: it alone gives nothing below.
TEST(PipelineNoGradient, OfAnInputThatOneMicrobatchDetaches) {
  for (const int at : {0, 2, kMicrobatches - 1}) {
    SCOPED_TRACE(at);
    is_as_on_one_device([at](const NDArray& x, int microbatch) { return microbatch == at ? x.detach() : x; });
  }
}

/// Constants in place of the input: the stage does not even read it.
TEST(PipelineNoGradient, OfAnInputThatIsNotRead) {
  is_as_on_one_device([](const NDArray& x, int) { return ones(x.shape(), x.dtype()); });
}

/// Integers have no gradients: they go to the next stage as they are.
TEST(PipelineNoGradient, OfIntegers) {
  is_as_on_one_device([](const NDArray& x, int) { return (x > 0).to(DType::i64).to(DType::f32); });
}

}  // namespace
}  // namespace sluice
