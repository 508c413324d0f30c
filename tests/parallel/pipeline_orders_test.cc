// Pipelines whose order is not that of a list of forwards and backwards: free orders, recomputation, steps of single
// stages. The oracle is one device that runs the microbatches one after another, without any pipeline.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "network.h"
#include "sluice/autograd/autograd.h"
#include "sluice/ndarray/push.h"

namespace sluice {
namespace {

using parallel::Schedule;
using namespace test;  // NOLINT: network.h

class PipelineOrders : public testing::TestWithParam<DType> {
 protected:
  /// On the double of CUDA, where a step takes a hundred times as long, one dtype is enough but for SLUICE_DEEP=1: what
  /// these tests look at does not know dtypes.
  static bool is_left_out(DType kept) {
    return test::double_of_cuda.begin && GetParam() != kept && !std::getenv("SLUICE_DEEP");
  }
};

/// 19 rows in 4 microbatches, stages of one block and one of the rest, 20 steps with momentum, dropout, statistics and
/// weights that stages share; with strict orders and without.
/// On devices with streams, where a step takes twenty times as long, a slice: SLUICE_DEEP=1 runs all of it there too.
TEST_P(PipelineOrders, TwentyStepsHaveTheBitsOfOneDevice) {
  const bool slice = test::on_streams() && !std::getenv("SLUICE_DEEP");
  const int steps = slice ? 2 : 20;
  const Bytes expected = sequential(GetParam(), 4, steps);
  for (int stages = 1; stages <= 8; ++stages) {
    if (slice && stages != (GetParam() == DType::f32 ? 4 : 2)) continue;
    for (const Schedule& schedule : schedules(stages, 4)) {
      if (schedule.devices() > test::kGpus && test::device_kind() != DeviceKind::cpu) continue;
      SCOPED_TRACE(std::to_string(stages) + " stages, " + schedule.name);
      EXPECT_TRUE(pipelined(GetParam(), schedule, steps) == expected);
      std::vector<bool> again(static_cast<std::size_t>(stages), true);
      const Schedule recomputing = parallel::with_recompute(schedule, again);
      const bool strict = stages / 2 % 2 == 0;
      EXPECT_TRUE(pipelined(GetParam(), recomputing, steps, strict, 2, By::optimizer) == expected) << "recomputed";
    }
  }
}

TEST_P(PipelineOrders, StepsOfSingleStagesHaveTheBitsOfOneStepOfAll) {
  if (is_left_out(DType::f32)) GTEST_SKIP() << "the other dtype runs here";
  const int steps = on_streams() ? 2 : 5;
  const Bytes expected = sequential(GetParam(), 3, steps);
  bool even = true;
  for (const Schedule& schedule : schedules(2, 3)) {
    even = !even;
    for (const bool strict : {true, false}) {
      if (on_streams() && strict == even) continue;  // there a step takes long
      SCOPED_TRACE(schedule.name + (strict ? "" : ", not strict"));
      const Schedule recomputing = parallel::with_recompute(schedule, {false, true});
      const Schedule updating = parallel::with_updates(recomputing);
      EXPECT_TRUE(pipelined(GetParam(), updating, steps, strict, 4, By::stages) == expected);
      EXPECT_TRUE(pipelined(GetParam(), updating, steps, strict, 4, By::optimizer) == expected) << "one gate";
      if (on_streams()) continue;
      EXPECT_TRUE(pipelined(GetParam(), recomputing, steps, strict, 4, By::stages) == expected) << "gets its U";
    }
  }
}

/// The norm is that of all stages, and is told. With a weight that stages share, which counts once.
TEST_P(PipelineOrders, ClippedGradientsHaveTheBitsOfOneDevice) {
  if (is_left_out(DType::f64)) GTEST_SKIP() << "the other dtype runs here";
  constexpr double kMax = .5;
  const int steps = on_streams() ? 2 : 5;
  const Bytes expected = sequential(GetParam(), 4, steps, kMax);
  ASSERT_NE(expected.front(), sequential(GetParam(), 4, steps).front()) << "nothing was clipped";
  for (const int stages : {1, 2, 4}) {
    if (on_streams() && stages != 2) continue;
    for (const Schedule& schedule : schedules(stages, 4)) {
      SCOPED_TRACE(std::to_string(stages) + " stages, " + schedule.name);
      EXPECT_TRUE(pipelined(GetParam(), schedule, steps, stages != 2, 2, By::optimizer, kMax) == expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Precision, PipelineOrders, testing::Values(DType::f32, DType::f64),
                         [](const auto& of) { return of.param == DType::f32 ? "f32" : "f64"; });

/// Forwards in any order, as only a list of one's own has them: masks are the microbatches', those of layers and those
/// that operators draw from one stream. (Statistics would be written in the order of the list, so these layers have
/// none.)
struct Masked {
  std::reference_wrapper<RandomStream> draws;
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-1, 1)};
  nn::Dropout drop{.3};
  NDArray operator()(const NDArray& x) const {
    return dropout(tanh(matmul(dropout(drop(x), .3, draws.get()), weight)), .3, draws.get());
  }
};
TEST(PipelineOrders, MasksAreThoseOfMicrobatchesWhateverTheOrder) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const auto run = [](const char* order) {
    RandomStream stream(8), masks(9);
    const Chain net(std::make_shared<Masked>(stream), std::make_shared<Masked>(stream));
    nn::initialise(net, 8, {}, {.dtype = DType::f64});
    parallel::Pipeline stages = pipeline(net, on_devices({0, 1}), {}, DType::f64);
    Bytes bytes;
    for (int step = 0; step < 2; ++step) {
      const auto [x, y] = batch(DType::f64, step);
      const nn::Training on(masks);
      bytes.push_back(stages.step(x, y, {.microbatches = 3, .schedule = parallel::parse_schedule(order)}).to_bytes());
      for (const std::vector<std::byte>& gradient : gradients_of(net)) bytes.push_back(gradient);
    }
    return bytes;
  };
  const Bytes expected = run("s0 F0-2 B0-2\ns1 F0-2 B0-2\n");
  EXPECT_NE(expected[0], expected[3]) << "both steps have the same masks";
  EXPECT_TRUE(run("s0 F0 F1 B0 F2 B1 B2\ns1 F0 B0 F1 B1 F2 B2\n") == expected);
  EXPECT_TRUE(run("s0 F2 F0 B2 F1 B0 B1\ns1 F2 B2 F0 B0 F1 B1\n") == expected);
  EXPECT_TRUE(run("s0 F1 R1 F2 F0 R2 B2 B1 B0\ns1 F2 F1 B2 F0 B1 B0\n") == expected);
}

/// x times a weight, beside which it does something else.
struct Scaled {
  std::function<void(const NDArray&)> beside;
  nn::Parameter weight{{kWidth}, nn::constant(1)};
  NDArray operator()(const NDArray& x) const {
    beside(x);
    return x * weight;
  }
};

/// The second operation of a forward waits for a weight that comes last. Until then no other forward of the stage
/// begins.
TEST(FreeOrderOnOneThread, ForwardsDoNotOvertake) {
  test::DefaultEngine engine({.threads = 1, .logical_cpus = 1});
  std::vector<int> ran;
  int calls = 0;
  const NDArray late = empty({1}, DType::f32);
  const Chain net(std::make_shared<Scaled>([&](const NDArray& x) {
    const int k = calls++;
    const NDArray first = empty({1}, DType::f32), second = empty({1}, DType::f32);
    push_op([&ran, k](ArrayContext&) { ran.push_back(10 * k); }, {x}, {first}, {.name = "first"});
    push_op([&ran, k](ArrayContext&) { ran.push_back(10 * k + 1); }, {x, late}, {second}, {.name = "second"});
  }));
  nn::initialise(net, 1, {}, {.dtype = DType::f64});
  parallel::Pipeline stages = pipeline(net, {cpu(0)}, {}, DType::f64);
  const auto [x, y] = batch(DType::f64, 0);
  engine.engine().wait_all();
  calls = 0;  // not those of the dry run
  std::latch started(1), held(1);
  const NDArray busy = empty({1}, DType::f32);
  push_op([&](ArrayContext&) { started.count_down(), held.wait(); }, {}, {busy}, {.name = "held"});
  started.wait();  // the only thread is held until all is pushed
  {
    const PriorityScope last(0);
    push_op([](ArrayContext&) {}, {}, {late}, {.name = "late"});
  }
  const NDArray loss = stages.step(x, y, {.microbatches = 3, .schedule = "dynamic:3,3"});
  held.count_down();
  loss.wait();
  engine.engine().wait_all();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 10, 11, 20, 21}));
}

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
struct Faulty {
  Fault fault = Fault::none;
  bool recomputes = false;
  int calls = 0, throws_at = -1;
  nn::Parameter weight{{kWidth}, nn::constant(1)};
  nn::Place place{};
  NDArray operator()(const NDArray& x) {
    if (calls == throws_at) throw std::runtime_error("not pushed");
    const nn::Here in_this_place = place();
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
    const NDArray w = pass(weight, Fault::never, Fault::weight_gradient);
    return pass(x, again ? Fault::recomputation : Fault::forward, Fault::input_gradient) * w;
  }
};

