// Steps that go wrong in the middle: whoever waits is told stage and microbatch, no weight is torn, and the next step
// works. Errors of single actions are in pipeline_orders_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <limits>
#include <string>
#include <vector>

#include "network.h"
#include "sluice/autograd/autograd.h"
#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/push.h"
#include "sluice/resources/providers/sim.h"

namespace sluice {
namespace {

using parallel::Schedule;
using testing::ContainsRegex;
using testing::HasSubstr;
using namespace test;  // NOLINT: network.h

const std::vector<const char*> kSchedules{"1f1b", "zb-h1", "dynamic"};

/// tanh(x . weight), which does something else in one microbatch.
struct Special : Module {
  Special() : weight(make()) {}
  NDArray forward(const NDArray& x) override {
    const int call = calls++;
    const bool again = recomputes && call % 2 == 1;
    const bool here = at >= 0 && (recomputes ? call / 2 : call) == at;
    NDArray y = x, w = weight;
    if (here && forwards) y = recomputes && !again ? y * 1 : forwards(y);
    const auto pass = [&](const NDArray& of, const std::function<NDArray(const NDArray&)>& backwards) {
      return apply_custom({.name = "special",
                           .forward = [](Saved&, const auto& xs) { return std::vector{xs[0] + 0}; },
                           .backward = [=](const Saved&, const auto& g) { return std::vector{backwards(g[0])}; }},
                          {of})[0];
    };
    if (here && of_input) y = pass(y, of_input);
    if (here && of_weight) w = pass(w, of_weight);
    return tanh(matmul(y, w));
  }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "weight", &weight});
  }
  static NDArray make() {
    RandomStream random(3, 5);
    return uniform({kWidth, kWidth}, random, -.5, .5).with_grad();
  }

  NDArray weight;
  std::function<NDArray(const NDArray&)> forwards, of_input, of_weight;
  int at = -1, calls = 0;
  bool recomputes = false;
};

/// Two stages that share a weight.
struct Training {
  Training() {
    second->weight = first->weight;
    const auto join = [](const ModulePtr& m) { return std::make_shared<Sequential>(Sequential{m}); };
    net.emplace(std::vector<parallel::Stage>{{join(first), device(0)}, {join(second), device(1)}}, loss_of);
    sgd.emplace(net->parameters(), kSgd);
  }
  NDArray step(const Schedule& schedule, int number) {
    first->calls = second->calls = 0;
    const auto [x, y] = batch(DType::f32, number);
    return net->step(x, y, {.microbatches = schedule.microbatches, .schedule = schedule});
  }
  std::vector<std::byte> weight() const { return first->weight.to_bytes(); }

  std::shared_ptr<Special> first = std::make_shared<Special>(), second = std::make_shared<Special>();
  std::optional<parallel::Pipeline> net;
  std::optional<Sgd> sgd;
};

/// The weight after two good steps.
std::vector<std::byte> after_two_steps(const Schedule& schedule) {
  Training good;
  for (const int number : {0, 2}) {
    (void)good.step(schedule, number);
    good.sgd->step();
  }
  return good.weight();
}

