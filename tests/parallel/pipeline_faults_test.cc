// Steps that go wrong in the middle: whoever waits is told stage and microbatch, no weight is torn, and the next step
// works. Errors of single actions are in pipeline_orders_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <stdexcept>
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
struct Special {
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-.5, .5)};
  std::function<NDArray(const NDArray&)> forwards{}, of_input{}, of_weight{};
  int at = -1, calls = 0;
  bool recomputes = false;
  nn::Place place{};
  NDArray operator()(const NDArray& x) {
    const nn::Here in_this_place = place();
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
};

/// A copy of x by an operation that fails.
NDArray on_fire(const NDArray& x) {
  const NDArray y = empty(x.shape(), x.dtype(), x.device());
  push_op([](ArrayContext&) { throw std::runtime_error("on fire"); }, {x}, {y}, {.on = x.device(), .name = "burns"});
  return y;
}

enum class Share { yes, no };

/// Two stages, which share their weight or do not.
struct TwoStages {
  explicit TwoStages(Share share = Share::yes, nn::AnyRule rule = kSgd)
      : first(std::make_shared<Special>()),
        second(share == Share::yes ? std::make_shared<Special>(first->weight.tied()) : std::make_shared<Special>()),
        net(first, second),
        stages((nn::initialise(net, 3), pipeline(net, on_devices({0, 1})))),
        opt(net, {{"*", std::move(rule)}}) {}
  NDArray step(const Schedule& schedule, int number, nn::Optimizer* optimizer = nullptr) {
    return step({.microbatches = schedule.microbatches, .schedule = schedule, .optimizer = optimizer}, number);
  }
  NDArray step(const parallel::PipelineStep& options, int number) {
    first->calls = second->calls = 0;
    const auto [x, y] = batch(DType::f32, number);
    return stages.step(x, y, options);
  }
  std::vector<std::byte> weight() const { return first->weight.value().to_bytes(); }

  std::shared_ptr<Special> first, second;
  Chain net;
  parallel::Pipeline stages;
  nn::Optimizer opt;
};

/// The weight after two good steps.
std::vector<std::byte> after_two_steps(const Schedule& schedule) {
  TwoStages good;
  for (const int number : {0, 2}) {
    (void)good.step(schedule, number);
    good.opt.step();
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
      TwoStages training;
      Schedule schedule = parallel::make_schedule(name, 2, 4);
      (void)training.step(schedule, 0);
      training.opt.step();
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
        EXPECT_EQ(std::string(found->layer), "stage 1.microbatch 1.1") << found->to_string();
        EXPECT_EQ(found->operation, "mul") << found->to_string();
        EXPECT_TRUE(found->is_origin()) << found->to_string();
        training.opt.zero_grad();
        anomaly.clear();
        bad.at = -1;
        (void)training.step(schedule, 2);
        training.opt.step();
        EXPECT_FALSE(anomaly.first());
      }
      EXPECT_TRUE(training.weight() == expected);
    }
  }
}

/// Two simulated devices with little memory, half of which is held when a step begins.
TEST(PipelineFaults, MemoryThatRunsOutIsToldWithItsPlaceAndTheNextStepWorks) {
  constexpr std::int64_t kWide = 64;  // an activation of a microbatch has 64 KiB
  struct Wide {
    nn::Parameter weight{{kWide, kWide}, nn::uniform(-.1, .1)};
    NDArray operator()(const NDArray& x) const { return tanh(tanh(matmul(x, weight))); }
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
        const auto first = std::make_shared<Wide>(), second = std::make_shared<Wide>(first->weight.tied());
        const Chain net(first, second);
        nn::initialise(net, 3);
        parallel::Pipeline stages(net, Spec{{256, kWide}}, {.devices = {sim(0), sim(1)}, .loss = loss_of});
        nn::Optimizer opt(net, kSgd);
        RandomStream random(4, 4);
        const NDArray x = uniform({4 * 256, kWide}, random, -1, 1), y = uniform({4 * 256, kWide}, random, -1, 1);
        const parallel::PipelineStep step{.microbatches = 4, .schedule = name};
        const auto train = [&] {
          const NDArray loss = stages.step(x, y, step);
          const NDArray gradient = first->weight.grad();
          opt.step();
          return std::pair(loss, gradient);
        };
        train();
        const std::vector<std::byte> good = first->weight.value().to_bytes();
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
        opt.recover();
        EXPECT_TRUE(first->weight.value().to_bytes() == good);
        EXPECT_EQ(message([&] { train().first.wait(); }), "nothing thrown");
        EXPECT_FALSE(first->weight.value().to_bytes() == good);
      }
      set_default_engine(before);
      EXPECT_TRUE(engine.stop());
    }
  }
}

