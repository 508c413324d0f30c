// What goes over a cut: views of arrays, arrays that nobody sends gradients for, functions and arrays that are held
// longer than the step or the pipeline; and steps that would train nothing in silence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipeline_support.h"
#include "sluice/autograd/autograd.h"
#include "sluice/autograd/checkpoint.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT: network.h

constexpr int kMicrobatches = 4;

/// Two functions with something between them that both use.
template <class Between, class After>
struct Cut {
  Between between;
  After after;
  nn::Linear in{kWidth, kWidth}, last{kWidth, 5};
  auto parts() { return nn::parts("in", in, "last", last); }
  nn::Stages stages() const {
    nn::Stages list;
    list.add("between", [this](const NDArray& x) { return between(tanh(in(x))); });
    list.add(
        "after", [this](const auto& a) requires std::is_invocable_v<const After&, decltype(a)> {
          return last(after(a));
        });
    return list;
  }
};

template <class Net>
void expect_gradients_of_one_device(const Net& net) {
  RandomStream random(4);
  const NDArray x = normal({19, kWidth}, random), y = labels(19);
  (void)one_after_another(net, {x}, y, kMicrobatches);
  const Bytes expected = gradients_of(net);
  for (const std::vector<int>& numbers : {std::vector<int>{0}, {0, 0}, {0, 1}}) {
    for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
    parallel::Pipeline pipeline(net, x.spec(), {.devices = on_devices(numbers)});
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      SCOPED_TRACE(std::to_string(numbers.size()) + " stages, " + schedule);
      for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
      (void)pipeline.step(x, y, {.microbatches = kMicrobatches, .schedule = schedule});
      EXPECT_TRUE(gradients_of(net) == expected);
    }
    nn::to(net, test::device());
  }
}

TEST(PipelineCuts, ViewsOfAnArrayHaveTheBitsOfOneDevice) {
  ManyDevices many(2, 1);
  const auto check = [](const auto& between, const auto& after) {
    const Cut<std::decay_t<decltype(between)>, std::decay_t<decltype(after)>> net{between, after};
    nn::initialise(net, 3);
    expect_gradients_of_one_device(net);
  };
  check(
      [](const NDArray& h) -> nn::Arrays {
        return {h, (h * 2).reshape({-1, 3, 2})};
      },
      [](const nn::Arrays& a) {
        return a[0] + a[1].reshape({-1, kWidth});
      });
  check(
      [](const NDArray& h) -> nn::Arrays {
        return {h.narrow(1, 0, 3), h.narrow(1, 3, 6)};
      },
      [](const nn::Arrays& a) {
        return concat({a[0] * a[1], a[1] * a[0] + a[0]}, 1);
      });
  check(
      [](const NDArray& h) {
        return h.narrow(1, 0, 1).broadcast_to({h.size(0), kWidth});
      },
      [](const NDArray& h) { return h * h + h; });
  check(
      [](const NDArray& h) {
        return h.reshape({-1, 2, 3}).permute({0, 2, 1});
      },
      [](const NDArray& h) {
        return matmul(h, h.permute({0, 2, 1})).flatten(1).narrow(1, 0, kWidth);
      });
}

/// ZBV puts neighbouring stages on one device.
struct Repeated {
  nn::Linear in{kWidth, kWidth}, gate{kWidth, 1}, last{kWidth, kWidth}, head{kWidth, 5};
  nn::Stages stages() const {
    nn::Stages list;
    list.add(in);
    list.add("gate", [this](const NDArray& x) { return sigmoid(gate(tanh(x))).broadcast_to({x.size(0), kWidth}); });
    list.add("last", [this](const NDArray& g) { return tanh(last(g)); });
    list.add(head);
    return list;
  }
};

TEST(PipelineCuts, ARepeatedColumnBetweenStagesOfOneDeviceCountsOnce) {
  ManyDevices many(2, 1);
  Repeated net;
  nn::initialise(net, 1);
  RandomStream random(4);
  const NDArray x = normal({16, kWidth}, random), y = labels(16);
  (void)one_after_another(net, {x}, y, kMicrobatches);
  const Bytes expected = gradients_of(net);
  for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
  parallel::Pipeline pipeline(net, x.spec(), {.devices = on_devices({0, 1, 1, 0})});
  (void)pipeline.step(x, y, {.microbatches = kMicrobatches, .schedule = "zbv"});
  EXPECT_TRUE(gradients_of(net) == expected);
}

