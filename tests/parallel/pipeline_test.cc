// Pipelines against the same microbatches run one after another, without any pipeline.
#include "sluice/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <map>

#include "../support/devices.h"
#include "sluice/autograd/autograd.h"
#include "sluice/nn/nn.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/parallel.h"
#include "sluice/resources/providers/sim.h"

namespace sluice {
namespace {

struct TestEngine : test::DefaultEngine {
  explicit TestEngine(int devices, int threads = 2)
      : DefaultEngine({.threads = threads, .logical_cpus = devices}), engine(DefaultEngine::engine()) {}
  Engine& engine;
};

/// A small network of seven layers, the same for the same seed.
std::vector<ModulePtr> make_layers(std::uint64_t seed) {
  RandomStream random(seed);
  return {std::make_shared<Conv2d>(1, 4, 3, random, ConvOptions{.relu = true}),
          std::make_shared<MaxPool2d>(2),
          std::make_shared<Conv2d>(4, 6, 3, random),
          std::make_shared<Relu>(),
          std::make_shared<Flatten>(),
          std::make_shared<Linear>(6 * 3 * 3, 16, random, LinearLayerOptions{.relu = true}),
          std::make_shared<Linear>(16, 5, random)};
}

Sequential join(const std::vector<ModulePtr>& layers) {
  Sequential whole;
  for (const ModulePtr& layer : layers) whole.push_back(layer);
  return whole;
}

std::vector<parallel::Stage> make_stages(const std::vector<ModulePtr>& layers, int stages) {
  static const std::vector<std::size_t> cuts[] = {{0, 7}, {0, 3, 7}, {0, 2, 5, 7}, {0, 1, 3, 6, 7}};
  const auto& cut = cuts[stages - 1];
  const Sequential whole = join(layers);
  std::vector<parallel::Stage> result;
  for (int i = 0; i < stages; ++i)
    result.push_back({std::make_shared<Sequential>(
                          whole.slice(cut[static_cast<std::size_t>(i)], cut[static_cast<std::size_t>(i) + 1])),
                      test::device(i)});
  return result;
}

struct Data {
  NDArray x, y;
};
Data make_data(std::int64_t rows, std::uint64_t seed) {
  RandomStream random(seed, 9);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back((i * 7 + 3) % 5);
  return {normal({rows, 1, 12, 12}, random), from(labels, {rows})};
}

using Bytes = std::map<std::string, std::vector<std::byte>>;

Bytes gradients_of(const std::vector<NamedParameter>& parameters) {
  Bytes bytes;
  for (const NamedParameter& p : parameters) bytes[p.name] = p.value->grad().to_bytes();
  return bytes;
}

struct Expected {
  Bytes gradients;
  double loss = 0;
};

/// The oracle: whole model, one device, microbatches in order.
Expected sequential(std::int64_t rows, int microbatches, std::uint64_t seed) {
  TestEngine one(1, 1);
  Sequential model = join(make_layers(seed));
  const Data data = make_data(rows, seed);
  Expected expected;
  std::vector<NDArray> losses;
  std::int64_t begin = 0;
  for (int k = 0; k < microbatches; ++k) {
    const std::int64_t end = begin + rows / microbatches + (k < rows % microbatches ? 1 : 0);
    NDArray loss = cross_entropy(model.forward(data.x.narrow(0, begin, end)), data.y.narrow(0, begin, end),
                                 static_cast<double>(rows));
    loss.backward();
    expected.loss += loss.item<double>();
    begin = end;
  }
  expected.gradients = gradients_of(model.parameters());
  return expected;
}

class PipelineBits : public testing::TestWithParam<int> {};

TEST_P(PipelineBits, GradientsEqualThoseOfMicrobatchesRunOneAfterAnother) {
  const int stages = GetParam();
  for (const auto& [rows, microbatches] :
       std::vector<std::pair<std::int64_t, int>>{{12, 1}, {12, 3}, {16, 8}, {13, 5}, {2, 2}}) {
    const std::uint64_t seed = 100 + static_cast<std::uint64_t>(microbatches);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", rows " << rows << ", microbatches " << microbatches);
    const Expected expected = sequential(rows, microbatches, seed);
    for (auto schedule : {parallel::gpipe, parallel::one_f_one_b, parallel::zb_h1, parallel::zb_h2})
      for (bool strict : {true, false}) {
        TestEngine many(stages);
        parallel::Pipeline net(make_stages(make_layers(seed), stages));
        const Data data = make_data(rows, seed);
        const NDArray loss = net.step(data.x, data.y,
                                      {.microbatches = microbatches,
                                       .schedule = schedule,
                                       .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready});
        EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
        EXPECT_EQ(gradients_of(net.parameters()), expected.gradients)
            << schedule(stages, microbatches).name << (strict ? "" : ", free order");
      }
  }
}
INSTANTIATE_TEST_SUITE_P(Stages, PipelineBits, testing::Values(1, 2, 3, 4));

/// Four stages on two devices, as the schedule wants them.
TEST(PipelineBits, SeveralStagesOfADevice) {
  const Expected expected = sequential(16, 4, 100);
  const auto on_devices = [](std::initializer_list<int> devices) {
    std::vector<parallel::Stage> stages = make_stages(make_layers(100), 4);
    auto stage = stages.begin();
    for (const int d : devices) (stage++)->device = test::device(d);
    return stages;
  };
  const auto run = [&](std::vector<parallel::Stage> stages, const parallel::ScheduleChoice& schedule) {
    parallel::Pipeline net(std::move(stages));
    const Data data = make_data(16, 100);
    const NDArray loss = net.step(data.x, data.y, {.microbatches = 4, .schedule = schedule});
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
    EXPECT_EQ(gradients_of(net.parameters()), expected.gradients);
  };
  TestEngine many(4);
  run(on_devices({0, 1, 0, 1}), parallel::interleaved(2));
  run(on_devices({0, 1, 1, 0}), parallel::zbv);
  run(on_devices({0, 1, 1, 0}), "zbv");
  // One device is enough for any schedule.
  run(on_devices({0, 0, 0, 0}), "interleaved:2");
  run(on_devices({0, 0, 0, 0}), "zb-h2");
  parallel::Pipeline net(on_devices({0, 1, 2, 3}));
  const Data data = make_data(16, 100);
  try {
    net.step(data.x, data.y, {.microbatches = 4, .schedule = parallel::zbv});
    FAIL() << "the stages of one device are on two";
  } catch (const std::invalid_argument& e) {
    EXPECT_EQ(std::string(e.what()),
              "schedule 'zbv' has the stages 0 and 3 on one device, and the pipeline has them on " +
                  to_string(test::device(0)) + " and " + to_string(test::device(3)));
  }
}

/// Functions, objects that are called, what can only be moved, names, values, texts.
TEST(PipelineBits, AStepTakesAnyCallableOrValue) {
  const Expected expected = sequential(12, 3, 103);
  struct Maker {
    parallel::Schedule operator()(int stages, int microbatches) {
      ++calls;
      return parallel::zb_h2(stages, microbatches);
    }
    int calls = 0;
  };
  const auto owned = std::make_shared<std::string>("zb-h1");
  auto only_moved = [name = std::make_unique<std::string>("dynamic:2,3")](long stages, long microbatches) {
    return parallel::make_schedule(*name, static_cast<int>(stages), static_cast<int>(microbatches));
  };
  const parallel::ScheduleChoice choices[] = {
      parallel::gpipe,
      &parallel::zb_h1,
      parallel::dynamic({2, 2}),
      Maker{},
      [owned](int stages, int microbatches) { return parallel::make_schedule(*owned, stages, microbatches); },
      std::move(only_moved),
      "1f1b",
      *owned,
      parallel::with_recompute(parallel::zb_h2(2, 3), {true, false}),
      parallel::parse_schedule("s0 F0-2 I0-2 W0-2\ns1 F0 F1 B0 F2 B2 I1 W1\nsum ((0 1) 2)\nrings 3,3"),
  };
  for (const parallel::ScheduleChoice& choice : choices) {
    SCOPED_TRACE(choice.make(2, 3).name);
    TestEngine many(2);
    parallel::Pipeline net(make_stages(make_layers(103), 2));
    const Data data = make_data(12, 103);
    const NDArray loss = net.step(data.x, data.y, {.microbatches = 3, .schedule = choice});
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
    EXPECT_EQ(gradients_of(net.parameters()), expected.gradients);
  }
  EXPECT_THROW(parallel::ScheduleChoice(parallel::Generator()).make(2, 3), std::invalid_argument);
}

/// A user's schedule, with microbatches and their sums in any order: one stage that runs the same tree has the same
/// bits.
TEST(PipelineBits, GradientsAreAddedByTheSchedulesTree) {
  const auto run = [](int stages, parallel::Schedule schedule, const char* tree, int steps) {
    TestEngine many(stages);
    parallel::Pipeline net(make_stages(make_layers(7), stages));
    if (*tree) schedule.sum = parallel::sum_tree(tree);
    const Data data = make_data(13, 7);
    for (int i = 0; i < steps; ++i) net.step(data.x, data.y, {.microbatches = 4, .schedule = schedule});
    return gradients_of(net.parameters());
  };
  const auto reversed = [](parallel::Schedule schedule) {
    for (auto& list : schedule.per_device) std::reverse(list.begin() + 4, list.end());
    return schedule;
  };
  for (const int steps : {1, 2}) {
    for (const char* tree : {"", "(0 1 2 3)", "((0 1) (2 3))", "(3 2 1 0)", "(0 (1 (2 3)))"}) {
      SCOPED_TRACE(std::string(tree) + ", steps " + std::to_string(steps));
      const Bytes expected = run(1, parallel::gpipe(1, 4), tree, steps);
      EXPECT_TRUE(run(3, parallel::zb_h1(3, 4), tree, steps) == expected);
      EXPECT_TRUE(run(3, parallel::one_f_one_b(3, 4), tree, steps) == expected);
      EXPECT_TRUE(run(2, reversed(parallel::gpipe(2, 4)), tree, steps) == expected);
    }
  }
  EXPECT_NE(run(1, parallel::gpipe(1, 4), "((0 1) (2 3))", 1), run(1, parallel::gpipe(1, 4), "", 1));
}

Bytes weights_after(int steps, int stages, int threads, parallel::Schedule (*schedule)(int, int)) {
  TestEngine many(stages, threads);
  parallel::Pipeline net(make_stages(make_layers(5), stages));
  Sgd sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int s = 0; s < steps; ++s) {
    const Data data = make_data(16, static_cast<std::uint64_t>(s));
    net.step(data.x, data.y, {.microbatches = 4, .schedule = schedule});
    sgd.step();
  }
  Bytes bytes;
  for (const NamedParameter& p : net.parameters()) bytes[p.name] = p.value->to_bytes();
  return bytes;
}

