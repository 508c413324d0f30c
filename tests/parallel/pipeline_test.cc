// Pipelines against the same microbatches run one after another, without any pipeline.
#include "sluice/parallel/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <latch>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipeline_support.h"
#include "sluice/autograd/autograd.h"
#include "sluice/ndarray/push.h"
#include "sluice/resources/providers/sim.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace test;  // NOLINT: network.h

/// A function that a net of these tests holds; nobody looks for parameters in it.
using Hook = std::function<NDArray(const NDArray&)>;

/// A small net of seven functions, the same for the same seed; `before` holds functions, by the place in front of which
/// they come.
nn::Sequential make_net(std::uint64_t seed, const std::map<std::size_t, Hook>& before = {}) {
  nn::Sequential net;
  std::size_t place = 0;
  const auto add = [&](nn::Layer layer) {
    if (const auto hook = before.find(place++); hook != before.end()) net.push_back(hook->second);
    net.push_back(std::move(layer));
  };
  add(nn::Conv2d{.in = 1, .out = 4, .kernel = 3, .relu = true});
  add(nn::MaxPool2d{2});
  add(nn::Conv2d{4, 6, 3});
  add(relu);
  add(nn::Flatten{});
  add(nn::Linear{.in = 6 * 3 * 3, .out = 16, .relu = true});
  add(nn::Linear{16, 5});
  nn::initialise(net, seed);
  return net;
}

/// The first function of each stage.
std::vector<int> cut_of(int stages) {
  static const std::vector<int> cuts[] = {{0}, {0, 3}, {0, 2, 5}, {0, 1, 3, 6}};
  return cuts[stages - 1];
}

/// Of another number of rows than the batches have, which does not matter.
Spec input_spec() { return {{3, 1, 12, 12}, DType::f32, test::device()}; }

parallel::Pipeline make_pipeline(const nn::Sequential& net, int stages) {
  return parallel::Pipeline(net, input_spec(), {.devices = devices(stages), .cut = cut_of(stages)});
}

struct Data {
  NDArray x, y;
};
Data make_data(std::int64_t rows, std::uint64_t seed) {
  RandomStream random(seed, 9);
  return {normal({rows, 1, 12, 12}, random), labels(rows)};
}

struct Expected {
  Bytes gradients;
  double loss = 0;
};

Expected sequential(std::int64_t rows, int microbatches, std::uint64_t seed) {
  ManyDevices one(1, 1);
  const nn::Sequential net = make_net(seed);
  const Data data = make_data(rows, seed);
  const double loss = one_after_another(net, {data.x}, data.y, microbatches).item<double>();
  return {gradients_of(net), loss};
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
        ManyDevices many(stages);
        const nn::Sequential net = make_net(seed);
        parallel::Pipeline pipeline = make_pipeline(net, stages);
        const Data data = make_data(rows, seed);
        const NDArray loss =
            pipeline.step(data.x, data.y,
                          {.microbatches = microbatches,
                           .schedule = schedule,
                           .order = strict ? parallel::ActionOrder::listed : parallel::ActionOrder::ready});
        EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
        EXPECT_TRUE(gradients_of(net) == expected.gradients)
            << schedule(stages, microbatches).name << (strict ? "" : ", free order");
      }
  }
}
INSTANTIATE_TEST_SUITE_P(Stages, PipelineBits, testing::Values(1, 2, 3, 4));