/// What a checkpoint inside of a stage computes again reads the stage's copies: of a weight that the first stage has
/// too, and of statistics.
TEST(PipelineCuts, ACheckpointInsideOfAStageReadsItsCopies) {
  struct Block {
    nn::Linear linear{kWidth, kWidth};
    nn::BatchNorm norm{kWidth};
    nn::Dropout drop{.25};
    NDArray operator()(const NDArray& x) const {
      return checkpoint([this](const NDArray& a) { return drop(norm(tanh(linear(a)))); }, x);
    }
  };
  struct Net {
    std::vector<Block> blocks = std::vector<Block>(4);
    nn::Stages stages() const {
      nn::Stages list;
      for (const Block& block : blocks) list.add("block", block);
      return list;
    }
  };
  const auto trained = [](const char* schedule) {
    ManyDevices many(2);
    Net net;
    net.blocks[3].linear.weight = net.blocks[0].linear.weight.tied();
    nn::initialise(net, 3);
    nn::Optimizer opt(net, kSgd);
    RandomStream stream(1), random(5);
    const NDArray x = normal({12, kWidth}, random), y = labels(12);
    std::optional<parallel::Pipeline> pipeline;
    if (schedule) pipeline.emplace(net, x.spec(), parallel::PipelineOptions{.devices = devices(2), .cut = {0, 2}});
    for (int step = 0; step < 3; ++step) {
      const nn::Training on(stream);
      if (pipeline) {
        (void)pipeline->step(x, y, {.microbatches = 3, .schedule = schedule, .optimizer = &opt});
      } else {
        (void)one_after_another(net, {x}, y, 3);
        opt.step();
      }
    }
    return state_of(net, opt);
  };
  const Bytes expected = trained(nullptr);
  for (const char* schedule : {"1f1b", "zb-h1"}) EXPECT_TRUE(trained(schedule) == expected) << schedule;
}

/// An auxiliary loss of a stage, whose backward pass is made when the step is over.
TEST(PipelineCuts, WhatAStageKeepsMayBeUsedAfterTheStep) {
  ManyDevices many(2);
  NDArray kept;
  struct Net {
    NDArray* kept;
    nn::Linear up{kWidth, kWidth}, down{kWidth, kWidth};
    auto parts() { return nn::parts("up", up, "down", down); }
    nn::Stages stages() const {
      nn::Stages list;
      list.add("two", [this](const NDArray& x) -> nn::Arrays {
        const NDArray h = tanh(up(x));
        return {h, h * 2};
      });
      list.add("one", [this](const nn::Arrays& a) {
        *kept = sum(square(a[0]));
        return down(a[0] + a[1]);
      });
      return list;
    }
  };
  Net net{&kept};
  nn::initialise(net, 1);
  parallel::Pipeline pipeline = test::pipeline(net, devices(2));
  const auto [x, y] = batch(DType::f32, 1);
  pipeline.step(x, y, {.microbatches = 2}).wait();
  kept.backward();
  kept = {};
  many.engine.wait_all();
}

TEST(PipelineCuts, AFunctionThatATapeHoldsOutlivesThePipeline) {
  ManyDevices many(2);
  const auto first = std::make_shared<nn::Linear>(nn::Linear{kWidth, kWidth}),
             second = std::make_shared<nn::Linear>(nn::Linear{kWidth, kWidth});
  NDArray held;
  bool fail = true;
  Chain net;
  net.add(first);
  net.add([&](const NDArray& x) {
    held = tanh(x);
    return held;
  });
  net.add([&](const NDArray& x) -> NDArray {
    if (fail) throw std::runtime_error("not pushed");
    return x;
  });
  net.add(second);
  nn::initialise(net, 1);
  fail = false;
  auto pipeline = std::make_unique<parallel::Pipeline>(test::pipeline(net, devices(2), {0, 2}));
  fail = true;
  const auto [x, y] = batch(DType::f32, 1);
  const parallel::Schedule again = parallel::with_recompute(parallel::gpipe(2, 2), {true, true});
  EXPECT_THAT(message([&] { pipeline->step(x, y, {.microbatches = 2, .schedule = again}); }), HasSubstr("not pushed"));
  fail = false;
  pipeline.reset();
  EXPECT_EQ(message([&] { sum(held).backward(); }), "nothing thrown");
}

