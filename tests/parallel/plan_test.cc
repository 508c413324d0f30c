// The planner from a network and its devices: what is measured, against closed forms and against stages that are run
// directly; and that measuring leaves nothing behind.
#include "sluice/parallel/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/devices.h"
#include "sluice/autograd/autograd.h"
#include "sluice/autograd/halves.h"
#include "sluice/nn/nn.h"
#include "sluice/operators/operators.h"
#include "sluice/schedule/verify.h"

namespace sluice {
namespace {

using parallel::Batch;
using parallel::LayerCost;
using parallel::LayerSample;
using testing::HasSubstr;

/// Each number with a point is "#", and several spaces are one. (GCC 12 warns of std::regex under AddressSanitizer.)
std::string without_figures(const std::string& text) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && digit(text[end])) ++end;
    if (end > i && end + 1 < text.size() && text[end] == '.' && digit(text[end + 1])) {
      for (++end; end < text.size() && digit(text[end]);) ++end;
      out += '#';
    } else if (end > i) {
      out.append(text, i, end - i);
    } else {
      end = i + 1;
      if (text[i] != ' ' || out.empty() || out.back() != ' ') out += text[i];
    }
    i = end;
  }
  return out;
}

struct TestEngine : test::DefaultEngine {
  explicit TestEngine(int devices) : DefaultEngine({.threads = 2, .logical_cpus = devices}) {
    for (int i = 0; i < devices; ++i) all.push_back(test::device(i));
  }
  std::vector<Device> all;
};

/// Layers that share what they save in all ways: an output that the next one reads, a view, an input that nobody needs.
Sequential small_network() {
  RandomStream random(3);
  return Sequential(Conv2d(1, 4, 3, random, ConvOptions{.relu = true}), MaxPool2d(2), Conv2d(4, 6, 3, random), Relu(),
                    Flatten(), Linear(6 * 3 * 3, 16, random, LinearLayerOptions{.relu = true}), Linear(16, 5, random));
}

Batch small_batch(std::int64_t rows) {
  RandomStream random(4);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 5);
  return {normal({rows, 1, 12, 12}, random), from(labels, {rows})};
}

std::unique_ptr<Optimizer> momentum(const std::vector<NamedParameter>& parameters) {
  return std::make_unique<Sgd>(parameters, SgdOptions{.lr = .1, .momentum = .9});
}

TEST(MeasuredLayers, BytesOfDenseLayersAreTheirClosedForm) {
  TestEngine engine(2);
  RandomStream random(1);
  const LinearLayerOptions with_relu{.relu = true};
  const Sequential network(Linear(6, 10, random, with_relu), Linear(10, 7, random, with_relu), Linear(7, 5, random));
  const std::vector<std::int64_t> sizes{2, 8};
  const Batch batch{normal({8, 6}, random), from(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2}, {8})};
  const parallel::Measured measured =
      measure_layers(network, batch, engine.all, {.rows = sizes, .rounds = 1, .optimizer = momentum});
  const double widths[] = {6, 10, 7, 5};
  ASSERT_EQ(measured.layers.size(), 3U);
  for (std::size_t l = 0; l < 3; ++l) {
    const LayerCost& layer = measured.layers[l];
    const double in = 4 * widths[l], out = 4 * widths[l + 1], weights = (in + 4) * widths[l + 1];
    EXPECT_EQ(layer.name, std::to_string(l) + " Linear");
    EXPECT_EQ(layer.gradients, weights);
    EXPECT_EQ(layer.weights, 3 * weights) << "parameters, gradients, momentum";
    EXPECT_GE(layer.step, 0);
    EXPECT_GT(layer.push, 0);
    ASSERT_EQ(layer.samples.size(), 2U);
    for (std::size_t i = 0; i < 2 && l < 2; ++i) {
      const LayerSample& s = layer.samples[i];
      const auto rows = static_cast<double>(sizes[i]);
      EXPECT_EQ(s.rows, rows);
      EXPECT_EQ(s.input, rows * in);
      EXPECT_EQ(s.saved, rows * (in + out)) << "its input, and its output for the sign";
      EXPECT_EQ(s.shared, l == 0 ? 0 : rows * in) << "its input is the output of the layer before";
      EXPECT_EQ(s.output, 0);
      // Its input, and the gradient of its output, masked; the first layer's backward pass is all in its second half,
      // so that its output waits too.
      EXPECT_EQ(s.kept, rows * (in + out) + (l == 0 ? rows * out : 0));
      EXPECT_EQ(s.both, rows * in + (l == 0 ? rows * out : 0));
      EXPECT_EQ(s.kept_shared, l == 0 ? 0 : rows * in);
      EXPECT_GE(s.work, 0);
    }
  }
}