/// A NaN that begins in F, I, W or R of microbatch 1 is told with its operator and place; the batch is left out.
TEST(PipelineFaults, ANanIsToldWithItsPlaceAndTheNextStepWorks) {
  const auto spoils = [](const NDArray& x) { return x * std::numeric_limits<double>::quiet_NaN(); };
  enum { forward, input, weight, again };
  for (const char* name : kSchedules) {
    DefaultEngine engine({.threads = 2, .logical_cpus = 2});
    const std::vector<std::byte> expected = after_two_steps(parallel::make_schedule(name, 2, 4));
    for (const int where : {forward, input, weight, again}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(where));
      Training training;
      Schedule schedule = parallel::make_schedule(name, 2, 4);
      (void)training.step(schedule, 0);
      training.sgd->step();
      Special& bad = *training.second;
      bad.at = 1;
      (where == input ? bad.of_input : where == weight ? bad.of_weight : bad.forwards) = spoils;
      bad.recomputes = where == again;
      if (bad.recomputes) schedule = parallel::with_recompute(schedule, {false, true});
      {
        AnomalyScope anomaly;
        (void)training.step(schedule, 1);
        const std::optional<Anomaly> found = anomaly.first();
        ASSERT_TRUE(found);
        EXPECT_EQ(std::string(found->layer), "stage 1.microbatch 1.0") << found->to_string();
        EXPECT_EQ(found->operation, "mul") << found->to_string();
        EXPECT_TRUE(found->is_origin()) << found->to_string();
        training.sgd->zero_grad();
        anomaly.clear();
        bad.at = -1;
        (void)training.step(schedule, 2);
        training.sgd->step();
        EXPECT_FALSE(anomaly.first());
      }
      EXPECT_TRUE(training.weight() == expected);
    }
  }
}

/// Two simulated devices with little memory, half of which is held when a step begins.
TEST(PipelineFaults, MemoryThatRunsOutIsToldWithItsPlaceAndTheNextStepWorks) {
  constexpr std::int64_t kWide = 64;  // an activation of a microbatch has 64 KiB
  struct Wide : Module {
    Wide() {
      RandomStream random(3, 5);
      weight = uniform({kWide, kWide}, random, -.1, .1).with_grad();
    }
    NDArray forward(const NDArray& x) override { return tanh(tanh(matmul(x, weight))); }
    void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
      out.push_back({prefix + "weight", &weight});
    }
    NDArray weight;
  };
  for (const char* name : {"gpipe", "zb-h1", "dynamic"}) {
    for (const int full : {0, 1}) {
      SCOPED_TRACE(std::string(name) + ", device " + std::to_string(full));
      EngineOptions options{.threads = 2, .logical_cpus = 2};
      options.providers.push_back(sim_devices(2, {.limits = {.memory = 6 << 20}}));
      Engine engine(options);
      engine.on_unobserved_error([](const ErrorRoot&) {});
      Engine* const before = &default_engine();
      set_default_engine(&engine);
      {
        const DeviceScope scope(sim(0));
        const auto first = std::make_shared<Wide>(), second = std::make_shared<Wide>();
        second->weight = first->weight;
        parallel::Pipeline net({{first, sim(0)}, {second, sim(1)}}, loss_of);
        Sgd sgd(net.parameters(), kSgd);
        RandomStream random(4, 4);
        const NDArray x = uniform({4 * 256, kWide}, random, -1, 1), y = uniform({4 * 256, kWide}, random, -1, 1);
        const parallel::PipelineStep step{.microbatches = 4, .schedule = name};
        const auto train = [&] {
          const NDArray loss = net.step(x, y, step);
          const NDArray gradient = first->weight.grad();
          sgd.step();
          return std::pair(loss, gradient);
        };
        train();
        const std::vector<std::byte> good = first->weight.to_bytes();
        engine.wait_all();
        std::string said;
        {
          // All but room for a few activations.
          const DeviceScope there(sim(full));
          std::vector<NDArray> held;
          do {
            held.push_back(zeros({32, 256}));
          } while (message([&] { held.back().wait(); }) == "nothing thrown");
          ASSERT_GT(held.size(), 100U);
          held.resize(held.size() - 12);
          const auto [loss, gradient] = train();
          said = message([&] { gradient.wait(); });
        }
        EXPECT_THAT(said, ContainsRegex("in stage " + std::to_string(full) + "(\\.microbatch [0-3])?.*has no .* left"));
        sgd.recover();
        EXPECT_TRUE(first->weight.to_bytes() == good);
        EXPECT_EQ(message([&] { train().first.wait(); }), "nothing thrown");
        EXPECT_FALSE(first->weight.to_bytes() == good);
      }
      set_default_engine(before);
      EXPECT_TRUE(engine.stop());
    }
  }
}

