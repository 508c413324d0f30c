// Steps that throw while they are pushed: gradients are what they were, so that the same step can be tried again.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "network.h"
#include "sluice/autograd/custom.h"

namespace sluice {
namespace {

using namespace test;  // NOLINT: network.h
using parallel::Schedule;

/// tanh(x . weight), which may throw in the forward or in the backward pass of one microbatch.
struct Fragile {
  nn::Parameter weight{{kWidth, kWidth}, nn::uniform(-.5, .5)};
  int forward_at = -1, backward_at = -1, forwards = 0, backwards = 0;
  NDArray operator()(const NDArray& x) {
    if (forwards++ == forward_at) throw std::runtime_error("not pushed");
    const auto pass = [this](const Saved&, const auto& g) {
      if (backwards++ == backward_at) throw std::runtime_error("not pushed");
      return std::vector{g[0] + 0};
    };
    const NDArray y = apply_custom(
        {.name = "fragile", .forward = [](Saved&, const auto& xs) { return std::vector{xs[0] + 0}; }, .backward = pass},
        {matmul(x, weight)})[0];
    return tanh(y);
  }
};

constexpr int kMicrobatches = 4;

/// Three stages, of which the first and the last share a weight or do not.
struct ThreeStages {
  explicit ThreeStages(bool shared = false)
      : first(std::make_shared<Fragile>()),
        parts{first, std::make_shared<Fragile>(),
              shared ? std::make_shared<Fragile>(first->weight.tied()) : std::make_shared<Fragile>()},
        net(parts[0], parts[1], parts[2]),
        stages((nn::initialise(net, 3), pipeline(net, on_devices({0, 1, 2})))) {}
  void step(const parallel::PipelineStep& options, int number) {
    for (const auto& part : parts) part->forwards = part->backwards = 0;
    const auto [x, y] = batch(DType::f32, number);
    (void)stages.step(x, y, options);
  }
  std::shared_ptr<Fragile> first;
  std::vector<std::shared_ptr<Fragile>> parts;
  Chain net;
  parallel::Pipeline stages;
};

std::vector<Schedule> all_schedules() {
  std::vector<Schedule> list;
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "dynamic"}) {
    list.push_back(parallel::make_schedule(name, 3, kMicrobatches));
  }
  list.push_back(list.front());
  list.back().name = "by halves";
  list.back().sum = parallel::sum_by_halves(kMicrobatches);
  return list;
}

/// Wherever the step throws, with gradients of an earlier step or without any, the next try has the bits of a first
/// one.
TEST(PipelineThrows, LeavesTheGradientsOfBefore) {
  for (const Schedule& schedule : all_schedules()) {
    for (const bool shared : {false, true}) {
      for (const bool earlier : {false, true}) {
        DefaultEngine engine({.threads = 2, .logical_cpus = 3});
        const parallel::PipelineStep options{.microbatches = kMicrobatches, .schedule = schedule};
        ThreeStages good(shared), made(shared);
        for (ThreeStages* one : {&good, &made}) {
          if (earlier) one->step(options, 0);
        }
        const Bytes before = gradients_of(made.net);
        good.step(options, 1);
        for (const std::size_t stage : {0, 1, 2}) {
          for (const bool forward : {true, false}) {
            SCOPED_TRACE(schedule.name + (shared ? ", shared" : "") + (earlier ? ", added" : "") + ", stage " +
                         std::to_string(stage) + (forward ? ", forward" : ", backward"));
            (forward ? made.parts[stage]->forward_at : made.parts[stage]->backward_at) = kMicrobatches - 1;
            EXPECT_EQ(message([&] { made.step(options, 1); }), "not pushed");
            EXPECT_TRUE(gradients_of(made.net) == before);
            made.parts[stage]->forward_at = made.parts[stage]->backward_at = -1;
          }
        }
        made.step(options, 1);
        EXPECT_TRUE(gradients_of(made.net) == gradients_of(good.net)) << schedule.name;
      }
    }
  }
}

/// Without a gate a stage may have stepped before another one throws: it keeps its step and has no gradient; the others
/// have theirs of before.
TEST(PipelineThrows, LeavesTheStepOfAStageThatHasStepped) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  ThreeStages made;
  nn::Optimizer opt(made.net, kSgd);
  made.step({.microbatches = kMicrobatches}, 0);
  const Bytes values = values_of(made.net), gradients = gradients_of(made.net);
  made.parts[0]->backward_at = kMicrobatches - 1;
  const parallel::PipelineStep options{.microbatches = kMicrobatches, .optimizer = &opt, .gate = parallel::Gate::none};
  EXPECT_EQ(message([&] { made.step(options, 1); }), "not pushed");
  const Bytes after = values_of(made.net), left = gradients_of(made.net);
  for (const std::size_t stage : {0, 1, 2}) {
    const bool stepped = after[stage] != values[stage];
    EXPECT_EQ(left[stage], stepped ? std::vector<std::byte>() : gradients[stage]) << stage;
  }
  EXPECT_EQ(after[0], values[0]);
  EXPECT_NE(after[2], values[2]);
}

/// A loss with a parameter of its own, which the pipeline's net does not have: with an optimiser for it or without one.
TEST(PipelineThrows, LeavesTheGradientOfTheLossAsItWas) {
  DefaultEngine engine({.threads = 2, .logical_cpus = 3});
  const NDArray scale = full({}, 2).to(test::device(1)).with_grad();
  const auto scaled = [&](const NDArray& output, const NDArray& target, double divisor) {
    return sum(square(output * scale - target)) / divisor;
  };
  const auto made = std::make_shared<Fragile>();
  const Chain net(std::make_shared<Fragile>(), made);
  nn::initialise(net, 3);
  parallel::Pipeline stages = pipeline(net, on_devices({0, 1}), {}, DType::f32, scaled);
  const auto [x, y] = batch(DType::f32, 0);
  const auto step = [&] {
    made->forwards = made->backwards = 0;
    (void)stages.step(x, y, {.microbatches = kMicrobatches});
  };
  for (const bool earlier : {false, true}) {
    const auto before = scale.grad().defined() ? scale.grad().to_bytes() : std::vector<std::byte>();
    const Bytes of_net = gradients_of(net);
    EXPECT_EQ(before.empty(), !earlier);
    made->backward_at = kMicrobatches - 1;
    EXPECT_EQ(message(step), "not pushed");
    EXPECT_EQ(scale.grad().defined() ? scale.grad().to_bytes() : std::vector<std::byte>(), before);
    EXPECT_TRUE(gradients_of(net) == of_net);
    made->backward_at = -1;
    step();
    EXPECT_NE(scale.grad().to_bytes(), before);
  }
}

}  // namespace
}  // namespace sluice