/// Four stages on two devices, as the schedule wants them.
TEST(PipelineBits, SeveralStagesOfADevice) {
  const Expected expected = sequential(16, 4, 100);
  const auto options = [](const std::vector<int>& numbers) {
    return parallel::PipelineOptions{.devices = on_devices(numbers), .cut = cut_of(4)};
  };
  const auto run = [&](const std::vector<int>& numbers, const parallel::ScheduleChoice& schedule) {
    const nn::Sequential net = make_net(100);
    parallel::Pipeline pipeline(net, input_spec(), options(numbers));
    const Data data = make_data(16, 100);
    const NDArray loss = pipeline.step(data.x, data.y, {.microbatches = 4, .schedule = schedule});
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
    EXPECT_TRUE(gradients_of(net) == expected.gradients);
  };
  ManyDevices many(4);
  run({0, 1, 0, 1}, parallel::interleaved(2));
  run({0, 1, 1, 0}, parallel::zbv);
  run({0, 1, 1, 0}, "zbv");
  // One device is enough for any schedule.
  run({0, 0, 0, 0}, "interleaved:2");
  run({0, 0, 0, 0}, "zb-h2");
  const nn::Sequential net = make_net(100);
  parallel::Pipeline pipeline(net, input_spec(), options({0, 1, 2, 3}));
  const Data data = make_data(16, 100);
  try {
    pipeline.step(data.x, data.y, {.microbatches = 4, .schedule = parallel::zbv});
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
    ManyDevices many(2);
    const nn::Sequential net = make_net(103);
    parallel::Pipeline pipeline = make_pipeline(net, 2);
    const Data data = make_data(12, 103);
    const NDArray loss = pipeline.step(data.x, data.y, {.microbatches = 3, .schedule = choice});
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-6);
    EXPECT_TRUE(gradients_of(net) == expected.gradients);
  }
  EXPECT_THROW(parallel::ScheduleChoice(parallel::Generator()).make(2, 3), std::invalid_argument);
}

