// Parameters that stages share: who owns them, how their gradients are added, and what is refused. That training has
// the bits of one device is in pipeline_orders_test.cc, whose network has two such weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "network.h"
#include "sluice/autograd/autograd.h"

namespace sluice {
namespace {

using parallel::Schedule;
using testing::ElementsAre;
using namespace test;  // NOLINT: network.h

/// A matrix product with a weight of its own or of another's, and nothing else.
struct Times {
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-1, 1)};
  NDArray operator()(const NDArray& x) const { return tanh(matmul(x, weight)); }
};

/// One product for each number. Those of one number share a weight, whose name is that of the first: "0.weight".
nn::Sequential tied(const std::vector<int>& weights) {
  std::map<int, nn::Parameter> first;
  nn::Sequential net;
  for (const int w : weights) {
    Times times;
    const auto [at, is_first] = first.try_emplace(w, times.weight.tied());
    if (!is_first) times.weight = at->second.tied();
    net.push_back(std::move(times));
  }
  nn::initialise(net, 1);
  return net;
}

NDArray value_of(const nn::Sequential& net, const std::string& name) {
  for (const nn::Named& p : nn::parameters(net)) {
    if (p.name == name) return p.state->value;
  }
  throw std::out_of_range(name);
}

std::vector<std::string> names(const std::vector<nn::Named>& list) {
  std::vector<std::string> all;
  for (const nn::Named& p : list) all.push_back(p.name);
  return all;
}

/// The gradients of all parameters after two steps, the second of which adds to those of the first.
template <class Net>
Bytes gradients(const Net& net, std::vector<Device> devices, std::vector<int> cut, const Schedule& schedule,
                bool strict = true) {
  parallel::Pipeline pipeline = test::pipeline(net, std::move(devices), std::move(cut));
  const auto [x, y] = batch(DType::f32, 1);
  for (int step = 0; step < 2; ++step) {
    (void)pipeline.step(x, y,
                        {.microbatches = schedule.microbatches,
                         .schedule = schedule,
                         .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready});
  }
  return gradients_of(net);
}

/// Five uses of one weight: a stage that runs the same trees has the same bits, and other trees have others.
TEST(PipelineTiedWeights, AreAddedByTheSchedulesTrees) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 4});
  const auto run = [](const std::vector<int>& cut, const Schedule& schedule, bool strict = true) {
    std::vector<int> each;
    for (int s = 0; s < schedule.stages; ++s) each.push_back(s);
    return gradients(tied({0, 0, 1, 0, 0, 2, 0}), on_devices(each), cut, schedule, strict);
  };
  const auto with = [](Schedule schedule, std::vector<int> stages, const char* uses, const char* sum) {
    schedule.tied = {{"0.weight", std::move(stages), *uses ? parallel::sum_tree(uses) : parallel::SumTree()}};
    if (*sum) schedule.sum = parallel::sum_tree(sum);
    return schedule;
  };
  const auto reversed = [](Schedule schedule) {
    for (auto& list : schedule.per_device) std::reverse(list.begin() + 4, list.end());
    return schedule;
  };
  std::vector<Bytes> seen;
  for (const char* uses : {"", "((0 1) (2 (3 4)))", "(4 3 2 1 0)"}) {
    for (const char* sum : {"", "((3 1) (2 0))"}) {
      SCOPED_TRACE(std::string("uses ") + uses + ", sum " + sum);
      const Bytes expected = run({0}, with(parallel::gpipe(1, 4), {0}, uses, sum));
      EXPECT_THAT(seen, testing::Not(testing::Contains(expected)));
      seen.push_back(expected);
      const std::vector<int> all{0, 1, 2, 3}, ends{0, 2};
      EXPECT_TRUE(run({0, 1, 3, 6}, with(parallel::zb_h1(4, 4), all, uses, sum)) == expected);
      EXPECT_TRUE(run({0, 2, 3}, with(parallel::one_f_one_b(3, 4), ends, uses, sum), false) == expected);
      EXPECT_TRUE(run({0, 1, 3, 6}, with(reversed(parallel::gpipe(4, 4)), all, uses, sum)) == expected);
      EXPECT_TRUE(run({0, 4}, with(parallel::with_recompute(parallel::zb_h2(2, 4), {true, false}), {0, 1}, uses,
                                   sum)) == expected);
      if (*sum) continue;
      EXPECT_TRUE(run({0, 1, 5}, with(parallel::dynamic({2, 3})(3, 4), {0, 1, 2}, uses, sum)) == expected);
    }
  }
}