/// Frozen stages below leave nothing behind: 1F1B holds as many microbatches as there are stages, and not all.
TEST(PipelineCuts, FrozenStagesBelowHoldNoMicrobatches) {
  if (test::on_streams()) GTEST_SKIP() << "the peak is the host pool's";
  struct Dense {
    nn::Parameter weight{{64, 64}, nn::constant(.01)};
    NDArray operator()(const NDArray& x) const { return tanh(matmul(x, weight)); }
  };
  const auto peak_of = [](int microbatches) {
    ManyDevices many(2, 1);
    const Chain net(std::make_shared<Dense>(), std::make_shared<Dense>());
    nn::initialise(net, 1);
    nn::freeze(net, "0.*");
    const NDArray x = ones({16L * microbatches, 64}), y = zeros({16L * microbatches, 64}).to(device(1));
    parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .loss = loss_of});
    std::size_t peak = 0;
    for (int step = 0; step < 2; ++step) {
      many.engine.wait_all();
      std::size_t before = 0, most = 0;
      for (const Device& device : devices(2)) {
        memory_pool(device).reset_peak();
        before += memory_pool(device).stats().in_use;
      }
      pipeline.step(x, y, {.microbatches = microbatches}).wait();
      many.engine.wait_all();
      for (const Device& device : devices(2)) most += memory_pool(device).stats().peak;
      peak = most - before;
    }
    return peak;
  };
  // What a thread has not let go of yet counts too: some arrays more or less, whatever the number of microbatches.
  const std::size_t few = peak_of(8), all = peak_of(64), output = 16 * 64 * sizeof(float);
  EXPECT_LT(all, few + 56 * output / 2) << "half of what the outputs of 56 more microbatches take";
}

TEST(PipelineCuts, StepsThatWouldTrainNothingAreRefused) {
  ManyDevices many(2, 1);
  struct Two {
    nn::Linear up{kWidth, kWidth}, down{kWidth, 5};
    nn::Stages stages() const {
      nn::Stages list;
      list.add(up);
      list.add(down);
      return list;
    }
  };
  Two net, other;
  nn::initialise(net, 3);
  nn::initialise(other, 4);
  RandomStream random(4);
  const NDArray x = normal({19, kWidth}, random), y = labels(19), leaf = normal({19, kWidth}, random).with_grad();
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2)});
  nn::Optimizer opt(net, kSgd), foreign(other, kSgd);
  const Bytes before = values_of(net);
  EXPECT_THAT(message([&] { pipeline.step(leaf, y); }), HasSubstr("wants gradients"));
  EXPECT_THAT(message([&] { pipeline.step(x, y, {.optimizer = &foreign}); }), HasSubstr("trains no parameter"));
  {
    const NoGrad off;
    EXPECT_THAT(message([&] { pipeline.step(x, y, {.optimizer = &opt}); }), HasSubstr("has no gradients"));
  }
  {
    const nn::Evaluation off;
    EXPECT_THAT(message([&] { pipeline.step(x, y, {.optimizer = &opt}); }), HasSubstr("has no gradients"));
  }
  EXPECT_EQ(opt.steps(), 0);
  EXPECT_TRUE(values_of(net) == before);
  EXPECT_THAT(message([&] {
                (void)parallel::plan(net, {zeros({0, kWidth}), zeros({0}, DType::i64)}, devices(2));
              }),
              HasSubstr("a batch without rows"));
  EXPECT_THROW((void)pipeline.device(2), std::out_of_range);
  parallel::Pipeline moved = std::move(pipeline);
  EXPECT_THAT(message([&] { pipeline.forward(x); }), HasSubstr("it was moved from"));  // NOLINT: that is the point
  EXPECT_THAT(message([&] { pipeline.step(x, y); }), HasSubstr("it was moved from"));
  EXPECT_EQ(message([&] { moved.step(x, y, {.optimizer = &opt}).wait(); }), "nothing thrown");
}

