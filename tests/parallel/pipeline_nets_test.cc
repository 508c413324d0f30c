// Pipelines of nets as programs have them: several arrays between stages, statistics, dropout, saved in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "pipeline_support.h"
#include "sluice/autograd/autograd.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT: network.h

constexpr std::int64_t kIds = 19;

/// Several arrays go through its stages: a value, a residual, a mask and indices, which have no gradient. "mix" hands
/// all but the first on as they came, and "pass" all. A table and a constant are read in several places.
struct Wide {
  nn::Embedding token{7, kWidth};
  nn::Linear up{kWidth, kWidth};
  nn::BatchNorm norm{kWidth};
  nn::Dropout drop{.25};
  nn::Constant scale{{kWidth}, nn::constant(.75)};
  nn::Linear head{kWidth, 5};
  nn::Stages stages() const {
    nn::Stages list;
    list.add("embed", [this](const NDArray& ids) -> nn::Arrays {
      const NDArray h = token(ids) * scale;
      return {h, h, (ids > 2).to(h.dtype()).reshape({-1, 1}), ids};
    });
    list.add("mix", [this](const nn::Arrays& a) -> nn::Arrays {
      return {drop(norm(tanh(up(a[0])))), a[1], a[2], a[3]};
    });
    list.add("pass", [](const nn::Arrays& a) { return a; });
    list.add("again", [this](const nn::Arrays& a) -> nn::Arrays { return {a[0] * a[2] + token(a[3]) * scale, a[1]}; });
    list.add("head", [this](const nn::Arrays& a) { return head(a[0] + a[1]); });
    return list;
  }
  /// The i-th one's input.
  static nn::Arrays batch(std::uint64_t i) {
    RandomStream random(70 + i);
    return {randint({kIds}, random, 0, 7)};
  }
};

/// Two arrays are given; both go on to the last stage, although the first stage reads them.
struct TwoInputs {
  nn::Embedding token{7, kWidth};
  nn::Linear up{4, kWidth}, down{kWidth, kWidth}, side{4, kWidth}, head{kWidth, 5};
  nn::Stages stages() const {
    nn::Stages list;
    list.add("join", [this](const nn::Arrays& a) -> nn::Arrays { return {a[0], tanh(up(a[0])) * token(a[1]), a[1]}; });
    list.add("down", [this](const nn::Arrays& a) -> nn::Arrays { return {a[2], a[0], tanh(down(a[1]))}; });
    list.add("side", [this](const nn::Arrays& a) { return a[2] + side(a[1]) * token(a[0]); });
    list.add("head", head);
    return list;
  }
  static nn::Arrays batch(std::uint64_t i) {
    RandomStream random(80 + i);
    const NDArray x = normal({kIds, 4}, random);
    return {x, randint({kIds}, random, 0, 7)};
  }
};

/// A memory that each of several stages uses, as the output of an encoder in the blocks of a decoder. It is handed on
/// twice, and where `swaps` by turns.
template <bool swaps>
struct Memory {
  nn::Linear make{4, kWidth}, begin{4, kWidth};
  std::vector<nn::Linear> blocks = nn::repeat(3, nn::Linear{kWidth, kWidth});
  nn::Linear head{kWidth, 5};
  nn::Stages stages() const {
    nn::Stages list;
    list.add("make", [this](const NDArray& x) -> nn::Arrays {
      const NDArray memory = tanh(make(x));
      return {tanh(begin(x)), memory, memory};
    });
    for (const nn::Linear& block : blocks) {
      list.add("block", [&block](const nn::Arrays& a) -> nn::Arrays {
        return {tanh(block(a[0] * a[1])), a[swaps ? 2 : 1], a[swaps ? 1 : 2]};
      });
    }
    list.add("head", [this](const nn::Arrays& a) { return head(a[0] + a[1]); });
    return list;
  }
  static nn::Arrays batch(std::uint64_t i) {
    RandomStream random(90 + i);
    return {normal({kIds, 4}, random)};
  }
};