/// The owner is the first stage that reads it; between calls the array lies there.
TEST(PipelineTiedWeights, BelongToTheirFirstStage) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  bool throws = false;
  nn::Sequential net = tied({0, 1, 1});
  net.push_back(std::function<NDArray(const NDArray&)>([&throws](const NDArray& x) {
    if (throws) throw std::runtime_error("not pushed");
    return x;
  }));
  parallel::Pipeline pipeline = test::pipeline(net, on_devices({0, 1, 2}), {0, 1, 2});
  EXPECT_THAT(names(nn::parameters(net)), ElementsAre("0.weight", "1.weight"));
  EXPECT_THAT(names(pipeline.parameters(0)), ElementsAre("0.weight"));
  EXPECT_THAT(names(pipeline.parameters(1)), ElementsAre("1.weight"));
  EXPECT_THAT(names(pipeline.parameters(2)), ElementsAre());
  const NDArray weight = value_of(net, "1.weight");
  const auto rests = [&] {
    EXPECT_TRUE(value_of(net, "1.weight").same_array(weight));
    EXPECT_TRUE(weight.device() == device(1));
    EXPECT_TRUE(weight.requires_grad());
  };
  rests();
  const auto [x, y] = batch(DType::f32, 1);
  (void)pipeline.step(x, y, {.microbatches = 3});
  rests();
  EXPECT_TRUE(weight.grad().device() == device(1));
  // Steps and forward() see what the weight is now, and backward outside of the pipeline adds to .grad() as ever.
  const std::vector<std::byte> output = pipeline.forward(x).to_bytes();
  {
    const NoGrad no_grad;
    weight.fill(.25);
  }
  EXPECT_NE(pipeline.forward(x).to_bytes(), output);
  weight.zero_grad();
  sum(weight.detach().with_grad()).backward();
  sum(weight * 3).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 3));
  // A step that throws while it is pushed leaves all as it was.
  throws = true;
  EXPECT_EQ(message([&] { (void)pipeline.step(x, y, {.microbatches = 3}); }), "not pushed");
  EXPECT_EQ(message([&] { (void)pipeline.forward(x); }), "not pushed");
  throws = false;
  rests();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 3));
  sum(weight).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 4));
  // Another pipeline over the same net finds the tie again.
  parallel::Pipeline other = test::pipeline(net, on_devices({0, 0, 1}), {0, 1, 2});
  EXPECT_THAT(names(other.parameters(1)), ElementsAre("1.weight"));
  EXPECT_THAT(names(other.parameters(2)), ElementsAre());
  const NDArray moved = value_of(net, "1.weight");
  EXPECT_TRUE(moved.device() == device(0));
  EXPECT_EQ(moved.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 4));
}

/// One part in two stages, on two devices or on one, has the bits of a part that is called twice.
TEST(PipelineTiedWeights, APartMayBeInTwoStages) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  struct Shared {
    Times twice, second, fourth;
    nn::Stages stages() const {
      nn::Stages list;
      for (const Times* part : {&twice, &second, &twice, &fourth, &twice}) list.add(*part);
      return list;
    }
  };
  const auto run = [](const std::vector<int>& cut, const std::vector<int>& devices, const Schedule& schedule,
                      bool strict = true) {
    const Shared net;
    nn::initialise(net, 1);
    return gradients(net, on_devices(devices), cut, schedule, strict);
  };
  const Bytes expected = run({0}, {0}, parallel::gpipe(1, 4));
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_TRUE(run({0, 2, 4}, {0, 1, 2}, parallel::zb_h1(3, 4)) == expected);
  EXPECT_TRUE(run({0, 1, 3}, {2, 1, 0}, parallel::with_recompute(parallel::gpipe(3, 4), {true, true, true})) ==
              expected);
  EXPECT_TRUE(run({0, 1, 2, 3}, {0, 1, 1, 0}, parallel::zbv(4, 4)) == expected);
  EXPECT_TRUE(run({0, 1, 2, 3}, {0, 1, 0, 1}, parallel::interleaved(2)(4, 4), false) == expected);
}