/// A scope that is cancelled while microbatch 1 is under way.
TEST(PipelineFaults, ACancelledStepTearsNothingAndTheNextStepWorks) {
  enum { step_outside, step_inside, by_pipeline };
  for (const char* name : kSchedules) {
    for (const int how : {step_outside, step_inside, by_pipeline}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(how));
      DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      const Schedule schedule = parallel::make_schedule(name, 2, 4);
      const std::vector<std::byte> expected = after_two_steps(schedule);
      TwoStages training;
      (void)training.step(schedule, 0);
      training.opt.step();
      const Bytes before = state_of(training.net, training.opt);

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
        loss = training.step(schedule, 1, how == by_pipeline ? &training.opt : nullptr);
        gradient = training.first->weight.grad();  // dropped, where the pipeline steps
        if (how == step_inside) training.opt.step();
      }
      started.wait();
      scope.cancel();
      held.count_down();
      if (how == step_outside) training.opt.step();
      // A weight's transfer to a stage belongs to no microbatch, and may be what had not begun.
      const char* const said = "in stage [01](\\.microbatch [0-3].*| on .*)cancelled";
      EXPECT_THAT(message([&] { loss.wait(); }), ContainsRegex(said));
      ASSERT_EQ(gradient.defined(), how != by_pipeline);
      if (gradient.defined()) {
        EXPECT_THAT(message([&] { gradient.wait(); }), ContainsRegex(said));
      }
      EXPECT_THAT(message([&] { training.first->weight.value().wait(); }), HasSubstr("cancelled"));
      training.opt.recover();
      EXPECT_TRUE(state_of(training.net, training.opt) == before);
      training.first->at = -1;
      (void)training.step(schedule, 2);
      training.opt.step();
      EXPECT_TRUE(training.weight() == expected);
    }
  }
}

/// What a step pushes beside the program's operations may be what a cancelled step ends at: it names the program's line
/// and the stage, too.
TEST(PipelineFaults, WhatAStepPushesItselfNamesLineAndStage) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  TwoStages training;
  default_engine().start_trace();
  for (const char* name : {"1f1b", "dynamic"}) (void)training.step(parallel::make_schedule(name, 2, 4), 0);
  default_engine().wait_all();
  int found = 0;
  for (const TraceEvent& event : default_engine().stop_trace()) {
    if (std::string_view(event.name).substr(0, 9) != "pipeline ") continue;
    ++found;
    EXPECT_THAT(event.layer, HasSubstr("stage ")) << event.name;
    EXPECT_THAT(event.file, HasSubstr("pipeline_faults_test.cc")) << event.name;
  }
  EXPECT_GT(found, 0);
}

/// Of a step that was cancelled as a whole, draws of random numbers count, on every schedule, and nothing else does
/// once all is recovered.
TEST(PipelineFaults, StatisticsAndDrawsAfterACancelledStep) {
  const Bytes expected = [] {
    DefaultEngine engine({.threads = 1, .logical_cpus = 1});
    const Network network(DType::f32);
    nn::Optimizer opt(network, kSgd);
    RandomStream stream(4, 77);
    std::vector<NDArray> losses;
    for (int number = 0; number < 3; ++number) {
      const nn::Training on(stream);
      if (number == 1) continue;
      const auto [x, y] = batch(DType::f32, number);
      losses.push_back(accumulate(network, x, y, 4));
      opt.step();
    }
    return state_of(network, opt, losses);
  }();
  const auto run = [](const Schedule& schedule, By by) {
    DefaultEngine engine({.threads = 2, .logical_cpus = schedule.devices()});
    const Network network(DType::f32);
    parallel::Pipeline stages = pipeline_for(network, schedule, DType::f32);
    nn::Optimizer opt(network, kSgd);
    RandomStream stream(4, 77);
    std::vector<NDArray> losses;
    for (int number = 0; number < 3; ++number) {
      CancelScope scope;
      if (number == 1) scope.cancel();
      const auto [x, y] = batch(DType::f32, number);
      NDArray loss;
      {
        const CancelScope::Guard guard(scope);
        const nn::Training on(stream);
        loss = stages.step(x, y,
                           {.microbatches = 4,
                            .schedule = schedule,
                            .optimizer = by == By::hand ? nullptr : &opt,
                            .gate = by == By::stages ? parallel::Gate::none : parallel::Gate::all});
      }
      if (by == By::hand) opt.step();
      if (number != 1) {
        losses.push_back(loss);
        continue;
      }
      EXPECT_THAT(message([&] { loss.wait(); }), HasSubstr("cancelled"));
      opt.recover();
    }
    return state_of(network, opt, losses);
  };
  EXPECT_TRUE(run(parallel::gpipe(1, 4), By::hand) == expected);
  for (const char* name : {"1f1b", "zb-h2", "dynamic:2,3"}) {
    for (const int stages : {2, 4}) {
      for (const By by : {By::hand, By::optimizer, By::stages}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(stages) + " stages, " +
                     std::to_string(static_cast<int>(by)));
        EXPECT_TRUE(run(parallel::make_schedule(name, stages, 4), by) == expected);
      }
    }
  }
}

