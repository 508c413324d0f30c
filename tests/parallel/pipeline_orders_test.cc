// Pipelines whose order is not that of a list of forwards and backwards: free orders, recomputation, steps of single
// stages. The oracle is one device that runs the microbatches one after another, without any pipeline.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <latch>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "sluice/autograd/autograd.h"
#include "sluice/ndarray/push.h"
#include "sluice/nn/nn.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/parallel.h"

namespace sluice {
namespace {

using parallel::ActionKind;
using parallel::Schedule;

/// A layer with what must not depend on the schedule: random numbers, and statistics that a forward pass writes.
class Block : public Module {
 public:
  Block(std::int64_t in, std::int64_t out, DType dtype, std::uint64_t seed)
      : draws_(seed, 77),
        weight_(make(in, out, dtype, seed)),
        mean_(zeros({out}, dtype)),
        variance_(ones({out}, dtype)) {}

  NDArray forward(const NDArray& x) override {
    const NDArray y = batch_norm(tanh(matmul(x, weight_)), {mean_, variance_});
    return dropout(y, .25, draws_);
  }
  std::vector<NDArray> statistics() const { return {mean_, variance_}; }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "weight", &weight_});
  }
  void to(Device device) override {
    Module::to(device);
    mean_ = mean_.to(device);
    variance_ = variance_.to(device);
  }

 private:
  static NDArray make(std::int64_t in, std::int64_t out, DType dtype, std::uint64_t seed) {
    RandomStream random(seed, 5);
    return uniform({in, out}, random, -.5, .5, dtype).with_grad();
  }
  RandomStream draws_;
  NDArray weight_, mean_, variance_;
};

constexpr int kBlocks = 8, kWidth = 6, kRows = 19;

struct Network {
  explicit Network(DType dtype) {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_shared<Block>(kWidth, kWidth, dtype, 40 + static_cast<std::uint64_t>(i)));
    }
  }
  /// Uneven stages: the first ones have one block, the last one the rest.
  std::vector<parallel::Stage> stages(int count, const std::vector<int>& device_of) const {
    std::vector<parallel::Stage> all;
    for (int s = 0, block = 0; s < count; ++s) {
      Sequential part;
      const int end = s == count - 1 ? kBlocks : block + 1;
      for (; block < end; ++block) part.push_back(ModulePtr(blocks[static_cast<std::size_t>(block)]));
      all.push_back({std::make_shared<Sequential>(part), test::device(device_of[static_cast<std::size_t>(s)])});
    }
    return all;
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

NDArray loss_of(const NDArray& output, const NDArray& target, double divisor) {
  return sum(square(output - target)) / divisor;
}

using Bytes = std::vector<std::vector<std::byte>>;

Bytes state_of(const Network& network, const std::vector<NDArray>& losses) {
  Bytes bytes;
  for (const auto& block : network.blocks) {
    for (const NamedParameter& p : block->parameters()) bytes.push_back(p.value->to_bytes());
    for (const NDArray& s : block->statistics()) bytes.push_back(s.to_bytes());
  }
  for (const NDArray& loss : losses) bytes.push_back(loss.to_bytes());
  return bytes;
}

std::pair<NDArray, NDArray> batch(DType dtype, int step) {
  RandomStream random(900 + static_cast<std::uint64_t>(step), 3);
  const auto make = [&] { return uniform({kRows, kWidth}, random, -1, 1, dtype); };
  const NDArray x = make();
  return {x, make()};
}

constexpr SgdOptions kSgd{.lr = .05, .momentum = .9};

/// One device, no pipeline.
Bytes sequential(DType dtype, int microbatches, int steps) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  const Network network(dtype);
  std::vector<NamedParameter> parameters;
  for (const auto& block : network.blocks) block->collect("", parameters);
  Sgd sgd(parameters, kSgd);
  std::vector<NDArray> losses;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    std::vector<NDArray> parts;
    std::int64_t begin = 0;
    for (int k = 0; k < microbatches; ++k) {
      const std::int64_t end = begin + kRows / microbatches + (k < kRows % microbatches ? 1 : 0);
      NDArray value = x.narrow(0, begin, end);
      for (const auto& block : network.blocks) value = (*block)(value);
      const NDArray loss = loss_of(value, y.narrow(0, begin, end), kRows);
      loss.backward();
      parts.push_back(loss.detach());
      begin = end;
    }
    losses.push_back(add_n(parts));
    sgd.step();
  }
  return state_of(network, losses);
}

std::vector<int> devices_of(const Schedule& schedule) {
  const parallel::Order order(schedule);
  std::vector<int> devices;
  for (int s = 0; s < schedule.stages; ++s) devices.push_back(order.device_of_stage(s));
  return devices;
}