/// Where stages step by themselves, a tied weight is stepped with its owner alone, behind the uses of the others.
TEST(PipelineTiedWeights, AreSteppedOnce) {
  const auto run = [](const char* name, By by, bool listed = false) {
    DefaultEngine engine({.threads = 2, .logical_cpus = 3});
    const nn::Sequential net = tied({0, 1, 0});
    parallel::Pipeline pipeline = test::pipeline(net, on_devices({0, 1, 2}));
    nn::Optimizer opt(net, nn::Adam{.lr = .05});
    Schedule schedule = parallel::make_schedule(name, 3, 4);
    if (listed) schedule = parallel::with_updates(std::move(schedule));
    const parallel::PipelineStep options{.microbatches = 4,
                                         .schedule = schedule,
                                         .optimizer = by == By::hand ? nullptr : &opt,
                                         .gate = by == By::stages ? parallel::Gate::none : parallel::Gate::all};
    for (int step = 0; step < 4; ++step) {
      const auto [x, y] = batch(DType::f32, step);
      (void)pipeline.step(x, y, options);
      if (by == By::hand) opt.step();
    }
    EXPECT_EQ(opt.steps(), 4);
    return state_of(net, opt);
  };
  const Bytes expected = run("gpipe", By::hand);
  for (const char* name : {"1f1b", "zb-h1", "dynamic"}) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(run(name, By::optimizer) == expected);
    EXPECT_TRUE(run(name, By::stages) == expected);
    EXPECT_TRUE(run(name, By::stages, true) == expected);
  }
}

/// A frozen weight is brought along, and has no gradient; so is one that is frozen, or thawed, later.
TEST(PipelineTiedWeights, MayBeFrozen) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const nn::Sequential net = tied({0, 1, 0});
  nn::freeze(net, "0.weight");
  parallel::Pipeline pipeline = test::pipeline(net, on_devices({0, 1}), {0, 2});
  const auto [x, y] = batch(DType::f32, 1);
  Schedule schedule = parallel::gpipe(2, 3);
  schedule.sum = parallel::sum_tree("(2 1 0)");
  const auto has_gradients = [&](bool frozen) {
    pipeline.step(x, y, {.microbatches = 3, .schedule = schedule}).wait();
    EXPECT_EQ(value_of(net, "0.weight").grad().defined(), !frozen);
    EXPECT_TRUE(value_of(net, "1.weight").grad().defined());
  };
  has_gradients(true);
  nn::freeze(net, "0.weight", false);
  has_gradients(false);
  nn::freeze(net, "0.weight");
  has_gradients(true);
}

TEST(PipelineTiedWeights, WhatWouldBeSilentlyWrongIsRefused) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  const nn::Sequential net = tied({0, 1, 0});
  parallel::Pipeline pipeline = test::pipeline(net, on_devices({0, 1, 2}));
  const auto [x, y] = batch(DType::f32, 1);
  const auto step = [&](const Schedule& schedule) {
    return message([&] { (void)pipeline.step(x, y, {.microbatches = 2, .schedule = schedule}); });
  };
  Schedule schedule = parallel::gpipe(3, 2);
  const auto with = [&](const char* name, std::vector<int> stages, const char* uses = "") {
    schedule.tied = {{name, std::move(stages), *uses ? parallel::sum_tree(uses) : parallel::SumTree()}};
    return schedule;
  };
  EXPECT_EQ(step(with("0.weight", {0, 2})), "nothing thrown");
  EXPECT_EQ(step(with("0.weight", {0, 1})),
            "schedule 'gpipe' has the tied weight '0.weight' in the stages 0 and 1, and the pipeline has it in the "
            "stages 0 and 2");
  EXPECT_EQ(step(with("1.weight", {1, 2})),
            "schedule 'gpipe' has the tied weight '1.weight' in the stages 1 and 2, and the pipeline has it in stage 1 "
            "alone");
  EXPECT_EQ(step(with("0.bias", {0, 2})),
            "schedule 'gpipe' has the tied weight '0.bias' in the stages 0 and 2, and the pipeline has no parameter of "
            "that name in stage 0");
  EXPECT_EQ(step(with("2.weight", {2})),
            "schedule 'gpipe' has the tied weight '2.weight' in stage 2, and the pipeline has no parameter of that "
            "name in stage 2");
  EXPECT_EQ(step(with("0.weight", {3})),
            "schedule 'gpipe' has the tied weight '0.weight' in stage 3, and the pipeline has 3 stages");
  EXPECT_EQ(step(with("0.weight", {0, 2}, "(0 (1 2))")),
            "the tied weight '0.weight' of the stages 0 and 2 has 2 uses: the sum (0 (1 2)) counts use 2 of 2");
  // What was thrown leaves all as it was.
  for (const nn::Named& p : nn::parameters(net)) p.state->value.zero_grad();
  EXPECT_EQ(step(parallel::gpipe(3, 2)), "nothing thrown");
  const NDArray weight = value_of(net, "0.weight");
  weight.zero_grad();
  sum(weight).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 1));
}