/// A user's schedule, with microbatches and their sums in any order: one stage that runs the same tree has the same
/// bits.
TEST(PipelineBits, GradientsAreAddedByTheSchedulesTree) {
  const auto run = [](int stages, parallel::Schedule schedule, const char* tree, int steps) {
    ManyDevices many(stages);
    const nn::Sequential net = make_net(7);
    parallel::Pipeline pipeline = make_pipeline(net, stages);
    if (*tree) schedule.sum = parallel::sum_tree(tree);
    const Data data = make_data(13, 7);
    for (int i = 0; i < steps; ++i) pipeline.step(data.x, data.y, {.microbatches = 4, .schedule = schedule});
    return gradients_of(net);
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

/// Where `by_pipeline`, the pipeline steps the weights, else the program.
Bytes weights_after(int steps, int stages, int threads, parallel::Schedule (*schedule)(int, int), bool by_pipeline) {
  ManyDevices many(stages, threads);
  const nn::Sequential net = make_net(5);
  parallel::Pipeline pipeline = make_pipeline(net, stages);
  nn::Optimizer opt(net, kSgd);
  for (int s = 0; s < steps; ++s) {
    const Data data = make_data(16, static_cast<std::uint64_t>(s));
    pipeline.step(data.x, data.y, {.microbatches = 4, .schedule = schedule, .optimizer = by_pipeline ? &opt : nullptr});
    if (!by_pipeline) opt.step();
  }
  return state_of(net, opt);
}

TEST(Pipeline, WeightsAfterFiftyStepsHaveTheSameBitsOnAnyThreadsAndSchedule) {
  const Bytes expected = weights_after(50, 1, 1, parallel::gpipe, false);
  for (int threads : {1, 2, 4})
    for (auto schedule : {parallel::gpipe, parallel::one_f_one_b, parallel::zb_h1})
      for (int stages : {1, 2})
        EXPECT_TRUE(weights_after(50, stages, threads, schedule, threads != 2) == expected)
            << threads << " threads, " << stages << " stages, " << schedule(stages, 4).name;
}

/// Lets two stages meet: beside its input, which passes through, it has an op that waits until the other stage's does
/// so too.
struct Meet {
  std::latch& latch;
  int at, calls = 0;
  NDArray operator()(const NDArray& x) {
    if (calls++ != at) return x;
    const NDArray done = empty({1}, DType::u8, x.device());
    push_op([&both = latch](ArrayContext&) { both.arrive_and_wait(); }, {x}, {done},
            {.on = x.device(), .name = "meet"});
    return x;
  }
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
    ManyDevices many(3, 1);  // one thread in all is asked for: each device still has one
    std::latch latch(2);
    Meet lower{latch, 1}, upper{latch, 0};
    const nn::Sequential net = make_net(7, {{0, std::ref(lower)}, {2, std::ref(upper)}});
    parallel::Pipeline pipeline(net, input_spec(), {.devices = devices(3), .cut = {0, 3, 7}});
    lower.calls = upper.calls = 0;  // the dry run called them too
    const Data data = make_data(48, 7);
    const parallel::Schedule schedule = make(3, 6);
    many.engine.wait_all();
    many.engine.start_trace();
    pipeline.step(data.x, data.y, {.microbatches = 6, .schedule = make}).wait();
    many.engine.wait_all();
    std::vector<parallel::TimelineBox> boxes = pipeline.boxes(many.engine.stop_trace(), pipeline.step_number());
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

TEST(Pipeline, BoxesOfAnEarlierStepAreThoseOfItsSchedule) {
  ManyDevices many(2, 1);
  const nn::Sequential net = make_net(7);
  parallel::Pipeline pipeline(net, input_spec(), {.devices = devices(2), .cut = {0, 3}});
  const Data data = make_data(48, 7);
  many.engine.start_trace();
  pipeline.step(data.x, data.y, {.microbatches = 6, .schedule = parallel::gpipe}).wait();
  pipeline.step(data.x, data.y, {.microbatches = 2, .schedule = parallel::one_f_one_b}).wait();
  many.engine.wait_all();
  const std::vector<TraceEvent> events = many.engine.stop_trace();
  for (const auto& [step, microbatches] : {std::pair(1U, 6), {2U, 2}}) {
    std::set<parallel::Action> found, wanted;
    for (const parallel::TimelineBox& b : pipeline.boxes(events, step)) found.insert({b.kind, b.stage, b.microbatch});
    for (const auto& list : parallel::gpipe(2, microbatches).per_device) wanted.insert(list.begin(), list.end());
    EXPECT_EQ(found, wanted) << "step " << step;
  }
  EXPECT_TRUE(pipeline.boxes(events, 3).empty());
}

// On devices that give times the boxes are these, whenever the host issued the ops and learnt of their ends.
TEST(Pipeline, BoxesAreTheTimesOfDevicesThatGiveThem) {
  EngineOptions options{.threads = 2, .logical_cpus = 2};
  if (test::device_kind() != DeviceKind::sim) options.providers = {sim_devices(2)};  // else they are there already
  test::DefaultEngine many(options);
  const nn::Sequential net = make_net(7);
  parallel::Pipeline pipeline(net, input_spec(), {.devices = {sim(0), sim(1)}, .cut = cut_of(2)});
  const Data data = make_data(16, 7);
  many.engine().wait_all();
  many.engine().start_trace();
  pipeline.step(data.x, data.y, {.microbatches = 4}).wait();
  many.engine().wait_all();
  const std::vector<TraceEvent> events = many.engine().stop_trace();
  const std::vector<parallel::TimelineBox> boxes = pipeline.boxes(events, pipeline.step_number());
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

struct Bomb {
  NDArray operator()(const NDArray& x) {
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
  for (const bool by_pipeline : {false, true}) {
    SCOPED_TRACE(by_pipeline ? "the pipeline steps" : "the program steps");
    ManyDevices many(2);
    Bomb bomb;
    const nn::Sequential net = make_net(11, {{0, std::ref(bomb)}});
    parallel::Pipeline pipeline(net, input_spec(), {.devices = devices(2), .cut = {0, 4}});
    nn::Optimizer opt(net, kSgd);
    const Data data = make_data(16, 11);
    const auto step = [&] {
      const NDArray loss = pipeline.step(
          data.x, data.y,
          {.microbatches = 4, .schedule = parallel::one_f_one_b, .optimizer = by_pipeline ? &opt : nullptr});
      if (!by_pipeline) opt.step();
      return loss;
    };
    step().wait();
    const Bytes before = values_of(net);

    bomb.armed = true;
    bomb.calls = 0;
    const NDArray loss = step();
    try {
      loss.item<double>();
      FAIL() << "the loss of a failed step was readable";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("stage on fire"), std::string::npos) << e.what();
    }
    opt.recover();
    EXPECT_TRUE(values_of(net) == before) << "a bad batch changed the weights";

    bomb.armed = false;
    EXPECT_TRUE(std::isfinite(step().item<double>()));
    EXPECT_FALSE(values_of(net) == before);
  }
}

/// What values decide the shape of must not be waited for in a stage, nor in its loss; with a size nothing waits.
TEST(Pipeline, FunctionsThatWaitAreRefusedInStages) {
  struct Chosen {
    std::optional<std::int64_t> size{};
    nn::Parameter w{{4}, nn::constant(1)};
    NDArray operator()(const NDArray& x) const { return masked_select(x * w, x > 0, {.size = size}).reshape({-1, 4}); }
  };
  ManyDevices many(2);
  const NDArray x = ones({8, 4}), y = zeros({8}, DType::i64);
  const auto what = [](const ArrayError& e) {
    std::string text = e.what();
    const std::size_t at = text.find(".cc:");
    return text.substr(0, text.find(']') + 1) + text.substr(std::min(text.find_first_of(" :", at + 4), text.size()));
  };
  // A function that has no size when the pipeline is made is refused there; later, where it is called.
  const auto said = [&](std::optional<std::int64_t> size, parallel::Loss loss, bool only_forward) {
    const auto chosen = std::make_shared<Chosen>();
    const Chain net(std::make_shared<nn::Linear>(nn::Linear{4, 4}), chosen);
    nn::initialise(net, 1);
    chosen->size = 16;
    parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .loss = std::move(loss)});
    chosen->size = size;
    try {
      if (only_forward) {
        pipeline.forward(x);
        return std::string("nothing was thrown");
      }
      pipeline.step(x, y, {.microbatches = 2}).item<float>();
      EXPECT_EQ(chosen->w.grad().shape(), (Dims{4}));
    } catch (const ArrayError& e) {
      return what(e);
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
  const Chain waits(std::make_shared<Chosen>());
  nn::initialise(waits, 1);
  EXPECT_THAT(message([&] { parallel::Pipeline(waits, x.spec(), {.devices = devices(1)}); }),
              HasSubstr("give a size: masked_select(x, mask, {.size = n})"));
}

TEST(Pipeline, BadCutsAndDevicesAreRefusedInOneLine) {
  ManyDevices many(2);
  const nn::Sequential net = make_net(1);
  const auto why = [&](std::vector<Device> on, std::vector<int> cut) {
    return refused<UsageError>(
        [&] { parallel::Pipeline(net, input_spec(), {.devices = std::move(on), .cut = std::move(cut)}); });
  };
  const Device first = test::device(0), second = test::device(1);
  for (const std::vector<Device>& on : {std::vector<Device>{}, {first, test::device(test::kGpus)}}) {
    for (const std::vector<int>& cut : {std::vector<int>{}, {0, 3}}) EXPECT_THAT(why(on, cut), HasSubstr("[Pipeline]"));
  }
  EXPECT_THAT(why({test::device(test::kGpus)}, {}), HasSubstr(to_string(test::device(test::kGpus))));
  const std::vector<int> bad[] = {{0}, {0, 2, 4}, {1, 3}, {-1, 3}, {0, 0}, {3, 0}, {0, -1}, {0, 7}, {0, 8}};
  for (const std::vector<int>& cut : bad) {
    SCOPED_TRACE(testing::PrintToString(cut));
    EXPECT_THAT(why({first, second}, cut), HasSubstr("[Pipeline]"));
  }
  EXPECT_THAT(why(std::vector<Device>(8, first), {}), HasSubstr("[Pipeline]")) << "more stages than functions";
  EXPECT_EQ(why({first, second}, {0, 6}), "accepted");
  EXPECT_EQ(why(std::vector<Device>(7, first), {}), "accepted");
  // Where it is not told, the cut is even.
  const parallel::Pipeline even(net, input_spec(), {.devices = {first, second, first}});
  EXPECT_EQ(even.functions(2).second, 7);
  for (int s = 0; s < 3; ++s) {
    const auto [begin, end] = even.functions(s);
    EXPECT_TRUE(end - begin == 2 || end - begin == 3) << begin << " to " << end;
    EXPECT_EQ(begin, s == 0 ? 0 : even.functions(s - 1).second);
    EXPECT_EQ(even.device(s), s == 1 ? second : first);
  }
  // Nothing of what was refused has moved anything, and the stages' values are on their devices.
  const parallel::Pipeline one(net, input_spec(), {.devices = {first, second}, .cut = {0, 5}});
  EXPECT_THAT(why({second}, {0, 3}), HasSubstr("[Pipeline]"));
  std::vector<std::string> names;
  for (int s = 0; s < 2; ++s) {
    for (const nn::Named& p : one.parameters(s)) {
      names.push_back(p.name);
      EXPECT_EQ(p.state->value.device(), s == 0 ? first : second) << p.name;
    }
  }
  EXPECT_THAT(names,
              ElementsAre("0.weight", "0.bias", "2.weight", "2.bias", "5.weight", "5.bias", "6.weight", "6.bias"));
}

/// Two products of one size, for nets that are wrong in some way.
struct Two {
  nn::Linear first{4, 4}, second{4, 4};
  nn::Stages stages() const {
    nn::Stages list;
    list.add("first", first);
    list.add("second", second);
    return list;
  }
};

TEST(Pipeline, NetsThatCannotBeCutAreRefusedInOneLine) {
  ManyDevices many(2);
  const Spec input{{8, 4}, DType::f32, test::device()};
  const auto why = [&](const auto& net) {
    return refused<UsageError>([&] { parallel::Pipeline(net, input, {.devices = devices(2)}); });
  };
  {
    Engine another({.threads = 1});  // of CPUs alone: the double of CUDA serves one engine at a time
    const Two net;
    EXPECT_THAT(why(net), testing::ContainsRegex("'first\\.[a-z]+' has no value"));
    nn::initialise(net.first, 1);
    EXPECT_THAT(why(net), testing::ContainsRegex("'second\\.[a-z]+' has no value"));
    set_default_engine(&another);
    {
      const DeviceScope on(cpu(0));
      nn::initialise(net.second, 1);
    }
    set_default_engine(&many.engine);
    EXPECT_THAT(why(net), HasSubstr("engine"));
  }
  EXPECT_THAT(why(nn::Sequential()), HasSubstr("[Pipeline]"));
  // Parameters that are trained, and that no function reads.
  struct Unread : Two {
    nn::Linear third{4, 4};
    auto parts() { return nn::parts("first", first, "second", second, "third", third); }
  };
  const Unread unread;
  nn::initialise(unread, 1);
  EXPECT_THAT(why(unread), HasSubstr("'third.weight'"));
  nn::freeze(unread, "third.weight");
  EXPECT_THAT(why(unread), HasSubstr("'third.bias'"));
  nn::freeze(unread, "third.*");
  EXPECT_EQ(why(unread), "accepted");
  // Statistics that two stages would write.
  struct Normalised {
    nn::BatchNorm norm{4};
    nn::Linear up{4, 4};
    nn::Stages stages() const {
      nn::Stages list;
      list.add("first", norm);
      list.add("second", [this](const NDArray& x) { return norm(up(x)); });
      return list;
    }
  };
  const Normalised normalised;
  nn::initialise(normalised, 1);
  EXPECT_THAT(why(normalised), HasSubstr("'norm.running_mean' is read by the stages 0 and 1"));
  EXPECT_EQ(refused<UsageError>([&] { parallel::Pipeline(normalised, input, {.devices = devices(1)}); }), "accepted");
}

/// A function that reads a slot which its stage did not read when the pipeline was made.
TEST(Pipeline, WhichSlotsAStageReadsMayNotChange) {
  struct Choosing : Two {
    bool both = false;
    nn::Stages stages() const {
      nn::Stages list;
      list.add("first", [this](const NDArray& x) { return both ? first(second(x)) : first(x); });
      list.add("second", second);
      return list;
    }
    auto parts() { return nn::parts("first", first, "second", second); }
  };
  ManyDevices many(2);
  Choosing net;
  nn::initialise(net, 1);
  RandomStream random(2);
  const NDArray x = normal({8, 4}, random), y = labels(8, 4);
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2)});
  const auto step = [&] { return pipeline.step(x, y, {.microbatches = 2}); };
  const auto output = [&] { return pipeline.forward(x).to_bytes(); };
  const double loss = step().item<double>();
  const Bytes gradients = gradients_of(net);
  const std::vector<std::byte> before = output();
  net.both = true;
  for (const auto& call : {std::function<void()>(step), std::function<void()>(output)}) {
    const std::string text = refused<UsageError>(call);
    EXPECT_THAT(text, HasSubstr("stage 0 "));
    EXPECT_THAT(text, HasSubstr("'second."));
  }
  net.both = false;
  EXPECT_TRUE(gradients_of(net) == gradients) << "what was refused added to gradients";
  EXPECT_TRUE(output() == before);
  EXPECT_EQ(step().item<double>(), loss);
}

TEST(Pipeline, BadStepsAreRefusedInOneLine) {
  ManyDevices many(2);
  const nn::Sequential net = make_net(1);
  parallel::Pipeline pipeline = make_pipeline(net, 2);
  nn::Optimizer opt(net, kSgd);
  const Data data = make_data(8, 1);
  EXPECT_THROW(pipeline.step(data.x, data.y, {.microbatches = 9}), ArrayError);
  EXPECT_THROW(pipeline.step(data.x, data.y.narrow(0, 0, 4), {.microbatches = 2}), ArrayError);
  EXPECT_THROW(pipeline.step(data.x, data.y, {.microbatches = 0}), std::invalid_argument);
  const auto why = [&](const parallel::PipelineStep& options) {
    return refused<std::invalid_argument>([&] { pipeline.step(data.x, data.y, options); });
  };
  EXPECT_EQ(why({.microbatches = 2, .schedule = parallel::gpipe(2, 3)}),
            "schedule 'gpipe' is for 2 stages and 3 microbatches, and the pipeline has 2 and 2");
  EXPECT_EQ(why({.microbatches = 2, .schedule = [](int, int) { return parallel::gpipe(3, 2); }}),
            "schedule 'gpipe' is for 3 stages and 2 microbatches, and the pipeline has 2 and 2");
  EXPECT_THROW((void)parallel::PipelineStep{.schedule = "zigzag"}, std::invalid_argument);
  // What does not go together.
  EXPECT_THAT(why({.microbatches = 2, .schedule = parallel::with_updates(parallel::gpipe(2, 2))}),
              HasSubstr("the schedule 'gpipe', which has U actions, needs an .optimizer"));
  EXPECT_THAT(why({.microbatches = 2, .max_norm = 1}), HasSubstr("max_norm"));
  EXPECT_THAT(why({.microbatches = 2, .optimizer = &opt, .max_norm = -1}), HasSubstr("max_norm"));
  EXPECT_THAT(why({.microbatches = 2, .optimizer = &opt, .max_norm = 1, .gate = parallel::Gate::none}),
              HasSubstr("max_norm"));
  // Nothing of all that has changed anything.
  for (const nn::Named& p : nn::parameters(net)) EXPECT_FALSE(p.state->value.grad().defined()) << p.name;
  EXPECT_EQ(opt.steps(), 0);
  EXPECT_TRUE(std::isfinite(pipeline.step(data.x, data.y, {.microbatches = 2}).item<double>()));
  EXPECT_EQ(why({.microbatches = 2,
                 .schedule = parallel::with_updates(parallel::gpipe(2, 2)),
                 .optimizer = &opt,
                 .max_norm = 1}),
            "accepted");
  EXPECT_GT(pipeline.gradient_norm().item<double>(), 0);
  EXPECT_EQ(opt.steps(), 1);
}

/// As one that reshapes, or a frozen one: its backward pass has nothing to do.
TEST(Pipeline, AFirstStageMayBeWithoutWeights) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  RandomStream random(3);
  const NDArray x = normal({4, 2, 3}, random).to(test::device(0)),
                y = from(std::vector<std::int64_t>{0, 1, 2, 3}, {4}).to(test::device(1));
  for (const bool frozen : {false, true}) {
    nn::Sequential net{nn::Flatten{}, nn::Linear{6, 4}};
    if (frozen) net = nn::Sequential{nn::Linear{3, 3}, nn::Sequential{nn::Flatten{}, nn::Linear{6, 4}}};
    nn::initialise(net, 3);
    if (frozen) nn::freeze(net, "0.*");
    parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2)});
    Bytes expected;
    for (const char* name : {"gpipe", "1f1b", "zb-h1", "dynamic", "dynamic:1,1"}) {
      for (const bool again : {false, true}) {
        SCOPED_TRACE(std::string(name) + (again ? ", recomputed" : "") + (frozen ? ", frozen" : ""));
        const parallel::Schedule schedule =
            parallel::with_recompute(parallel::make_schedule(name, 2, 2), {again, again});
        pipeline.step(x, y, {.microbatches = 2, .schedule = schedule}).wait();
        const Bytes gradients = gradients_of(net);
        for (const nn::Named& p : pipeline.parameters(1)) p.state->value.zero_grad();
        EXPECT_EQ(std::ranges::count(gradients, std::vector<std::byte>()), frozen ? 2 : 0);
        if (expected.empty()) expected = gradients;
        EXPECT_TRUE(gradients == expected);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
