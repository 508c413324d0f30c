// Weights that stages share: who owns them, how their gradients are added, and what is refused. That training has the
// bits of one device is in pipeline_orders_test.cc, whose network has two such weights.
#include "sluice/autograd/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "network.h"
#include "sluice/autograd/uses.h"

namespace sluice {
namespace {

using parallel::Schedule;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace test;  // NOLINT: network.h

/// A matrix product with a weight of its own or of another's, and nothing else.
struct Times : Module {
  explicit Times(std::uint64_t seed) {
    RandomStream random(seed, 5);
    weight = uniform({kWidth, kWidth}, random, -1, 1).with_grad();
  }
  NDArray forward(const NDArray& x) override { return tanh(matmul(x, weight)); }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "weight", &weight});
  }
  NDArray weight;
};

std::shared_ptr<Times> times(std::uint64_t seed) { return std::make_shared<Times>(seed); }

/// `layers` in stages of one device each, the stages beginning at `cuts`.
std::vector<parallel::Stage> cut(const std::vector<ModulePtr>& layers, const std::vector<std::size_t>& cuts) {
  std::vector<parallel::Stage> stages;
  for (std::size_t s = 0; s < cuts.size(); ++s) {
    const std::size_t end = s + 1 < cuts.size() ? cuts[s + 1] : layers.size();
    stages.push_back(
        {std::make_shared<Sequential>(Sequential(layers).slice(cuts[s], end)), device(static_cast<int>(s))});
  }
  return stages;
}

/// The tied weight's gradient after a step, and whether a second step adds to it.
Bytes gradients(const std::vector<parallel::Stage>& stages, const Schedule& schedule, bool strict = true) {
  parallel::Pipeline net(stages, loss_of);
  const auto [x, y] = batch(DType::f32, 1);
  for (int step = 0; step < 2; ++step) {
    (void)net.step(x, y,
                   {.microbatches = schedule.microbatches,
                    .schedule = schedule,
                    .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready});
  }
  Bytes bytes;
  for (const NamedParameter& p : net.parameters()) bytes.push_back(p.value->grad().to_bytes());
  return bytes;
}

/// Five uses of one weight: a stage that runs the same trees has the same bits, and other trees have others.
TEST(PipelineTiedWeights, AreAddedByTheSchedulesTrees) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 4});
  const auto layers = [] {
    const auto first = times(1);
    std::vector<ModulePtr> all{first};
    for (std::uint64_t i = 2; i < 8; ++i) {
      const auto next = times(i);
      if (i != 3 && i != 6) next->weight = first->weight;
      all.push_back(next);
    }
    return all;
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
      const Bytes expected = gradients(cut(layers(), {0}), with(parallel::gpipe(1, 4), {0}, uses, sum));
      EXPECT_THAT(seen, testing::Not(testing::Contains(expected)));
      seen.push_back(expected);
      const std::vector<int> all{0, 1, 2, 3}, ends{0, 2};
      EXPECT_TRUE(gradients(cut(layers(), {0, 1, 3, 6}), with(parallel::zb_h1(4, 4), all, uses, sum)) == expected);
      EXPECT_TRUE(gradients(cut(layers(), {0, 2, 3}), with(parallel::one_f_one_b(3, 4), ends, uses, sum), false) ==
                  expected);
      EXPECT_TRUE(gradients(cut(layers(), {0, 1, 3, 6}), with(reversed(parallel::gpipe(4, 4)), all, uses, sum)) ==
                  expected);
      EXPECT_TRUE(gradients(cut(layers(), {0, 4}), with(parallel::with_recompute(parallel::zb_h2(2, 4), {true, false}),
                                                        {0, 1}, uses, sum)) == expected);
      if (*sum) continue;
      EXPECT_TRUE(gradients(cut(layers(), {0, 1, 5}), with(parallel::dynamic({2, 3})(3, 4), {0, 1, 2}, uses, sum)) ==
                  expected);
    }
  }
}