/// Whoever waits is told the stage, the microbatch and the layer; no weight changes; and the next step is as if the bad
/// one had not been.
TEST(PipelineOrders, AFaultInAnyActionNamesItAndTheNextStepWorks) {
  for (const char* name : {"zb-h1", "dynamic"}) {
    for (const Fault fault : {Fault::forward, Fault::input_gradient, Fault::weight_gradient, Fault::recomputation}) {
      for (const bool by_hand : {true, false}) {
        SCOPED_TRACE(std::string(name) + ", fault " + std::to_string(static_cast<int>(fault)) +
                     (by_hand ? "" : ", the pipeline steps"));
        test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
        const auto first = std::make_shared<Faulty>(), second = std::make_shared<Faulty>();
        const Chain net(first, second);
        nn::initialise(net, 1);
        parallel::Pipeline stages = pipeline(net, on_devices({0, 1}));
        nn::Optimizer opt(net, kSgd);
        Schedule schedule = parallel::make_schedule(name, 2, 4);
        second->recomputes = fault == Fault::recomputation;
        if (second->recomputes) schedule = parallel::with_recompute(schedule, {false, true});
        NDArray gradient;
        const auto step = [&] {
          second->calls = first->calls = 0;
          const auto [x, y] = batch(DType::f32, 1);
          const NDArray loss =
              stages.step(x, y, {.microbatches = 4, .schedule = schedule, .optimizer = by_hand ? nullptr : &opt});
          // What its input's gradient is needed for is the stage before.
          const nn::Parameter& needs = (fault == Fault::input_gradient ? first : second)->weight;
          gradient = by_hand ? needs.grad() : needs.value();
          if (by_hand) opt.step();
          return loss;
        };
        step().wait();
        const Bytes before = state_of(net, opt);
        second->fault = fault;
        const NDArray loss = step();
        try {
          fault == Fault::forward ? loss.wait() : gradient.wait();
          ADD_FAILURE() << "no error";
        } catch (const Error& e) {
          EXPECT_NE(std::string(e.what()).find("on fire"), std::string::npos) << e.what();
          EXPECT_NE(std::string(e.what()).find("in stage 1.microbatch 1.1"), std::string::npos) << e.what();
        }
        opt.recover();
        EXPECT_TRUE(state_of(net, opt) == before);
        second->fault = Fault::none;
        step().wait();
        EXPECT_FALSE(state_of(net, opt) == before);
      }
    }
  }
}

/// A step that throws while it is pushed leaves nothing behind that holds the next one up.
TEST(PipelineOrders, AStepThatThrowsWhileItIsPushedHoldsNothingUp) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const auto last = std::make_shared<Faulty>();
  const Chain net(std::make_shared<Faulty>(), last);
  nn::initialise(net, 1);
  parallel::Pipeline stages = pipeline(net, on_devices({0, 1}));
  const auto [x, y] = batch(DType::f32, 1);
  const parallel::PipelineStep options{.microbatches = 4, .schedule = "dynamic:2,3"};
  const double loss = stages.step(x, y, options).item<double>();
  for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
  last->calls = 0;
  last->throws_at = 2;
  EXPECT_EQ(message([&] { (void)stages.step(x, y, options); }), "not pushed");
  last->throws_at = -1;
  EXPECT_EQ(stages.step(x, y, options).item<double>(), loss);
}

}  // namespace
}  // namespace sluice