Bytes pipelined(DType dtype, const Schedule& schedule, int steps, bool strict = true, int threads = 2) {
  test::DefaultEngine engine({.threads = threads, .logical_cpus = schedule.devices()});
  const Network network(dtype);
  parallel::Pipeline net(network.stages(schedule.stages, devices_of(schedule)), loss_of);
  const bool updates = parallel::Order(schedule).has({ActionKind::step, 0, 0});
  Sgd sgd(net.parameters(), kSgd);
  std::deque<Sgd> of_stage;
  for (int s = 0; s < net.stages(); ++s) of_stage.emplace_back(net.stage(s).module->parameters(), kSgd);
  parallel::PipelineStep options{.microbatches = schedule.microbatches, .schedule = schedule, .strict_order = strict};
  if (updates) options.update = [&](int stage) { of_stage[static_cast<std::size_t>(stage)].step(); };
  std::vector<NDArray> losses;
  for (int step = 0; step < steps; ++step) {
    const auto [x, y] = batch(dtype, step);
    losses.push_back(net.step(x, y, options));
    if (!updates) sgd.step();
  }
  return state_of(network, losses);
}

std::vector<Schedule> schedules(int stages, int microbatches) {
  std::vector<Schedule> all;
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "dynamic", "dynamic:1,1", "dynamic:3,2", "interleaved:2",
                           "zbv", "dynamic-v", "dynamic-v:2,3"}) {
    try {
      all.push_back(parallel::make_schedule(name, stages, microbatches));
    } catch (const std::invalid_argument&) {
      continue;  // not defined here
    }
  }
  return all;
}

class PipelineOrders : public testing::TestWithParam<DType> {};

/// 19 rows in 4 microbatches, stages of one block and one of the rest, 20 steps with momentum, dropout and statistics.
/// On devices with streams, where a step takes twenty times as long, a slice: SLUICE_DEEP=1 runs all of it there too.
TEST_P(PipelineOrders, TwentyStepsHaveTheBitsOfOneDevice) {
  const bool slice = test::on_streams() && !std::getenv("SLUICE_DEEP");
  const int steps = slice ? 2 : 20;
  const Bytes expected = sequential(GetParam(), 4, steps);
  for (int stages = 1; stages <= 8; ++stages) {
    if (slice && stages != 2 && stages != 4) continue;
    for (const Schedule& schedule : schedules(stages, 4)) {
      if (schedule.devices() > test::kGpus && test::device_kind() != DeviceKind::cpu) continue;
      SCOPED_TRACE(std::to_string(stages) + " stages, " + schedule.name);
      EXPECT_TRUE(pipelined(GetParam(), schedule, steps) == expected);
      std::vector<bool> again(static_cast<std::size_t>(stages), true);
      EXPECT_TRUE(pipelined(GetParam(), parallel::with_recompute(schedule, again), steps) == expected) << "recomputed";
    }
  }
}

TEST_P(PipelineOrders, StepsOfSingleStagesHaveTheBitsOfOneStepOfAll) {
  const int steps = test::on_streams() ? 2 : 5;
  const Bytes expected = sequential(GetParam(), 3, steps);
  for (const Schedule& schedule : schedules(2, 3)) {
    for (const bool strict : {true, false}) {
      SCOPED_TRACE(schedule.name + (strict ? "" : ", not strict"));
      const Schedule updating = parallel::with_updates(parallel::with_recompute(schedule, {false, true}));
      EXPECT_TRUE(pipelined(GetParam(), updating, steps, strict, 4) == expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Precision, PipelineOrders, testing::Values(DType::f32, DType::f64),
                         [](const auto& of) { return of.param == DType::f32 ? "f32" : "f64"; });

TEST(PushPriority, OfAScopeHoldsForTheThreadsPushesOnArrays) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  EXPECT_THROW(PriorityScope{kPriorities}, UsageError);
  EXPECT_THROW(PriorityScope{-1}, UsageError);
  // One thread is held until all is pushed; then what has the higher priority runs first.
  std::latch started(1), held(1);
  std::vector<int> ran;
  std::vector<NDArray> keeps;
  const auto push = [&](int number, const NDArray& on, auto&& body) {
    push_op([&ran, number, body](ArrayContext&) { body(), ran.push_back(number); }, {}, {on}, {.name = "ordered"});
    keeps.push_back(on);
  };
  push(0, zeros({1}), [&] {
    started.count_down();
    held.wait();
  });
  started.wait();
  for (const int priority : {1, 5, 3}) {
    const NDArray on = empty({1}, DType::f32);
    const PriorityScope scope(priority);
    push(priority, on, [] {});
  }
  held.count_down();
  for (const NDArray& k : keeps) k.wait();
  engine.engine().wait_all();
  EXPECT_EQ(ran, (std::vector<int>{0, 5, 3, 1}));
}

/// compute_again() does what backward would do, and then backward does it no more.
TEST(PipelineOrders, WhatIsComputedAgainEarlyIsNotComputedTwice) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  int calls = 0;
  const NDArray x = from<double>({1, 2, 3}, {3}).with_grad();
  const NDArray y = checkpoint(
      [&](const NDArray& of) {
        ++calls;
        return exp(of) * of;
      },
      x);
  EXPECT_EQ(calls, 1);
  compute_again(y);
  EXPECT_EQ(calls, 2);
  compute_again(y);
  compute_again(x);
  EXPECT_EQ(calls, 2);
  sum(y).backward();
  EXPECT_EQ(calls, 2);
  const NDArray z = x.detach().with_grad();
  sum(exp(z) * z).backward();
  EXPECT_TRUE(x.grad().to_bytes() == z.grad().to_bytes());
}

enum class Fault { none, forward, input_gradient, weight_gradient, recomputation, never };

NDArray copied(const NDArray& x, bool fails) {
  const NDArray y = empty(x.shape(), x.dtype(), x.device());
  push_op(
      [fails](ArrayContext& c) {
        if (fails) throw std::runtime_error("on fire");
        test::copy_body(c);
      },
      {x}, {y}, {.on = x.device(), .name = "copied"});
  return y;
}

/// x times a weight, with one body of microbatch 1 that fails: where `fault` says.
class Faulty : public Module {
 public:
  Faulty() : weight_(ones({kWidth}).with_grad()) {}
  NDArray forward(const NDArray& x) override {
    const int call = calls++;
    const bool again = recomputes && call % 2 == 1;
    const bool here = (recomputes ? call / 2 : call) == 1;
    const auto pass = [&](const NDArray& of, Fault forward, Fault backward) {
      const bool now = here && fault == forward, later = here && fault == backward;
      return apply_custom({.name = "faulty",
                           .forward = [=](Saved&, const auto& xs) { return std::vector{copied(xs[0], now)}; },
                           .backward = [=](const Saved&, const auto& g) { return std::vector{copied(g[0], later)}; }},
                          {of})[0];
    };
    const NDArray weight = pass(weight_, Fault::never, Fault::weight_gradient);
    return pass(x, again ? Fault::recomputation : Fault::forward, Fault::input_gradient) * weight;
  }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "faulty", &weight_});
  }
  Fault fault = Fault::none;
  bool recomputes = false;
  int calls = 0;

 private:
  NDArray weight_;
};