/// What the layers [begin, end) hold as a stage, run by themselves: their saved values with input and output.
double held_by_stage(const Sequential& network, const Batch& batch, std::size_t begin, std::size_t end) {
  const Sequential before = network.slice(0, begin);
  NDArray x = batch.x.to(test::device(0)).copy();
  for (std::size_t l = 0; l < begin; ++l) x = network.slice(l, l + 1).forward(x);
  x = x.detach().copy();
  if (begin > 0) x.with_grad();
  NDArray y = network.slice(begin, end).forward(x);
  if (end == network.size()) y = cross_entropy(y, batch.target.to(test::device(0)));
  std::set<std::pair<const void*, std::size_t>> pieces;
  for (const KeptMemory& piece : kept_memory({y}, {x})) pieces.insert({piece.id, piece.bytes});
  for (const NDArray& held : {x, y}) pieces.insert({memory_of(held).id, memory_of(held).bytes});
  double bytes = 0;
  for (const auto& [id, size] : pieces) bytes += static_cast<double>(size);
  return bytes;
}

TEST(MeasuredLayers, BytesOfAnyStageAreThoseOfItsLayers) {
  TestEngine engine(1);
  const Sequential network = small_network();
  constexpr std::int64_t kRows = 3;
  const parallel::Measured measured =
      measure_layers(network, small_batch(kRows), engine.all, {.rows = {kRows}, .rounds = 1});
  const Batch batch = small_batch(kRows);
  const auto layers = static_cast<int>(network.size());
  const auto saved = [&](int stage, const std::vector<int>& first) {
    const parallel::Candidate cut{
        .schedule = "zb-h1", .microbatches = 1, .first_layer = first, .recompute = std::vector<bool>(first.size())};
    const auto devices = static_cast<int>(first.size());
    return bytes_of(measured.layers, {.devices = devices, .rows = kRows}, cut)[static_cast<std::size_t>(stage)].saved;
  };
  for (int begin = 0; begin < layers; ++begin) {
    for (int end = begin + 1; end <= layers; ++end) {
      std::vector<int> first{0};
      if (begin > 0) first.push_back(begin);
      if (end < layers) first.push_back(end);
      EXPECT_EQ(saved(begin > 0 ? 1 : 0, first),
                held_by_stage(network, batch, static_cast<std::size_t>(begin), static_cast<std::size_t>(end)))
          << "layers " << begin << " to " << end - 1;
    }
  }
}

TEST(MeasuredLayers, TimesAreOfWhatALayerDoes) {
  TestEngine engine(2);
  const Sequential network = small_network();
  const parallel::Measured measured =
      measure_layers(network, small_batch(8), engine.all, {.rows = {{2, 4}}, .rounds = 2});
  const std::vector<bool> weighted{true, false, true, false, false, true, true};
  for (std::size_t l = 0; l < network.size(); ++l) {
    for (const LayerSample& s : measured.layers[l].samples) {
      const bool is_view = l == 4;
      SCOPED_TRACE(measured.layers[l].name + ", " + std::to_string(s.rows) + " rows");
      EXPECT_EQ(s.forward > 0, !is_view);
      EXPECT_EQ(s.input_gradient > 0, l > 0 && !is_view);
      EXPECT_EQ(s.weight_gradient > 0, weighted[l]);
      EXPECT_LT(s.forward + s.input_gradient + s.weight_gradient, 60);
    }
    EXPECT_EQ(measured.layers[l].gradients > 0, weighted[l]);
  }
  EXPECT_GT(measured.link.latency, 0);
}

/// A layer with all that a forward pass can change.
class Restless : public Module {
 public:
  explicit Restless(std::uint64_t seed, std::int64_t width = 6)
      : draws(seed, 77), statistics{zeros({width}), ones({width})} {
    RandomStream random(seed, 5);
    weight = uniform({width, width}, random, -.5, .5).with_grad();
    frozen = uniform({width}, random, -.5, .5);
  }
  NDArray forward(const NDArray& x) override {
    const NDArray y = batch_norm(tanh(matmul(x, weight) + frozen), {statistics[0], statistics[1]});
    return checkpoint([this](const NDArray& h) { return dropout(h, .25, draws); }, y);
  }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override {
    out.push_back({prefix + "weight", &weight});
    out.push_back({prefix + "frozen", &frozen});
  }
  void to(Device device) override {
    Module::to(device);
    for (NDArray& s : statistics) s = s.to(device);
  }
  RandomStream draws;
  NDArray weight, frozen;
  std::vector<NDArray> statistics;
};

NDArray square_loss(const NDArray& output, const NDArray& target, double divisor) {
  return sum(square(output - target)) / divisor;
}