/// Values, what the optimiser keeps, and losses after three steps: step(x, y, opt) gives the loss of one.
template <class Net, class Step>
Bytes after_three_steps(const Net& net, Step step) {
  nn::Optimizer opt(net, kSgd);
  RandomStream stream(6, 1);
  std::vector<NDArray> losses;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const nn::Training on(stream);
    losses.push_back(step(Net::batch(i), labels(kIds), opt));
  }
  return state_of(net, opt, losses);
}

template <class Net>
std::vector<Spec> specs_of() {
  std::vector<Spec> specs;
  for (const NDArray& x : Net::batch(0)) specs.push_back(x.spec());
  return specs;
}

template <class Net>
void expect_bits_of_one_device(const std::vector<std::vector<int>>& cuts) {
  constexpr int kMicrobatches = 4;
  const Bytes expected = [] {
    ManyDevices one(1, 1);
    const Net net;
    nn::initialise(net, 8);
    return after_three_steps(net, [&](const nn::Arrays& x, const NDArray& y, nn::Optimizer& opt) {
      const NDArray loss = one_after_another(net, x, y, kMicrobatches);
      opt.step();
      return loss;
    });
  }();
  for (const std::vector<int>& cut : cuts) {
    const int stages = static_cast<int>(cut.size());
    for (const char* name : {"1f1b", "zb-h1", "gpipe"}) {
      for (const bool again : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(cut) + ", " + name + (again ? ", recomputed" : ""));
        ManyDevices many(stages);
        const Net net;
        nn::initialise(net, 8);
        parallel::Pipeline pipeline(net, specs_of<Net>(), {.devices = devices(stages), .cut = cut});
        const parallel::Schedule schedule = parallel::with_recompute(
            parallel::make_schedule(name, stages, kMicrobatches), std::vector<bool>(cut.size(), again));
        const Bytes bytes = after_three_steps(net, [&](const nn::Arrays& x, const NDArray& y, nn::Optimizer& opt) {
          return pipeline.step(x, y, {.microbatches = kMicrobatches, .schedule = schedule, .optimizer = &opt});
        });
        EXPECT_TRUE(bytes == expected);
      }
    }
  }
}

TEST(PipelineArrays, GoThroughStagesWithTheBitsOfOneDevice) {
  expect_bits_of_one_device<Wide>({{0}, {0, 3}, {0, 2, 3}, {0, 1, 2, 3}});
}

TEST(PipelineArrays, SeveralMayBeGiven) {
  expect_bits_of_one_device<TwoInputs>({{0}, {0, 1}, {0, 2}, {0, 1, 2}, {0, 1, 2, 3}});
  ManyDevices many(2);
  const TwoInputs net;
  nn::initialise(net, 8);
  parallel::Pipeline pipeline(net, specs_of<TwoInputs>(), {.devices = devices(2)});
  const nn::Arrays x = TwoInputs::batch(0);
  const NDArray y = labels(kIds);
  EXPECT_EQ(pipeline.forward(x).shape(), (Dims{kIds, 5}));
  EXPECT_THROW(pipeline.step({x[0], x[1].narrow(0, 0, 8)}, y, {.microbatches = 2}), ArrayError);
  EXPECT_THROW(pipeline.step({x[0].narrow(0, 0, 8), x[1]}, y, {.microbatches = 2}), ArrayError);
  EXPECT_THROW(pipeline.step({x[0], NDArray()}, y, {.microbatches = 2}), ArrayError);
  EXPECT_TRUE(std::isfinite(pipeline.step(x, y, {.microbatches = 2}).item<double>()));
}

/// A function of one array is not given two, and neither is the loss.
TEST(PipelineArrays, OneWhereOneIsWanted) {
  struct Forks {
    nn::Linear up{4, 5}, head{5, 5};
    bool ends = false;
    nn::Stages stages() const {
      nn::Stages list;
      list.add("fork", [this](const NDArray& x) { return nn::Arrays(2, up(x)); });
      if (ends) return list;
      list.add("head", head);
      return list;
    }
  };
  ManyDevices many(1);
  const NDArray x = ones({8, 4}), y = labels(8);
  Forks net;
  nn::initialise(net, 1);
  const auto make = [&] { return parallel::Pipeline(net, x.spec(), {.devices = devices(1)}); };
  EXPECT_THAT(refused<UsageError>(make), HasSubstr("the function '1 head' takes one array and is given 2"));
  net.ends = true;
  nn::freeze(net, "head.*");
  parallel::Pipeline pipeline = make();
  EXPECT_THAT(refused<UsageError>([&] { pipeline.step(x, y); }), HasSubstr("the last function gives 2 arrays"));
  EXPECT_THAT(refused<UsageError>([&] { pipeline.forward(x); }), HasSubstr("the last function gives 2 arrays"));
}