TEST(Pipeline, WeightsAfterFiftyStepsHaveTheSameBitsOnAnyThreadsAndSchedule) {
  const Bytes expected = weights_after(50, 1, 1, parallel::gpipe);
  for (int threads : {1, 2, 4})
    for (auto schedule : {parallel::gpipe, parallel::one_f_one_b, parallel::zb_h1})
      for (int stages : {1, 2})
        EXPECT_EQ(weights_after(50, stages, threads, schedule), expected)
            << threads << " threads, " << stages << " stages, " << schedule(stages, 4).name;
}

/// Lets two stages meet: beside its input, which passes through, it has an op that waits until the other stage's does
/// so too.
class Meet : public Module {
 public:
  Meet(std::latch& latch, int at) : latch_(latch), at_(at) {}
  NDArray forward(const NDArray& x) override {
    if (calls_++ != at_) return x;
    const NDArray done = empty({1}, DType::u8, x.device());
    push_op([&latch = latch_](ArrayContext&) { latch.arrive_and_wait(); }, {x}, {done},
            {.on = x.device(), .name = "meet"});
    return x;
  }

 private:
  std::latch& latch_;
  int at_, calls_ = 0;
};

/// How many pairs of boxes of different stages overlap in time.
int overlaps(const std::vector<parallel::TimelineBox>& boxes) {
  int pairs = 0;
  for (const auto& a : boxes)
    for (const auto& b : boxes) pairs += a.stage < b.stage && a.start < b.end && b.start < a.end;
  return pairs;
}

