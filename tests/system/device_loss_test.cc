// A device that is lost, or answers no more, at any kernel of a training step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "device_training.h"

namespace sluice::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

/// A training after its first step, and what its reads say while a device is down.
struct Struck {
  Struck(Kind kind, std::uint64_t seed, EngineOptions options = {})
      : clean(clean_run(kind)), devices(seed, std::move(options)), training(kind) {
    training.push(0);
    devices.settle();
  }
  const CleanRun& clean;
  Devices devices;
  Training training;
};

/// Whatever fails names the device. What is right on the other is so as a whole.
void expect_the_device_named(Training& training, int device) {
  for (const Read& r : training.read()) {
    if (r.error) {
      EXPECT_THAT(r.error->message, HasSubstr(to_string(sim(device)) + " was lost"));
    }
  }
}

enum class Lost { not_at_all, before_the_step, in_the_step };

Lost lose(Kind kind, int device, std::uint64_t kernels) {
  SCOPED_TRACE(std::string(row_of(kind)) + ", " + to_string(sim(device)) + " lost after " + std::to_string(kernels) +
               " kernels");
  Struck s(kind, kernels);
  s.devices.control->lose(device, kernels);
  NDArray loss = s.training.push(1);
  check_loss(loss, s.clean, 1);
  s.devices.settle();
  const bool lost = s.devices.lost(device);
  if (lost) {
    const NDArray there = s.training.arrays()[device == 0 ? 0 : 3];
    EXPECT_THAT(read_bytes(there).error->message, HasSubstr(to_string(sim(device)) + " was lost"));
    expect_the_device_named(s.training, device);
  }
  const Outcome outcome = judge(s.training, s.clean, 1, {.gone = lost ? device : -1, .several = true});
  // The other one goes on.
  const NDArray here = ones({4}).to(sim(1 - device)) + 1;
  EXPECT_EQ(here.to_vector<float>(), std::vector<float>(4, 2.0F));
  loss = {};
  return !lost ? Lost::not_at_all : outcome.torn ? Lost::in_the_step : Lost::before_the_step;
}

/// What the other device has is whole: of this step or of the one before. Only where the device is lost between the
/// gate's kernel, which the other's step has believed, and the news of it, is that step in doubt, and says so.
TEST(DeviceLoss, AtEachKernel) {
  for (const Kind kind : {Kind::sgd, Kind::adam}) {
    for (const int device : {0, 1}) {
      std::vector<Lost> results;
      do {
        results.push_back(lose(kind, device, results.size()));
      } while (!HasFailure() && results.back() != Lost::not_at_all);
      ASSERT_GT(results.size(), 9u);
      results.resize(results.size() - 2);
      EXPECT_THAT(results, Each(Lost::before_the_step));
    }
  }
}

constexpr milliseconds kLimit(200);

/// A device that is silent for the limit counts as lost. So does another one that waits for it just then.
TEST(DeviceLoss, SilentForTheLimit) {
  for (const int device : {0, 1}) {
    for (const std::uint64_t kernels : {0, 3, 8, 11}) {
      SCOPED_TRACE(to_string(sim(device)) + " silent after " + std::to_string(kernels) + " kernels");
      Struck s(Kind::sgd, kernels, {.device_limit = kLimit});
      s.devices.control->silence(device, kernels);
      NDArray loss = s.training.push(1);
      check_loss(loss, s.clean, 1);
      s.devices.settle();
      const Read r = read_bytes(s.training.arrays()[device == 0 ? 0 : 3]);
      ASSERT_TRUE(r.error);
      EXPECT_THAT(r.error->message, HasSubstr("was lost: it has not answered for 200 ms"));
      EXPECT_THAT(r.error->message, HasSubstr("not confirmed, and suspect: '"));
      for (const Read& any : s.training.read()) {
        if (any.error) {
          EXPECT_THAT(any.error->message, HasSubstr("was lost: it has not answered"));
        }
      }
      loss = {};
      EXPECT_TRUE(s.devices->stop());
    }
  }
}

/// Without a limit waiters wait, each as long as it likes; then the device goes on, and all is right.
TEST(DeviceLoss, SilentForAWhile) {
  for (const int device : {0, 1}) {
    for (std::uint64_t kernels = 0; kernels < 12; ++kernels) {
      SCOPED_TRACE(to_string(sim(device)) + " silent after " + std::to_string(kernels) + " kernels");
      Struck s(Kind::adam, kernels);
      s.devices.control->silence(device, kernels);
      NDArray loss = s.training.push(1);
      for (const NDArray& x : s.training.arrays()) {
        if (x.device() == sim(device)) {
          EXPECT_FALSE(s.devices->wait_for(x, milliseconds(1)));
        }
      }
      s.devices.control->release();
      EXPECT_EQ(loss.item<float>(), s.clean.losses[1]);
      loss = {};
      EXPECT_TRUE(s.training.values() == s.clean.values[2]);
    }
  }
}

TEST(DeviceLoss, AStopDoesNotWaitForASilentDevice) {
  for (const StopMode mode : {StopMode::drain, StopMode::cancel}) {
    SCOPED_TRACE(mode == StopMode::drain ? "drain" : "cancel");
    Struck s(Kind::sgd, 0);
    s.devices->watch(std::chrono::hours(1), [](const std::string&) {});  // stop() tells it what is open
    s.devices.control->silence(0, 1);
    NDArray loss = s.training.push(1);
    EXPECT_FALSE(s.devices->wait_for(loss, milliseconds(5)));
    loss = {};
    EXPECT_FALSE(s.devices->stop(mode, milliseconds(50)));
    s.devices.control->release();
    EXPECT_TRUE(s.devices->stop(mode));
  }
}

}  // namespace
}  // namespace sluice::testing