TEST(PipelineCuts, AStepInsideOfAStepOfThePipelineIsRefused) {
  ManyDevices many(2, 1);
  RandomStream random(4);
  const NDArray x = normal({19, kWidth}, random), y = labels(19);
  parallel::Pipeline* itself = nullptr;
  bool steps = false;
  Chain net(std::make_shared<nn::Linear>(nn::Linear{kWidth, kWidth}));
  net.add([&](const NDArray& h) {
    parallel::Pipeline* const now = std::exchange(itself, nullptr);
    if (now && steps) (void)now->step(x, y);
    if (now) (void)now->forward(x);
    return h;
  });
  net.add(std::make_shared<nn::Linear>(nn::Linear{kWidth, 5}));
  nn::initialise(net, 1);
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2)});
  (void)pipeline.step(x, y);
  const Bytes expected = gradients_of(net);
  for (const bool inside : {true, false}) {
    for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
    itself = &pipeline;
    steps = inside;
    EXPECT_THAT(message([&] { (void)pipeline.step(x, y); }),
                HasSubstr(inside ? "a step inside of a step" : "nothing thrown"));
    itself = nullptr;
  }
  EXPECT_TRUE(gradients_of(net) == expected);
}

/// A mode that a function opens by itself, one frozen statistic of two, and a name of two words.
struct Odd {
  nn::Linear up{kWidth, kWidth};
  nn::BatchNorm norm{kWidth};
  nn::Parameter shared{{kWidth, kWidth}, nn::uniform(-1, 1)};
  RandomStream* own = nullptr;
  bool* fails = nullptr;
  auto parts() { return nn::parts("up", up, "norm", norm, "the shared", shared); }
  nn::Stages stages() const {
    nn::Stages list;
    list.add("up", [this](const NDArray& x) { return matmul(up(x), shared); });
    list.add("norm", [this](const NDArray& h) {
      const nn::Training on(*own);
      return matmul(norm(h), shared);
    });
    list.add("end", [this](const NDArray& h) {
      if (*fails) throw std::runtime_error("bad");
      return h;
    });
    return list;
  }
};

TEST(PipelineCuts, StatisticsOfAModeOfItsOwnStayBehindTheGate) {
  ManyDevices many(2, 1);
  RandomStream own(1);
  bool fails = false;
  Odd net{.own = &own, .fails = &fails};
  nn::initialise(net, 1);
  const auto [x, y] = batch(DType::f32, 1);
  parallel::Pipeline pipeline = test::pipeline(net, devices(2));
  nn::Optimizer opt(net, kSgd);
  const Bytes before = values_of(net);
  fails = true;
  EXPECT_THAT(message([&] { pipeline.step(x, y, {.optimizer = &opt}); }), HasSubstr("bad"));
  opt.recover();
  EXPECT_TRUE(values_of(net) == before);
  fails = false;
  nn::freeze(net, "norm.running_var");
  EXPECT_EQ(message([&] { pipeline.step(x, y, {.microbatches = 2, .optimizer = &opt}).wait(); }), "nothing thrown");
  const std::vector<float> variance = net.norm.running_var.value().to_vector<float>();
  EXPECT_EQ(variance, std::vector<float>(kWidth, 1)) << "a norm with a frozen statistic evaluates";
  EXPECT_FALSE(values_of(net) == before);
}

/// With Gate::none too the optimiser steps what it has beside the net.
TEST(PipelineCuts, WhatIsBesideTheNetIsSteppedByBothGates) {
  std::vector<std::vector<float>> values;
  for (const parallel::Gate gate : {parallel::Gate::all, parallel::Gate::none}) {
    ManyDevices many(2, 1);
    struct Both {
      nn::Sequential net{nn::Linear{kWidth, kWidth}, nn::Linear{kWidth, kWidth}};
      nn::Parameter extra{{1}, nn::constant(1)};
    };
    Both both;
    nn::initialise(both, 1);
    parallel::Pipeline pipeline = test::pipeline(both.net, devices(2));
    nn::Optimizer opt(both, nn::Sgd{.lr = 1}, {}, {.keep_gradients = true});
    const auto [x, y] = batch(DType::f32, 1);
    both.extra.value().set_grad(full({1}, 2.0));
    pipeline.step(x, y, {.microbatches = 2, .optimizer = &opt, .gate = gate}).wait();
    EXPECT_EQ(opt.steps(), 1);
    values.push_back(both.extra.value().to_vector<float>());
    const std::vector<float> first =
        both.net[0].name().empty() ? std::vector<float>() : nn::parameters(both)[0].state->value.to_vector<float>();
    values.back().insert(values.back().end(), first.begin(), first.end());
  }
  EXPECT_EQ(values[0].front(), -1);
  EXPECT_EQ(values[0], values[1]);
}

}  // namespace
}  // namespace sluice