// Stage 1 with microbatch 0 and stage 0 with microbatch 1 meet inside their bodies: the step would never end if the
// stages took turns. So their boxes overlap; and the boxes are those of the schedule, one after another on each device.
TEST(Pipeline, StagesMeetAndTheMeasuredTimelineShowsIt) {
  for (auto make : {parallel::gpipe, parallel::one_f_one_b}) {
    TestEngine many(3, 1);  // one thread in all is asked for: each device still has one
    std::latch latch(2);
    std::vector<parallel::Stage> stages = make_stages(make_layers(7), 3);
    for (int s : {0, 1}) {
      auto meet = std::make_shared<Meet>(latch, 1 - s);
      stages[static_cast<std::size_t>(s)].module =
          std::make_shared<Sequential>(Sequential{ModulePtr(meet), stages[static_cast<std::size_t>(s)].module});
    }
    parallel::Pipeline net(stages);
    const Data data = make_data(48, 7);
    const parallel::Schedule schedule = make(3, 6);
    many.engine.wait_all();
    many.engine.start_trace();
    net.step(data.x, data.y, {.microbatches = 6, .schedule = make}).wait();
    many.engine.wait_all();
    std::vector<parallel::TimelineBox> boxes = net.boxes(many.engine.stop_trace(), net.step_number());
    ASSERT_EQ(boxes.size(), 2U * 3 * 6);
    std::sort(boxes.begin(), boxes.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    for (int s = 0; s < 3; ++s) {
      std::vector<parallel::Action> ran;
      double free_from = 0;
      for (const parallel::TimelineBox& b : boxes) {
        if (b.stage != s) continue;
        ran.push_back({b.kind, b.stage, b.microbatch});
        EXPECT_GE(b.start, free_from) << "boxes of one device overlap";
        free_from = b.end;
      }
      EXPECT_EQ(ran, schedule.per_device[static_cast<std::size_t>(s)]) << schedule.name;
    }
    EXPECT_GT(overlaps(boxes), 0) << schedule.name;
  }
}

// On devices that give times the boxes are these, whenever the host issued the ops and learnt of their ends.
TEST(Pipeline, BoxesAreTheTimesOfDevicesThatGiveThem) {
  EngineOptions options{.threads = 2, .logical_cpus = 2};
  if (test::device_kind() != DeviceKind::sim) options.providers = {sim_devices(2)};  // else they are there already
  test::DefaultEngine many(options);
  std::vector<parallel::Stage> stages = make_stages(make_layers(7), 2);
  for (int s : {0, 1}) stages[static_cast<std::size_t>(s)].device = sim(s);
  parallel::Pipeline net(stages);
  const Data data = make_data(16, 7);
  many.engine().wait_all();
  many.engine().start_trace();
  net.step(data.x, data.y, {.microbatches = 4}).wait();
  many.engine().wait_all();
  const std::vector<TraceEvent> events = many.engine().stop_trace();
  const std::vector<parallel::TimelineBox> boxes = net.boxes(events, net.step_number());
  ASSERT_EQ(boxes.size(), 2U * 2 * 4);
  std::map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> of_tag;
  for (const TraceEvent& e : events) {
    if (e.lane != LaneKind::compute || e.device.kind != DeviceKind::sim) continue;
    EXPECT_GT(e.device_end, 0) << e.name;
    auto& [begin, end] = of_tag.try_emplace(e.tag, e.device_start, e.device_end).first->second;
    begin = std::min(begin, e.device_start);
    end = std::max(end, e.device_end);
  }
  for (const parallel::TimelineBox& box : boxes) {
    const auto same = [&](const auto& tag) {
      return box.start == static_cast<double>(tag.second.first) * 1e-9 &&
             box.end == static_cast<double>(tag.second.second) * 1e-9;
    };
    EXPECT_EQ(std::count_if(of_tag.begin(), of_tag.end(), same), 1) << "stage " << box.stage;
  }
}

class Bomb : public Module {
 public:
  NDArray forward(const NDArray& x) override {
    const bool explode = armed && calls++ == 2;
    const NDArray y = empty(x.shape(), x.dtype(), x.device());
    push_op(
        [explode](ArrayContext& c) {
          if (explode) throw std::runtime_error("stage on fire");
          test::copy_body(c);
        },
        {x}, {y}, {.on = x.device(), .name = "bomb"});
    return y;
  }
  bool armed = false;
  int calls = 0;
};

TEST(Pipeline, AFailedStageReachesTheWaiterAndTrainingGoesOn) {
  TestEngine many(2);
  auto bomb = std::make_shared<Bomb>();
  std::vector<parallel::Stage> stages = make_stages(make_layers(11), 2);
  Sequential lower;
  lower.push_back(ModulePtr(bomb));
  lower.push_back(stages[0].module);
  stages[0].module = std::make_shared<Sequential>(lower);
  parallel::Pipeline net(stages);
  Sgd sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  const Data data = make_data(16, 11);
  const parallel::PipelineStep options{.microbatches = 4, .schedule = parallel::one_f_one_b};
  net.step(data.x, data.y, options).wait();
  sgd.step();
  Bytes before;
  for (const NamedParameter& p : net.parameters()) before[p.name] = p.value->to_bytes();

  bomb->armed = true;
  bomb->calls = 0;
  const NDArray loss = net.step(data.x, data.y, options);
  sgd.step();
  try {
    loss.item<double>();
    FAIL() << "the loss of a failed step was readable";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("stage on fire"), std::string::npos) << e.what();
  }
  sgd.recover();
  Bytes after;
  for (const NamedParameter& p : net.parameters()) after[p.name] = p.value->to_bytes();
  EXPECT_EQ(after, before) << "a bad batch changed the weights";

  bomb->armed = false;
  EXPECT_TRUE(std::isfinite(net.step(data.x, data.y, options).item<double>()));
  sgd.step();
  EXPECT_NO_THROW(net.parameters().front().value->to_bytes());
}