/// Whatever goes wrong in the third microbatch, parameters, statistics and what the optimiser keeps have the bits of
/// before the step, and the next one is as if the bad one had not been, but for its draw of random numbers.
TEST(PipelineFaults, BehindOneGateAFailedStepChangesNothing) {
  enum { nothing, body, backward, push, cancel, kinds };
  struct Made {
    Made() : last(std::make_shared<Block>(Use::transposed, embedding->weight.tied())) {
      net.add(embedding);
      net.add([this](const NDArray& x) { return bad ? bad(x) : x; });
      net.add(std::make_shared<Block>());
      net.add(last);
      nn::initialise(net, 5);
    }
    std::function<NDArray(const NDArray&)> bad;
    std::shared_ptr<Block> embedding = std::make_shared<Block>(), last;
    Chain net;
  };
  const Bytes expected = [] {
    DefaultEngine engine({.threads = 1, .logical_cpus = 1});
    const Made made;
    nn::Optimizer opt(made.net, kSgd);
    RandomStream stream(4, 77);
    for (int number = 0; number < 3; ++number) {
      const nn::Training on(stream);
      if (number == 1) continue;
      const auto [x, y] = batch(DType::f32, number);
      (void)accumulate(made.net, x, y, 4);
      opt.step();
    }
    return state_of(made.net, opt);
  }();
  for (const char* name : kSchedules) {
    for (int what = nothing + 1; what < kinds; ++what) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(what));
      DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      Made made;
      parallel::Pipeline stages = pipeline(made.net, on_devices({0, 1}), {0, 2});
      nn::Optimizer opt(made.net, kSgd);
      RandomStream stream(4, 77);
      const auto step = [&](int number) {
        const auto [x, y] = batch(DType::f32, number);
        const nn::Training on(stream);
        return stages.step(x, y, {.microbatches = 4, .schedule = name, .optimizer = &opt});
      };
      step(0).wait();
      const Bytes before = state_of(made.net, opt);
      CancelScope scope;
      int calls = 0;
      made.bad = [&](const NDArray& x) -> NDArray {
        if (calls++ != 2) return x;
        if (what == push) throw std::runtime_error("not pushed");
        if (what != cancel) {
          const auto burns = [](const NDArray& of, bool now) { return now ? on_fire(of) : of + 0; };
          return apply_custom(
              {.name = "special",
               .forward = [=](Saved&, const auto& xs) { return std::vector{burns(xs[0], what == body)}; },
               .backward = [=](const Saved&, const auto& g) { return std::vector{burns(g[0], what == backward)}; }},
              {x})[0];
        }
        const NDArray y = x + 0;
        default_engine().push([&] { scope.cancel(); }, {order(variable_of(y))}, {.on = cpu(0), .name = "cancels"});
        return y;
      };
      {
        const CancelScope::Guard guard(scope);
        const std::string said = message([&] { (void)step(1); });
        EXPECT_EQ(said, what == push ? "not pushed" : "nothing thrown");
      }
      if (what != push) {
        EXPECT_THAT(message([&] { made.last->weight.value().wait(); }),
                    HasSubstr(what == cancel ? "cancelled" : "on fire"));
      }
      opt.recover();
      EXPECT_TRUE(state_of(made.net, opt) == before);
      made.bad = nullptr;
      step(2).wait();
      EXPECT_TRUE(state_of(made.net, opt) == expected);
    }
  }
}

