// The gate of an optimiser's step is read once: an error that a device finds between the step's kernels does not tear
// it, as it would tear a step whose kernels look for themselves.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "../engine/support.h"
#include "../support/net_of.h"
#include "device_training.h"
#include "sluice/ndarray/push.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

/// A parameter of ones on each device, with gradients of ones: one step of rate 1 makes both zero.
struct Pair {
  Pair() {
    for (const int i : {0, 1}) {
      list[i] = ones({4}).to(sim(i)).with_grad();
      list[i].set_grad(ones({4}).to(sim(i)));
    }
  }
  /// 'o', 'n': as before and after the step; '!': an error; '?': neither.
  char state(int i) const {
    const Read r = read_bytes(list[i]);
    if (r.error) return '!';
    const float of_old = 1, of_new = 0;
    const auto all = [&](float value) {
      return r.bytes == std::string(reinterpret_cast<const char*>(Floats(4, value).data()), 16);
    };
    return all(of_old) ? 'o' : all(of_new) ? 'n' : '?';
  }
  std::string states() const { return {state(0), state(1)}; }
  NDArray list[2];
};

/// A kernel on sim(1) that stands, and then reports an error of its own op, which nobody builds upon.
struct LateNews {
  explicit LateNews(Devices& devices) {
    devices->wait_all();  // no point of the step may cover it
    devices->push(
        [this](Context& c) {
          c.stream()->launch([this] {
            begun.raise();
            gate.pass();
            report_late_error(std::make_exception_ptr(std::runtime_error("out of range")));
          });
        },
        {}, {.on = sim(1), .name = "elsewhere"});
    begun.wait();
  }
  Signal begun;
  Gate gate;
};

TEST(DeviceGate, AnErrorBetweenTheKernelsOfAStepDoesNotTearIt) {
  Devices devices;
  const Pair pair;
  const auto net = test::net_of({pair.list[0], pair.list[1]});
  nn::Optimizer sgd(net, nn::Sgd{.lr = 1});
  {
    LateNews news(devices);
    sgd.step();
    pair.list[0].wait();  // the kernel there is over, the other is behind the news
    news.gate.open();
    devices.settle();
  }
  EXPECT_EQ(pair.states(), "nn");
}

TEST(DeviceGate, AnErrorBeforeItRefusesTheWholeStep) {
  Devices devices;
  const Pair pair;
  const auto net = test::net_of({pair.list[0], pair.list[1]});
  nn::Optimizer sgd(net, nn::Sgd{.lr = 1});
  {
    LateNews news(devices);
    // The gradient comes behind the news, and the gate behind the gradient.
    pair.list[1].set_grad(pair.list[1].grad() * 1);
    sgd.step();
    Signal issued;  // before the news
    devices->push([&issued](Context&) { issued.raise(); }, {read(pair.list[0])}, {.on = sim(0)});
    issued.wait();
    news.gate.open();
    devices.settle();
  }
  EXPECT_EQ(pair.states(), "!!");
  sgd.recover();
  EXPECT_EQ(pair.states(), "oo");
}

/// What a step must not be: each kernel asks the devices for itself.
void step_that_looks_twice(const Pair& pair, Provider& provider) {
  std::uint64_t known[2];
  for (const int i : {0, 1}) known[i] = provider.errors(i);
  for (const int i : {0, 1}) {
    const NDArray& w = pair.list[i];
    const NoGrad scope;
    push_op(
        [&provider, a = known[0], b = known[1]](ArrayContext& c) {
          if (provider.errors(0) != a || provider.errors(1) != b) {
            c.engine_context().wrote_nothing();
            throw std::runtime_error("a device has found an error");
          }
          for (int k = 0; k < 4; ++k) c.output().as<float>()[k] = 0;
        },
        {w.grad()}, {w}, {.name = "looks twice"});
  }
}

/// The test above would see it.
TEST(DeviceGate, AStepWhoseKernelsLookForThemselvesIsTorn) {
  Devices devices;
  const Pair pair;
  {
    LateNews news(devices);
    step_that_looks_twice(pair, *devices->provider(sim(0)));
    pair.list[0].wait();
    news.gate.open();
    devices.settle();
  }
  EXPECT_EQ(pair.states(), "n!");
  devices->recover(pair.list[1]);
  EXPECT_EQ(pair.states(), "no") << "torn";
}

}  // namespace
}  // namespace sluice::testing