/// What values decide the shape of must not be waited for in a stage, nor in its loss; with a size nothing waits.
TEST(Pipeline, FunctionsThatWaitAreRefusedInStages) {
  struct Chosen : Module {
    explicit Chosen(std::optional<std::int64_t> of_size) : size(of_size) {}
    NDArray forward(const NDArray& x) override { return masked_select(x * w, x > 0, {.size = size}).reshape({-1, 4}); }
    void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
      out.push_back({prefix + "w", &w});
    }
    NDArray w = ones({4}).with_grad();
    std::optional<std::int64_t> size;
  };
  TestEngine many(2);
  RandomStream random(1);
  const NDArray x = ones({8, 4}), y = zeros({8}, DType::i64);
  const auto said = [&](std::optional<std::int64_t> size, parallel::LossFunction loss, bool only_forward) {
    parallel::Pipeline net(
        {{std::make_shared<Linear>(4, 4, random), test::device(0)}, {std::make_shared<Chosen>(size), test::device(1)}},
        std::move(loss));
    try {
      if (only_forward) {
        net.forward(x);
        return std::string("nothing was thrown");
      }
      net.step(x, y, {.microbatches = 2}).item<float>();
      EXPECT_EQ(net.parameters().back().value->grad().shape(), (Dims{4}));
    } catch (const ArrayError& e) {
      std::string text = e.what();
      const std::size_t at = text.find(".cc:");
      return text.substr(0, text.find(']') + 1) + text.substr(std::min(text.find_first_of(" :", at + 4), text.size()));
    }
    const NDArray after = x(x > 0);  // and outside of it they wait as ever
    return std::string("nothing was thrown");
  };
  const std::string why =
      ": waits for values that decide the shape of its result, which a stage of a pipeline must not; ";
  EXPECT_EQ(said({}, {}, false),
            "[masked_select] in stage 1.microbatch 0" + why + "give a size: masked_select(x, mask, {.size = n})");
  EXPECT_EQ(said({}, {}, true), "[masked_select]" + why + "give a size: masked_select(x, mask, {.size = n})");
  EXPECT_EQ(said(16, {}, false), "nothing was thrown");
  const parallel::LossFunction loss = [](const NDArray& output, const NDArray& target, double divisor) {
    unique(target);
    return cross_entropy(output, target, divisor);
  };
  EXPECT_EQ(said(16, loss, false), "[unique] in stage 1.microbatch 0" + why + "give a size: unique(x, {.size = n})");
}