/// As nn::Sgd with momentum; but it may throw, and what it computes may fail.
struct Rule {
  enum What { nothing, throws, bad };
  std::shared_ptr<What> what = std::make_shared<What>(nothing);
  void operator()(nn::Update& u) const {
    if (*what == throws) throw std::runtime_error("no update");
    nn::Target& v = u.state("v");
    v.assign(.9 * v + (*what == bad ? on_fire(u.gradient) : u.gradient));
    u.value.assign(u.value - .05 * v);
  }
};

/// A rule that throws at its push, and one whose new values turn out bad: in the U of the stage that owns the weight,
/// and behind all stages.
TEST(PipelineFaults, AnUpdateThatFailsIsToldWithItsStageAndTheNextStepWorks) {
  for (const char* name : kSchedules) {
    for (const parallel::Gate gate : {parallel::Gate::none, parallel::Gate::all}) {
      SCOPED_TRACE(std::string(name) + (gate == parallel::Gate::all ? ", one gate" : ""));
      DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      const Rule rule;
      TwoStages training(Share::yes, rule);
      const parallel::PipelineStep options{.microbatches = 4,
                                           .schedule = parallel::with_updates(parallel::make_schedule(name, 2, 4)),
                                           .optimizer = &training.opt,
                                           .gate = gate};
      const auto step = [&] { return training.step(options, 1); };
      step().wait();
      const Bytes before = state_of(training.net, training.opt);
      *rule.what = Rule::throws;
      EXPECT_EQ(message(step), "no update");
      EXPECT_TRUE(state_of(training.net, training.opt) == before);
      training.opt.zero_grad();
      *rule.what = Rule::bad;
      (void)step();
      EXPECT_THAT(message([&] { training.first->weight.value().wait(); }),
                  testing::AllOf(HasSubstr("on fire"), HasSubstr(gate == parallel::Gate::none ? "in stage 0" : "")));
      training.opt.recover();
      EXPECT_TRUE(state_of(training.net, training.opt) == before);
      *rule.what = Rule::nothing;
      step().wait();
      const Bytes after = state_of(training.net, training.opt);

      TwoStages good(Share::yes, Rule());
      for (int i = 0; i < 2; ++i) {
        (void)good.step(parallel::gpipe(2, 4), 1);
        good.opt.step();
      }
      EXPECT_TRUE(after == state_of(good.net, good.opt));
    }
  }
}

/// Without a gate over all stages, one steps where another fails; with it none does.
TEST(PipelineFaults, WithoutAGateTheOtherStagesStep) {
  for (const char* name : kSchedules) {
    for (const parallel::Gate gate : {parallel::Gate::none, parallel::Gate::all}) {
      SCOPED_TRACE(std::string(name) + (gate == parallel::Gate::all ? ", one gate" : ""));
      DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      TwoStages training(Share::no), good(Share::no);
      const auto step = [&](TwoStages& of) {
        return of.step({.microbatches = 4, .schedule = name, .optimizer = &of.opt, .gate = gate}, 1);
      };
      const Bytes before = values_of(training.net);
      (void)step(good);
      const Bytes stepped = values_of(good.net);
      training.second->at = 1;
      training.second->of_weight = on_fire;
      (void)step(training);
      EXPECT_THAT(message([&] { training.second->weight.value().wait(); }),
                  testing::AllOf(HasSubstr("on fire"), HasSubstr("in stage 1.microbatch 1.1")));
      training.opt.recover();
      const Bytes after = values_of(training.net);
      // Where devices find errors late, a step's gate asks all of them, so it may be shut by another stage's error.
      const bool may_step = gate == parallel::Gate::none, must_step = may_step && !on_streams();
      EXPECT_TRUE((after[0] == before[0] && !must_step) || (after[0] == stepped[0] && may_step));
      EXPECT_EQ(after[1], before[1]);
      EXPECT_NE(stepped[0], before[0]);
    }
  }
}

/// Where gradients are set apart until all of them are there, those of before the step come back when it throws.
TEST(PipelineFaults, AStepThatThrowsLeavesTheGradientsOfBefore) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  TwoStages training;
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

/// Fewer microbatches than stages, one stage, one microbatch: every schedule that is defined there, with one device's
/// bits.
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
        EXPECT_TRUE(!all || pipelined(DType::f32, schedule, 2, true, 2, By::optimizer) == expected) << "one gate";
        EXPECT_TRUE(pipelined(DType::f32, parallel::with_updates(schedule), 2, true, 2, By::stages) == expected);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