/// The owner is the first stage that has it; between calls all handles are its array.
TEST(PipelineTiedWeights, BelongToTheirFirstStage) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  const auto a = times(1), b = times(2), c = times(3);
  c->weight = b->weight;
  parallel::Pipeline net({{a, device(0)}, {b, device(1)}, {c, device(2)}}, loss_of);
  const auto names = [](const std::vector<NamedParameter>& list) {
    std::vector<NDArray*> handles;
    for (const NamedParameter& p : list) handles.push_back(p.value);
    return handles;
  };
  EXPECT_THAT(names(net.parameters()), ElementsAre(&a->weight, &b->weight));
  EXPECT_THAT(names(net.parameters(1)), ElementsAre(&b->weight));
  EXPECT_THAT(names(net.parameters(2)), ElementsAre());
  const auto rests = [&] {
    EXPECT_TRUE(c->weight.same_array(b->weight));
    EXPECT_TRUE(c->weight.device() == device(1));
    EXPECT_TRUE(c->weight.requires_grad());
  };
  rests();
  const auto [x, y] = batch(DType::f32, 1);
  (void)net.step(x, y, {.microbatches = 3});
  rests();
  EXPECT_TRUE(c->weight.grad().device() == device(1));
  // Steps and forward() see what the weight is now, and backward outside of the pipeline adds to .grad() as ever.
  const std::vector<std::byte> output = net.forward(x).to_bytes();
  {
    const NoGrad no_grad;
    b->weight.fill(.25);
  }
  EXPECT_NE(net.forward(x).to_bytes(), output);
  b->weight.zero_grad();
  sum(b->weight.detach().with_grad()).backward();
  sum(b->weight * 3).backward();
  EXPECT_EQ(b->weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 3));
  // A step that throws while it is pushed leaves all as it was.
  struct Throws : Module {
    NDArray forward(const NDArray&) override { throw std::runtime_error("not pushed"); }
  };
  {
    const auto last = std::make_shared<Sequential>(Sequential{ModulePtr(c), std::make_shared<Throws>()});
    parallel::Pipeline throwing({{a, device(0)}, {b, device(1)}, {last, device(2)}}, loss_of);
    EXPECT_EQ(message([&] { (void)throwing.step(x, y, {.microbatches = 3}); }), "not pushed");
    EXPECT_EQ(message([&] { (void)throwing.forward(x); }), "not pushed");
    rests();
  }
  // Another pipeline over the same modules finds the tie again.
  parallel::Pipeline other({{a, device(0)}, {b, device(0)}, {c, device(1)}}, loss_of);
  EXPECT_EQ(other.parameters().size(), 2U);
  EXPECT_TRUE(c->weight.same_array(b->weight));
  EXPECT_TRUE(c->weight.device() == device(0));
  EXPECT_EQ(b->weight.grad().to_vector<float>(), std::vector<float>(kWidth * kWidth, 3));
}

/// One module in two stages, on two devices or on one, has the bits of a module that is called twice.
TEST(PipelineTiedWeights, AModuleMayBeInTwoStages) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  const auto shared = [](const std::vector<std::size_t>& cuts, const std::vector<int>& devices) {
    const auto twice = times(1);
    std::vector<parallel::Stage> stages = cut({twice, times(2), twice, times(4), twice}, cuts);
    for (std::size_t s = 0; s < stages.size(); ++s) stages[s].device = device(devices[s]);
    return stages;
  };
  const Bytes expected = gradients(shared({0}, {0}), parallel::gpipe(1, 4));
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_TRUE(gradients(shared({0, 2, 4}, {0, 1, 2}), parallel::zb_h1(3, 4)) == expected);
  EXPECT_TRUE(gradients(shared({0, 1, 3}, {2, 1, 0}),
                        parallel::with_recompute(parallel::gpipe(3, 4), {true, true, true})) == expected);
  EXPECT_TRUE(gradients(shared({0, 1, 2, 3}, {0, 1, 1, 0}), parallel::zbv(4, 4)) == expected);
  EXPECT_TRUE(gradients(shared({0, 1, 2, 3}, {0, 1, 0, 1}), parallel::interleaved(2)(4, 4), false) == expected);
}

/// An update that is given more than the stage's own parameters steps a tied weight with its owner alone.
TEST(PipelineTiedWeights, AreSteppedOnce) {
  const auto run = [](const char* name, bool updates) {
    DefaultEngine engine({.threads = 2, .logical_cpus = 3});
    const auto a = times(1), b = times(2), c = times(3);
    c->weight = a->weight;
    parallel::Pipeline net({{a, device(0)}, {b, device(1)}, {c, device(2)}}, loss_of);
    Sgd sgd(net.parameters(), kSgd);
    std::deque<Sgd> of_stage;
    for (int s = 0; s < 3; ++s) of_stage.emplace_back(net.stage(s).module->parameters(), kSgd);
    parallel::PipelineStep options{.microbatches = 4, .schedule = parallel::make_schedule(name, 3, 4)};
    if (updates) {
      options.schedule = parallel::with_updates(parallel::make_schedule(name, 3, 4));
      options.update = [&](int s) { of_stage[static_cast<std::size_t>(s)].step(); };
    }
    for (int step = 0; step < 4; ++step) {
      const auto [x, y] = batch(DType::f32, step);
      (void)net.step(x, y, options);
      if (!updates) sgd.step();
    }
    return Bytes{a->weight.to_bytes(), b->weight.to_bytes(), c->weight.to_bytes()};
  };
  for (const char* name : {"1f1b", "zb-h1", "dynamic"}) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(run(name, true) == run("gpipe", false));
  }
}