TEST(Pipeline, BadUseIsRefusedInOneLine) {
  TestEngine many(2);
  EXPECT_THROW(parallel::Pipeline(std::vector<parallel::Stage>{}), UsageError);
  EXPECT_THROW(parallel::Pipeline({{nullptr, test::device(0)}}), UsageError);
  EXPECT_THROW(parallel::Pipeline({{std::make_shared<Flatten>(), test::device(test::kGpus)}}), UsageError);
  {
    const std::vector<ModulePtr> here = make_layers(1);
    Engine another({.threads = 1});  // of CPUs alone: the double of CUDA serves one engine at a time
    set_default_engine(&another);
    const std::vector<ModulePtr> there = [] {
      const DeviceScope on(cpu(0));
      return make_layers(2);
    }();
    set_default_engine(&many.engine);
    EXPECT_THROW(parallel::Pipeline({{here[0], test::device(0)}, {there[2], test::device(1)}}), UsageError);
  }
  parallel::Pipeline net(make_stages(make_layers(1), 2));
  const Data data = make_data(8, 1);
  EXPECT_THROW(net.step(data.x, data.y, {.microbatches = 9}), ArrayError);
  EXPECT_THROW(net.step(data.x, data.y.narrow(0, 0, 4), {.microbatches = 2}), ArrayError);
  EXPECT_THROW(net.step(data.x, data.y, {.microbatches = 0}), std::invalid_argument);
  const auto why = [&](const parallel::ScheduleChoice& schedule) -> std::string {
    try {
      net.step(data.x, data.y, {.microbatches = 2, .schedule = schedule});
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(why(parallel::with_updates(parallel::gpipe(2, 2))),
            "schedule 'gpipe' has U actions, and the step has no `update` for them");
  EXPECT_THROW(net.step(data.x, data.y, {.microbatches = 2, .update = [](int) {}}), std::invalid_argument);
  EXPECT_EQ(why(parallel::gpipe(2, 3)),
            "schedule 'gpipe' is for 2 stages and 3 microbatches, and the pipeline has 2 and 2");
  EXPECT_EQ(why([](int, int) { return parallel::gpipe(3, 2); }),
            "schedule 'gpipe' is for 3 stages and 2 microbatches, and the pipeline has 2 and 2");
  EXPECT_THROW((void)parallel::PipelineStep{.schedule = "zigzag"}, std::invalid_argument);
  EXPECT_TRUE(std::isfinite(net.step(data.x, data.y, {.microbatches = 2}).item<double>()));
}

/// As one that reshapes, or a frozen one: its backward pass has nothing to do.
TEST(Pipeline, AFirstStageMayBeWithoutWeights) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  RandomStream random(3);
  const NDArray x = normal({4, 2, 3}, random).to(test::device(0)),
                y = from(std::vector<std::int64_t>{0, 1, 2, 3}, {4}).to(test::device(1));
  const auto dense = std::make_shared<Linear>(6, 4, random);
  parallel::Pipeline net({{std::make_shared<Flatten>(), test::device(0)},
                          {std::make_shared<Sequential>(Sequential{dense}), test::device(1)}});
  std::vector<std::vector<std::byte>> expected;
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "dynamic", "dynamic:1,1"}) {
    for (const bool again : {false, true}) {
      SCOPED_TRACE(std::string(name) + (again ? ", recomputed" : ""));
      const parallel::Schedule schedule = parallel::with_recompute(parallel::make_schedule(name, 2, 2), {again, again});
      net.step(x, y, {.microbatches = 2, .schedule = schedule}).wait();
      std::vector<std::vector<std::byte>> gradients;
      for (const NamedParameter& p : net.parameters()) {
        gradients.push_back(p.value->grad().to_bytes());
        p.value->zero_grad();
      }
      if (expected.empty()) expected = gradients;
      EXPECT_TRUE(gradients == expected);
    }
  }
}

}  // namespace
}  // namespace sluice