/// A scope that is cancelled while microbatch 1 is under way.
TEST(PipelineFaults, ACancelledStepTearsNothingAndTheNextStepWorks) {
  for (const char* name : kSchedules) {
    for (const bool with_step : {false, true}) {
      SCOPED_TRACE(std::string(name) + (with_step ? ", with the optimiser's step" : ""));
      DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      const Schedule schedule = parallel::make_schedule(name, 2, 4);
      const std::vector<std::byte> expected = after_two_steps(schedule);
      Training training;
      (void)training.step(schedule, 0);
      training.sgd->step();
      const std::vector<std::byte> before = training.weight();

      std::latch started(1), held(1);
      training.first->at = 1;
      // An op of the host, so that nothing behind it is issued to a device before it is over.
      training.first->forwards = [&](const NDArray& x) {
        const NDArray y = x + 0;
        const auto hold = [&] {
          started.count_down();
          held.wait();
        };
        default_engine().push(hold, {order(variable_of(y))}, {.on = cpu(0), .name = "held"});
        return y;
      };
      CancelScope scope;
      NDArray loss, gradient;
      {
        const CancelScope::Guard guard(scope);
        loss = training.step(schedule, 1);
        gradient = training.first->weight.grad();
        if (with_step) training.sgd->step();
      }
      started.wait();
      scope.cancel();
      held.count_down();
      if (!with_step) training.sgd->step();
      // A weight's transfer to a stage belongs to no microbatch, and may be what had not begun.
      const char* const said = "in stage [01](\\.microbatch [0-3].*| on .*)cancelled";
      EXPECT_THAT(message([&] { loss.wait(); }), ContainsRegex(said));
      EXPECT_THAT(message([&] { gradient.wait(); }), ContainsRegex(said));
      EXPECT_THAT(message([&] { training.first->weight.wait(); }), HasSubstr("cancelled"));
      training.sgd->recover();
      EXPECT_TRUE(training.weight() == before);
      training.first->at = -1;
      (void)training.step(schedule, 2);
      training.sgd->step();
      EXPECT_TRUE(training.weight() == expected);
    }
  }
}

/// Of a step that was cancelled as a whole, draws of random numbers count, on every schedule, and nothing else does
/// once the statistics are recovered, which belong to no optimiser.
TEST(PipelineFaults, StatisticsAndDrawsAfterACancelledStep) {
  const auto run = [](const Schedule& schedule) {
    DefaultEngine engine({.threads = 2, .logical_cpus = schedule.devices()});
    const Network network(DType::f32);
    parallel::Pipeline net(network.stages(schedule.stages, devices_of(schedule)), loss_of);
    Sgd sgd(net.parameters(), kSgd);
    std::vector<NDArray> losses;
    for (int number = 0; number < 3; ++number) {
      CancelScope scope;
      if (number == 1) scope.cancel();
      const auto [x, y] = batch(DType::f32, number);
      NDArray loss;
      {
        const CancelScope::Guard guard(scope);
        loss = net.step(x, y, {.microbatches = 4, .schedule = schedule});
      }
      sgd.step();
      if (number != 1) {
        losses.push_back(loss);
        continue;
      }
      EXPECT_THAT(message([&] { loss.wait(); }), HasSubstr("cancelled"));
      sgd.recover();
      for (const auto& block : network.blocks) {
        for (const NDArray& s : block->statistics()) default_engine().recover(s);
      }
    }
    return state_of(network, losses);
  };
  const Bytes expected = run(parallel::gpipe(1, 4));
  for (const char* name : {"1f1b", "zb-h2", "dynamic:2,3"}) {
    for (const int stages : {2, 4}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(stages) + " stages");
      EXPECT_TRUE(run(parallel::make_schedule(name, stages, 4)) == expected);
    }
  }
}