TEST(MeasuredLayers, TheStateIsWhatItWas) {
  TestEngine engine(2);
  std::vector<std::shared_ptr<Restless>> blocks;
  Sequential network;
  for (std::uint64_t i = 0; i < 4; ++i) {
    blocks.push_back(std::make_shared<Restless>(10 + i));
    network.push_back(blocks.back());
  }
  RandomStream random(8);
  const Batch batch{normal({12, 6}, random), normal({12, 6}, random)};
  square_loss(network.forward(batch.x), batch.target, 12).backward();  // there are gradients, and statistics
  blocks[2]->weight.zero_grad();                                       // but for one
  using Bytes = std::vector<std::byte>;
  const auto state = [&] {
    std::vector<std::pair<const void*, Bytes>> all;
    std::vector<Device> where;
    for (const auto& block : blocks) {
      for (const NDArray* x : {&block->weight, &block->frozen}) all.push_back({x->array().get(), x->to_bytes()});
      all.push_back({nullptr, block->weight.grad().defined() ? block->weight.grad().to_bytes() : Bytes()});
      for (const NDArray& s : block->statistics) {
        all.push_back({nullptr, s.to_bytes()});
        EXPECT_EQ(s.device(), test::device(0));
      }
      const RandomStream::State draws = block->draws.state();
      all.push_back({nullptr, Bytes(1, static_cast<std::byte>(draws.draw))});
      EXPECT_TRUE(block->weight.requires_grad());
      EXPECT_FALSE(block->frozen.requires_grad());
    }
    return all;
  };
  const auto before = state();
  const parallel::Plan planned =
      plan(network, batch, engine.all, {}, {.microbatches = {1, 3}, .schedules = {"1f1b", "zb-h1"}},
           {.rounds = 1, .loss = square_loss, .optimizer = momentum});
  EXPECT_TRUE(state() == before);
  EXPECT_GE(planned.chosen, 0);
  // Nor does anything change where a layer throws in the middle.
  network.push_back(Linear(7, 2, random));
  EXPECT_THROW(plan(network, batch, engine.all, {}, {}, {.loss = square_loss}), ArrayError);
  EXPECT_TRUE(state() == before);
}

TEST(MeasuredLayers, APlanRunsAndItsTextHasAForm) {
  TestEngine engine(2);
  const Sequential network = small_network();
  const Batch batch = small_batch(12);
  const parallel::Plan planned =
      plan(network, batch, engine.all, {}, {.microbatches = {4, 16}, .schedules = {"zbv"}}, {.rounds = 1});
  const parallel::Candidate& best = planned.best();
  parallel::Pipeline net(stages_of(best, network, engine.all));
  ASSERT_EQ(net.stages(), 4);
  EXPECT_EQ(net.stage(3).device, test::device(0));
  EXPECT_GT(net.step(batch.x, batch.target, {.microbatches = 4, .schedule = best.make()}).item<double>(), 0);
  EXPECT_THROW(stages_of(best, network, {test::device(0)}), UsageError);
  // Each number with a fraction is a time or a share; cuts and bytes depend on times too.
  const std::string text = without_figures(to_text(planned));
  EXPECT_THAT(text, HasSubstr("layer F us I us W us weights saved kept\n"
                              "0 Conv2d # # # 320 B # KiB # KiB\n"));
  EXPECT_THAT(text, HasSubstr("\nfor a microbatch of 3 rows\n\n"
                              " schedule m ms a step rows/s bubble fullest device layers of the stages\n"
                              "* zbv 4 # "));
  EXPECT_THAT(text, HasSubstr("\n zbv 16 refused: a batch has 12 rows\n"));
}

TEST(MeasuredLayers, TooLittleMemoryIsRefusedInALine) {
  TestEngine engine(2);
  const Sequential network = small_network();
  const parallel::Plan planned = plan(network, small_batch(8), engine.all, {2048, 2048},
                                      {.microbatches = {2}, .schedules = {"1f1b", "zb-h2"}}, {.rounds = 1});
  ASSERT_EQ(planned.chosen, -1);
  for (const parallel::Candidate& c : planned.table) {
    EXPECT_THAT(c.refused, testing::MatchesRegex("device [01] needs [0-9.]+ KiB of 2.00 KiB"));
  }
  EXPECT_THAT(to_text(planned), HasSubstr("nothing is left: all candidates are refused\n"));
  try {
    planned.best();
    ADD_FAILURE();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "no schedule is left: all candidates are refused");
  }
}

TEST(MeasuredLayers, WhatCannotBeMeasuredIsRefused) {
  TestEngine engine(1);
  const Sequential network = small_network();
  const Batch batch = small_batch(8);
  EXPECT_THROW(measure_layers(Sequential(), batch, engine.all), UsageError);
  EXPECT_THROW(measure_layers(network, batch, {}), UsageError);
  EXPECT_THROW(measure_layers(network, batch, engine.all, {.rows = {{4, 4}}}), std::invalid_argument);
  EXPECT_THROW(measure_layers(network, batch, engine.all, {.rows = {9}}), std::invalid_argument);
  EXPECT_THROW(measure_layers(network, batch, engine.all, {.rounds = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace sluice