TEST(PipelineArrays, UsesInSeveralStagesAreAddedAsOnOneDevice) {
  expect_bits_of_one_device<Memory<false>>({{0}, {0, 3}, {0, 1, 3}, {0, 1, 2, 4}});
}

TEST(PipelineArrays, UsesOfTwoHandlesOfOneArrayAreAddedAsOnOneDevice) {
  expect_bits_of_one_device<Memory<true>>({{0}, {0, 3}, {0, 1, 3}, {0, 1, 2, 4}});
}

/// Between steps of a pipeline whose stages are on one device the program may train the net itself.
TEST(PipelineNets, ANetMayBeUsedByHandBetweenSteps) {
  constexpr int kSteps = 4, kMicrobatches = 3;
  const Bytes expected = test::sequential(DType::f32, kMicrobatches, kSteps);
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 1});
  const Network network(DType::f32);
  parallel::Pipeline net = test::pipeline(network, on_devices({0, 0, 0}));
  nn::Optimizer opt(network, kSgd);
  RandomStream stream(4, 77);
  std::vector<NDArray> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = test::batch(DType::f32, step);
    const nn::Training on(stream);
    if (step % 2 == 0) {
      losses.push_back(net.step(x, y, {.microbatches = kMicrobatches, .schedule = "zb-h1", .optimizer = &opt}));
    } else {
      losses.push_back(accumulate(network, x, y, kMicrobatches));
      opt.step();
    }
    const nn::Evaluation off;
    EXPECT_TRUE(net.forward(x).to_bytes() == network(x).to_bytes());
  }
  EXPECT_TRUE(state_of(network, opt, losses) == expected);
}

/// A net with its optimiser and its stream, in a pipeline on so many devices, or without one.
struct Trained {
  Wide net{};
  nn::Optimizer opt{net, nn::AdamW{.lr = .01}};
  RandomStream stream{6, 1};
  std::optional<parallel::Pipeline> pipeline{};

  void cut(const std::vector<int>& first) {
    pipeline.emplace(net, specs_of<Wide>(),
                     parallel::PipelineOptions{.devices = devices(static_cast<int>(first.size())), .cut = first});
  }
  std::vector<std::byte> step(std::uint64_t i) {
    const nn::Arrays x = Wide::batch(i);
    const NDArray y = labels(kIds);
    const nn::Training on(stream);
    if (pipeline) return pipeline->step(x, y, {.microbatches = 3, .optimizer = &opt}).to_bytes();
    const NDArray loss = one_after_another(net, x, y, 3);
    opt.step();
    return loss.to_bytes();
  }
  nn::Saved saved() { return {{"net", net}, {"opt", opt}, {"stream", stream}}; }
};