/// A U that throws at its push, and one whose gradient turns out bad.
TEST(PipelineFaults, AnUpdateThatFailsIsToldWithItsStageAndTheNextStepWorks) {
  for (const char* name : kSchedules) {
    SCOPED_TRACE(name);
    DefaultEngine engine({.threads = 2, .logical_cpus = 2});
    Training training;
    const auto [x, y] = batch(DType::f32, 1);
    enum { nothing, throws, bad } what = nothing;
    parallel::PipelineStep options{.microbatches = 4,
                                   .schedule = parallel::with_updates(parallel::make_schedule(name, 2, 4))};
    options.update = [&](int stage) {
      if (stage == 1) return;
      if (what == throws) throw std::runtime_error("no update");
      const NDArray& weight = training.first->weight;
      if (what == bad) {
        const NDArray spoilt = empty(weight.shape(), weight.dtype(), weight.device());
        push_op([](ArrayContext&) { throw std::runtime_error("on fire"); }, {weight.grad()}, {spoilt},
                {.on = weight.device(), .name = "clip"});
        weight.set_grad(spoilt);
      }
      training.sgd->step();
    };
    const auto step = [&] { return training.net->step(x, y, options); };
    step().wait();
    const std::vector<std::byte> before = training.weight();
    what = throws;
    EXPECT_EQ(message(step), "no update");
    EXPECT_TRUE(training.weight() == before);
    training.sgd->zero_grad();
    what = bad;
    (void)step();
    EXPECT_THAT(message([&] { training.first->weight.wait(); }),
                testing::AllOf(HasSubstr("on fire"), HasSubstr("in stage 0")));
    training.sgd->recover();
    EXPECT_TRUE(training.weight() == before);
    what = nothing;
    step().wait();
    const std::vector<std::byte> after = training.weight();

    Training good;
    for (int i = 0; i < 2; ++i) {
      (void)good.net->step(x, y, {.microbatches = 4});
      good.sgd->step();
    }
    EXPECT_TRUE(after == good.weight());
  }
}

/// Fewer microbatches than stages, one stage, one microbatch: every schedule that is defined there, with one device's
/// bits.
/// Where gradients are set apart until all of them are there, those of before the step come back when it throws.
TEST(PipelineFaults, AStepThatThrowsLeavesTheGradientsOfBefore) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  Training training;
  Schedule schedule = parallel::gpipe(2, 4);
  schedule.sum = parallel::sum_by_halves(4);
  (void)training.step(schedule, 0);
  const std::vector<std::byte> before = training.first->weight.grad().to_bytes();
  training.second->at = 2;
  training.second->of_input = [](const NDArray&) -> NDArray { throw std::runtime_error("not pushed"); };
  EXPECT_EQ(message([&] { (void)training.step(schedule, 1); }), "not pushed");
  ASSERT_TRUE(training.first->weight.grad().defined());
  EXPECT_EQ(training.first->weight.grad().to_bytes(), before);
}

TEST(PipelineFaults, FewMicrobatchesAndFewStagesRun) {
  const bool all = device_kind() == DeviceKind::cpu;
  for (const int microbatches : {1, 2, 3}) {
    const Bytes expected = sequential(DType::f32, microbatches, 2);
    for (const int stages : {1, 2, 3, 4}) {
      if (!all && stages + microbatches != 4) continue;
      for (const Schedule& schedule : schedules(stages, microbatches)) {
        SCOPED_TRACE(schedule.name + ", " + std::to_string(stages) + " stages, " + std::to_string(microbatches) +
                     " microbatches");
        EXPECT_TRUE(pipelined(DType::f32, schedule, 2) == expected);
        EXPECT_TRUE(!all || pipelined(DType::f32, schedule, 2, false) == expected) << "not strict";
        EXPECT_TRUE(pipelined(DType::f32, parallel::with_updates(schedule), 2) == expected);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