/// What stages share was looked up when the pipeline was made.
TEST(PipelineTiedWeights, WhatIsTiedLaterIsRefused) {
  for (const bool one_device : {false, true}) {
    DefaultEngine engine({.threads = 2, .logical_cpus = 2});
    struct Net {
      nn::Linear a{kWidth, kWidth}, b{kWidth, kWidth};
      auto parts() { return nn::parts("a", a, "b", b); }
      nn::Stages stages() const {
        nn::Stages list;
        list.add(a);
        list.add(b);
        return list;
      }
    };
    Net net, other;
    nn::initialise(net, 1);
    nn::initialise(other, 1);
    parallel::Pipeline pipeline = test::pipeline(net, on_devices({0, one_device ? 0 : 1}));
    parallel::Pipeline second = test::pipeline(other, on_devices({0, one_device ? 0 : 1}));
    nn::Optimizer opt(net, kSgd), of_second(other, kSgd);
    const auto xy = batch(DType::f32, 1);
    const Bytes before = values_of(net), before_second = values_of(other);
    const auto said = [&](parallel::Pipeline& stages, nn::Optimizer& optimizer) {
      return message([&] {
        (void)stages.step(xy.first, xy.second,
                          {.microbatches = 2, .optimizer = &optimizer, .gate = parallel::Gate::none});
      });
    };
    net.b.weight = net.a.weight.tied();
    EXPECT_THAT(said(pipeline, opt), testing::HasSubstr("stage 1 reads 'a.weight'"));
    const auto slots = nn::contents(other).slots;
    const auto state = [&](const char* name) { return std::ranges::find(slots, name, &nn::Named::name)->state; };
    state("b.weight")->value = state("a.weight")->value;
    EXPECT_THAT(said(second, of_second), testing::HasSubstr("'a.weight' and 'b.weight' are one array"));
    EXPECT_EQ(values_of(net)[0], before[0]) << "a weight was stepped";
    EXPECT_EQ(values_of(other)[0], before_second[0]);
  }
}

/// The places of a net stay tied where it is moved, and one optimiser takes them.
TEST(PipelineTiedWeights, StayTiedWhereTheNetIsMoved) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  nn::Sequential net = tied({0, 1});
  Times inner;
  std::shared_ptr<nn::State> state;
  for (const nn::Named& p : nn::parameters(net)) {
    if (p.name == "0.weight") state = p.state;
  }
  inner.weight = nn::Parameter(state);
  net.push_back(nn::Sequential{std::move(inner)});
  const auto is_on = [&](Device device) {
    EXPECT_TRUE(state->value.device() == device);
    EXPECT_TRUE(state->value.requires_grad());
    EXPECT_THAT(names(nn::parameters(net)), ElementsAre("0.weight", "1.weight"));
    EXPECT_TRUE(value_of(net, "0.weight").same_array(state->value));
  };
  nn::to(net, device(1));
  is_on(device(1));
  nn::Optimizer opt(net, kSgd);
  // As a stage of a pipeline, too.
  parallel::Pipeline one = test::pipeline(net, on_devices({0}));
  is_on(device(0));
  const auto [x, y] = batch(DType::f32, 1);
  Schedule schedule = parallel::gpipe(1, 2);
  schedule.sum = parallel::sum_tree("(1 0)");
  const auto gradient = [&] {
    (void)one.step(x, y, {.microbatches = 2, .schedule = schedule});
    const std::vector<std::byte> bytes = state->value.grad().to_bytes();
    state->value.zero_grad();
    return bytes;
  };
  const std::vector<std::byte> expected = gradient();
  // The next step takes a net back that the program has moved away.
  nn::to(net, device(1));
  is_on(device(1));
  EXPECT_TRUE(gradient() == expected);
  is_on(device(0));
  opt.step();
}

}  // namespace
}  // namespace sluice