/// A frozen weight is brought along, and has no gradient.
TEST(PipelineTiedWeights, MayBeFrozen) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const auto a = times(1), b = times(2), c = times(3);
  a->weight = a->weight.detach();
  c->weight = a->weight;
  parallel::Pipeline net(
      {{std::make_shared<Sequential>(Sequential{ModulePtr(a), ModulePtr(b)}), device(0)}, {c, device(1)}}, loss_of);
  const auto [x, y] = batch(DType::f32, 1);
  Schedule schedule = parallel::gpipe(2, 3);
  schedule.sum = parallel::sum_tree("(2 1 0)");
  net.step(x, y, {.microbatches = 3, .schedule = schedule}).wait();
  EXPECT_FALSE(c->weight.grad().defined());
  EXPECT_TRUE(b->weight.grad().defined());
}

TEST(PipelineTiedWeights, WhatWouldBeSilentlyWrongIsRefused) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  const auto a = times(1), b = times(2), c = times(3);
  const auto make = [&] { return parallel::Pipeline({{a, device(0)}, {b, device(1)}, {c, device(2)}}, loss_of); };
  c->weight = a->weight.permute({1, 0});
  EXPECT_THAT(message(make), HasSubstr("[Pipeline] the parameter 'weight' of stage 2 is another view of 'weight' of "
                                       "stage 0"));
  c->weight = a->weight;
  parallel::Pipeline net = make();
  const auto [x, y] = batch(DType::f32, 1);
  const auto step = [&](const Schedule& schedule) {
    return message([&] { (void)net.step(x, y, {.microbatches = 2, .schedule = schedule}); });
  };
  Schedule schedule = parallel::gpipe(3, 2);
  const auto tied = [&](const char* name, std::vector<int> stages, const char* uses = "") {
    schedule.tied = {{name, std::move(stages), *uses ? parallel::sum_tree(uses) : parallel::SumTree()}};
    return schedule;
  };
  EXPECT_EQ(step(tied("weight", {0, 2})), "nothing thrown");
  EXPECT_EQ(step(tied("weight", {0, 1})),
            "schedule 'gpipe' has the tied weight 'weight' in the stages 0 and 1, and the pipeline has it in the "
            "stages 0 and 2");
  EXPECT_EQ(step(tied("weight", {1, 2})),
            "schedule 'gpipe' has the tied weight 'weight' in the stages 1 and 2, and the pipeline has it in stage 1 "
            "alone");
  EXPECT_EQ(step(tied("bias", {0, 2})),
            "schedule 'gpipe' has the tied weight 'bias' in the stages 0 and 2, and the pipeline has no parameter of "
            "that name in stage 0");
  EXPECT_EQ(step(tied("weight", {3})),
            "schedule 'gpipe' has the tied weight 'weight' in stage 3, and the pipeline has 3 stages");
  EXPECT_EQ(step(tied("weight", {0, 2}, "(0 (1 2))")),
            "the tied weight 'weight' of the stages 0 and 2 has 2 uses: the sum (0 (1 2)) counts use 2 of 2");
  // What was thrown leaves all as it was.
  for (const NamedParameter& p : net.parameters()) p.value->zero_grad();
  EXPECT_EQ(step(parallel::gpipe(3, 2)), "nothing thrown");
  sum(c->weight).backward();
  EXPECT_TRUE(c->weight.grad().defined());
  c->weight = times(4)->weight;
  EXPECT_THAT(step(parallel::gpipe(3, 2)), HasSubstr("was one array on " + to_string(device(0))));
}

/// The parts of one module stay tied where it is moved, and one optimiser takes them.
TEST(PipelineTiedWeights, OfOneModuleStayTiedWhereItIsMoved) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const auto a = times(1), b = times(2), c = times(3);
  c->weight = a->weight;
  Sequential net{ModulePtr(a), ModulePtr(b), ModulePtr(std::make_shared<Sequential>(Sequential{ModulePtr(c)}))};
  net.to(device(1));
  EXPECT_TRUE(c->weight.same_array(a->weight));
  EXPECT_TRUE(c->weight.device() == device(1));
  EXPECT_TRUE(c->weight.requires_grad());
  EXPECT_EQ(net.parameters().size(), 2U);
  EXPECT_NO_THROW(Sgd(net.parameters(), kSgd));
  // As a stage of a pipeline, too.
  parallel::Pipeline one({{std::make_shared<Sequential>(net), device(0)}}, loss_of);
  EXPECT_TRUE(c->weight.same_array(a->weight));
  EXPECT_TRUE(c->weight.device() == device(0));
  const auto [x, y] = batch(DType::f32, 1);
  Schedule schedule = parallel::gpipe(1, 2);
  schedule.sum = parallel::sum_tree("(1 0)");
  (void)one.step(x, y, {.microbatches = 2, .schedule = schedule});
  EXPECT_TRUE(a->weight.grad().defined());
}

}  // namespace
}  // namespace sluice