TEST(PipelineNets, ASavedRunGoesOnWithTheBitsOfOneThatWasNotInterrupted) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("sluice_pipeline_" + std::to_string(::getpid()) + ".safetensors");
  Bytes expected, losses;
  {
    ManyDevices one(1, 1);
    Trained run;
    nn::initialise(run.net, 8);
    for (std::uint64_t i = 0; i < 4; ++i) losses.push_back(run.step(i));
    expected = state_of(run.net, run.opt);
  }
  {
    ManyDevices many(3);
    Trained run;
    nn::initialise(run.net, 8);
    run.cut({0, 2, 3});
    for (std::uint64_t i = 0; i < 2; ++i) EXPECT_TRUE(run.step(i) == losses[i]);
    nn::save(path, run.saved());
    // Looking at it changes nothing: a table, a copy that is called, an evaluation in the midst of training.
    EXPECT_THAT(nn::describe(run.net), HasSubstr("token.weight"));
    const nn::Arrays x = Wide::batch(9);
    {
      const Wide copy = nn::clone(run.net);
      nn::to(copy, test::device(0));
      const nn::Evaluation off;
      EXPECT_TRUE(nn::run(copy.stages(), x)[0].to_bytes() == run.pipeline->forward(x).to_bytes());
    }
    for (std::uint64_t i = 2; i < 4; ++i) EXPECT_TRUE(run.step(i) == losses[i]);
    EXPECT_TRUE(state_of(run.net, run.opt) == expected);
  }
  for (const bool pipeline_first : {false, true}) {
    SCOPED_TRACE(pipeline_first ? "the pipeline is made first" : "the file is loaded first");
    ManyDevices many(4);
    Trained run;
    if (pipeline_first) {
      nn::initialise(run.net, 99);
      run.cut({0, 1, 2, 3});
      run.step(7);  // and it has trained something else
    }
    nn::load(path, run.saved());
    if (!pipeline_first) run.cut({0, 1, 2, 3});
    for (std::uint64_t i = 2; i < 4; ++i) EXPECT_TRUE(run.step(i) == losses[i]);
    EXPECT_TRUE(state_of(run.net, run.opt) == expected);
  }
  std::filesystem::remove(path);
}

/// forward() evaluates, whatever mode the caller is in: running statistics, and no dropout.
TEST(PipelineNets, ForwardIsInEvaluation) {
  ManyDevices many(2);
  struct Net {
    nn::BatchNorm norm{3};
    nn::Dropout drop{.5};
    nn::Linear last{3, 2};
    nn::Stages stages() const {
      nn::Stages list;
      list.add(norm);
      list.add(drop);
      list.add(last);
      return list;
    }
  };
  Net net;
  nn::initialise(net, 1, {{"last.weight", nn::constant(1)}, {"last.bias", nn::constant(0)}});
  net.norm.running_mean = from<float>({1, 2, 3}, {3});
  net.norm.running_var = from<float>({4, 9, .25}, {3});
  RandomStream random(2), stream(3);
  const NDArray x = uniform({8, 3}, random, -1, 1), y = labels(8, 2);
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .cut = {0, 2}});
  const NDArray output = pipeline.forward(x);
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(output.device(), test::device(1));
  const std::vector<float> in = x.to_vector<float>(), out = output.to_vector<float>();
  const double mean[] = {1, 2, 3}, variance[] = {4, 9, .25};
  for (std::size_t row = 0; row < 8; ++row) {
    double sum = 0;
    for (std::size_t c = 0; c < 3; ++c) sum += (in[3 * row + c] - mean[c]) / std::sqrt(variance[c] + 1e-5);
    for (std::size_t c = 0; c < 2; ++c) EXPECT_NEAR(out[2 * row + c], sum, 1e-4) << row;
  }
  // In training too, whose masks it leaves as they would have been; and it writes no statistics.
  const auto expect_same_output = [&] { EXPECT_TRUE(pipeline.forward(x).to_bytes() == output.to_bytes()); };
  const auto losses = [&](bool looks) {
    RandomStream again(3);
    Bytes bytes;
    for (int step = 0; step < 2; ++step) {
      const nn::Training on(again);
      if (looks) expect_same_output();
      bytes.push_back(pipeline.step(x, y, {.microbatches = 2}).to_bytes());
      net.norm.running_mean = from<float>({1, 2, 3}, {3});
      net.norm.running_var = from<float>({4, 9, .25}, {3});
      if (looks) expect_same_output();
    }
    return bytes;
  };
  const Bytes values = values_of(net);
  const Bytes expected = losses(false);
  EXPECT_TRUE(losses(true) == expected);
  EXPECT_TRUE(values_of(net) == values);
  // And it reads what the values are now.
  {
    const nn::Training on(stream);
    pipeline.step(x, y, {.microbatches = 2}).wait();
  }
  EXPECT_FALSE(values_of(net) == values) << "a step writes statistics";
  EXPECT_FALSE(pipeline.forward(x).to_bytes() == output.to_bytes());
}

}  // namespace
}  // namespace sluice