/// Whoever waits is told the stage, the microbatch and the layer; no weight changes; and the next step is as if the bad
/// one had not been.
TEST(PipelineOrders, AFaultInAnyActionNamesItAndTheNextStepWorks) {
  for (const char* name : {"zb-h1", "dynamic"}) {
    for (const Fault fault : {Fault::forward, Fault::input_gradient, Fault::weight_gradient, Fault::recomputation}) {
      SCOPED_TRACE(std::string(name) + ", fault " + std::to_string(static_cast<int>(fault)));
      test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
      const auto module = std::make_shared<Faulty>();
      const auto first = std::make_shared<Faulty>();
      const auto join = [](const ModulePtr& m) { return std::make_shared<Sequential>(Sequential{m}); };
      parallel::Pipeline net({{join(first), test::device(0)}, {join(module), test::device(1)}}, loss_of);
      Sgd sgd(net.parameters(), kSgd);
      Schedule schedule = parallel::make_schedule(name, 2, 4);
      module->recomputes = fault == Fault::recomputation;
      if (module->recomputes) schedule = parallel::with_recompute(schedule, {false, true});
      NDArray gradient;
      const auto step = [&] {
        module->calls = first->calls = 0;
        const auto [x, y] = batch(DType::f32, 1);
        const NDArray loss = net.step(x, y, {.microbatches = 4, .schedule = schedule});
        // What its input's gradient is needed for is the stage before.
        gradient = (fault == Fault::input_gradient ? first : module)->parameters()[0].value->grad();
        sgd.step();
        return loss;
      };
      const auto weights = [&] {
        Bytes bytes;
        for (const NamedParameter& p : net.parameters()) bytes.push_back(p.value->to_bytes());
        return bytes;
      };
      step().wait();
      const Bytes before = weights();
      module->fault = fault;
      const NDArray loss = step();
      try {
        fault == Fault::forward ? loss.wait() : gradient.wait();
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("on fire"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("in stage 1.microbatch 1.0"), std::string::npos) << e.what();
      }
      sgd.recover();
      EXPECT_TRUE(weights() == before);
      module->fault = Fault::none;
      step().wait();
      EXPECT_FALSE(weights() == before);
    }
  }
}

/// A step that throws while it is pushed leaves nothing behind that holds the next one up.
TEST(PipelineOrders, AStepThatThrowsWhileItIsPushedHoldsNothingUp) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  struct Throws : Faulty {
    NDArray forward(const NDArray& x) override {
      if (throws && calls == 2) throw std::runtime_error("not pushed");
      return Faulty::forward(x);
    }
    bool throws = false;
  };
  const auto module = std::make_shared<Throws>();
  parallel::Pipeline net({{std::make_shared<Faulty>(), test::device(0)}, {module, test::device(1)}}, loss_of);
  const auto [x, y] = batch(DType::f32, 1);
  const parallel::PipelineStep options{.microbatches = 4, .schedule = "dynamic:2,3"};
  const double loss = net.step(x, y, options).item<double>();
  for (const NamedParameter& p : net.parameters()) p.value->zero_grad();
  module->calls = 0;
  module->throws = true;
  EXPECT_THROW(net.step(x, y, options), std::runtime_error);
  module->throws = false;
  EXPECT_EQ(net.step(x, y, options).item<double>(), loss);
}

}  // namespace
}  // namespace sluice
