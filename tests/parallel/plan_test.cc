// The planner from a net and its devices: what is measured, against closed forms and against stages that are run
// directly; and that measuring leaves nothing behind.
#include "sluice/parallel/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/devices.h"
#include "../support/one_cpu.h"
#include "sluice/autograd/autograd.h"
#include "sluice/autograd/halves.h"
#include "sluice/nn/nets.h"
#include "sluice/operators/operators.h"

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
nn::Sequential small_net() {
  nn::Sequential net{nn::Conv2d{.in = 1, .out = 4, .kernel = 3, .relu = true},
                     nn::MaxPool2d{2},
                     nn::Conv2d{4, 6, 3},
                     relu,
                     nn::Flatten{},
                     nn::Linear{.in = 6 * 3 * 3, .out = 16, .relu = true},
                     nn::Linear{16, 5}};
  nn::initialise(net, 3);
  return net;
}

Batch small_batch(std::int64_t rows) {
  RandomStream random(4);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i % 5);
  return {normal({rows, 1, 12, 12}, random), from(labels, {rows})};
}

const nn::Sgd kMomentum{.lr = .1, .momentum = .9};

TEST(MeasuredLayers, BytesOfDenseLayersAreTheirClosedForm) {
  TestEngine engine(2);
  RandomStream random(1);
  const nn::Sequential net{nn::Linear{.in = 6, .out = 10, .relu = true}, nn::Linear{.in = 10, .out = 7, .relu = true},
                           nn::Linear{7, 5}};
  nn::initialise(net, 1);
  const std::vector<std::int64_t> sizes{2, 8};
  const Batch batch{normal({8, 6}, random), from(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1, 2}, {8})};
  const parallel::Measured measured =
      parallel::measure_layers(net, batch, engine.all, {.rows = sizes, .rounds = 1, .optimizer = kMomentum});
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

/// What the functions [begin, end) hold as a stage, run by themselves: their saved values with inputs and outputs.
template <class Net>
double held_by_stage(const Net& net, const Batch& batch, std::size_t begin, std::size_t end) {
  const nn::Stages functions = net.stages();
  nn::Arrays x, y;
  for (const NDArray& one : batch.x) x.push_back(one.to(test::device(0)).copy());
  for (std::size_t l = 0; l < begin; ++l) x = functions.call(l, x);
  for (NDArray& one : x) {
    const bool wants_gradient = one.requires_grad();
    one = one.detach().copy();
    if (wants_gradient) one.with_grad();
  }
  y = x;
  for (std::size_t l = begin; l < end; ++l) y = functions.call(l, y);
  if (end == functions.size()) y = {cross_entropy(y[0], batch.target.to(test::device(0)))};
  std::set<std::pair<std::uint32_t, std::size_t>> pieces;
  for (const KeptMemory& piece : kept_memory(y, x)) pieces.insert({piece.id, piece.bytes});
  for (const nn::Arrays& list : {x, y}) {
    for (const NDArray& held : list) pieces.insert({memory_of(held).id, memory_of(held).bytes});
  }
  double bytes = 0;
  for (const auto& [id, size] : pieces) bytes += static_cast<double>(size);
  return bytes;
}

template <class Net>
void expect_bytes_of_stages(const Net& net, const Batch& batch, const std::vector<Device>& devices) {
  const std::int64_t rows = batch.target.size(0);
  const parallel::Measured measured = parallel::measure_layers(net, batch, devices, {.rows = {rows}, .rounds = 1});
  const auto layers = static_cast<int>(net.stages().size());
  const auto saved = [&](int stage, const std::vector<int>& first) {
    const parallel::Candidate cut{
        .schedule = "zb-h1", .microbatches = 1, .first_layer = first, .recompute = std::vector<bool>(first.size())};
    const auto count = static_cast<int>(first.size());
    return bytes_of(measured.layers, {.devices = count, .rows = rows}, cut)[static_cast<std::size_t>(stage)].saved;
  };
  for (int begin = 0; begin < layers; ++begin) {
    for (int end = begin + 1; end <= layers; ++end) {
      std::vector<int> first{0};
      if (begin > 0) first.push_back(begin);
      if (end < layers) first.push_back(end);
      EXPECT_EQ(saved(begin > 0 ? 1 : 0, first),
                held_by_stage(net, batch, static_cast<std::size_t>(begin), static_cast<std::size_t>(end)))
          << "layers " << begin << " to " << end - 1;
    }
  }
}

TEST(MeasuredLayers, BytesOfAnyStageAreThoseOfItsLayers) {
  TestEngine engine(1);
  expect_bytes_of_stages(small_net(), small_batch(3), engine.all);
}

/// Functions of several arrays: two are given, and what the first one makes goes on beside the rest.
struct Several {
  nn::Embedding token{7, 6};
  nn::Linear up{4, 6}, down{6, 6}, head{6, 5};
  nn::Stages stages() const {
    nn::Stages list;
    list.add("join", [this](const nn::Arrays& a) -> nn::Arrays { return {tanh(up(a[0])), token(a[1]), a[1]}; });
    list.add("down", [this](const nn::Arrays& a) -> nn::Arrays { return {tanh(down(a[0])), a[1], a[2]}; });
    list.add("again", [this](const nn::Arrays& a) { return a[0] * token(a[2]) * a[1]; });
    list.add(head);
    return list;
  }
};

Batch batch_of_several(std::int64_t rows) {
  RandomStream random(5);
  const NDArray x = normal({rows, 4}, random), ids = randint({rows}, random, 0, 7);
  return {nn::Arrays{x, ids}, randint({rows}, random, 0, 5)};
}

TEST(MeasuredLayers, FunctionsMayPassSeveralArrays) {
  TestEngine engine(2);
  const Several net;
  nn::initialise(net, 1);
  const parallel::Measured measured =
      parallel::measure_layers(net, batch_of_several(8), engine.all, {.rows = {4}, .rounds = 1});
  ASSERT_EQ(measured.layers.size(), 4U);
  const double floats = 4 * 4, ids = 4 * 8;  // bytes of 4 rows
  const double inputs[] = {4 * floats + ids, 12 * floats + ids, 12 * floats + ids, 6 * floats};
  const double weights[] = {(7 * 6 + 4 * 6 + 6) * 4, (6 * 6 + 6) * 4, 0, (6 * 5 + 5) * 4};  // the table counts once
  for (std::size_t l = 0; l < 4; ++l) {
    SCOPED_TRACE(measured.layers[l].name);
    EXPECT_EQ(measured.layers[l].samples[0].input, inputs[l]);
    EXPECT_EQ(measured.layers[l].gradients, weights[l]);
    EXPECT_GT(measured.layers[l].samples[0].forward, 0);
  }
  expect_bytes_of_stages(net, batch_of_several(3), {engine.all[0]});
  const Batch batch = batch_of_several(12);
  const parallel::Plan planned =
      parallel::plan(net, batch, engine.all, {}, {.microbatches = {3}, .schedules = {"zb-h1"}}, {.rounds = 1});
  parallel::Pipeline pipeline(net, {batch.x[0].spec(), batch.x[1].spec()},
                              parallel::pipeline_options(planned.best(), engine.all));
  EXPECT_GT(pipeline.step(batch.x, batch.target, {.microbatches = 3, .schedule = "zb-h1"}).item<double>(), 0);
}

TEST(MeasuredLayers, CoresAreThoseThatTheProcessMayUse) {
  if (test::on_streams()) GTEST_SKIP() << "cores are those of CPU devices";
  test::on_one_cpu([] {
    TestEngine engine(2);  // of two threads each
    const nn::Sequential net = small_net();
    EXPECT_EQ(parallel::measure_layers(net, small_batch(8), engine.all, {.rows = {4}, .rounds = 1}).cores, 1);
  });
}

TEST(MeasuredLayers, TimesAreOfWhatALayerDoes) {
  TestEngine engine(2);
  const nn::Sequential net = small_net();
  const parallel::Measured measured =
      parallel::measure_layers(net, small_batch(8), engine.all, {.rows = {{2, 4}}, .rounds = 2});
  const std::vector<bool> weighted{true, false, true, false, false, true, true};
  for (std::size_t l = 0; l < net.size(); ++l) {
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

/// A layer with all that a forward pass can change: statistics, the numbers of a scope of nn::Training and of a stream
/// of the program's own.
struct Restless {
  nn::Size width;
  std::reference_wrapper<RandomStream> draws;
  nn::Parameter weight{{width, width}, nn::uniform(-.5, .5)}, frozen{{width}, nn::uniform(-.5, .5)};
  nn::BatchNorm norm{width};
  nn::Dropout drop{.25};
  NDArray operator()(const NDArray& x) const {
    const NDArray y = norm(tanh(matmul(x, weight) + frozen));
    return checkpoint([this](const NDArray& h) { return drop(dropout(h, .25, draws)); }, y);
  }
};

NDArray square_loss(const NDArray& output, const NDArray& target, double divisor) {
  return sum(square(output - target)) / divisor;
}

TEST(MeasuredLayers, TheStateIsWhatItWas) {
  TestEngine engine(2);
  RandomStream draws(10, 77), modes(11, 78);
  nn::Sequential net;
  std::vector<nn::Parameter> shared;
  for (int i = 0; i < 4; ++i) {
    Restless block{.width = 6, .draws = draws};
    if (i == 0) shared.push_back(block.weight.tied());
    if (i == 3) block.weight = shared[0].tied();
    net.push_back(std::move(block));
  }
  nn::initialise(net, 10);
  const std::vector<nn::Named> slots = nn::contents(net).slots;
  nn::freeze(net, "*.frozen");
  nn::Optimizer opt(net, kMomentum);
  RandomStream random(8);
  const Batch batch{normal({12, 6}, random), normal({12, 6}, random)};
  const auto backward = [&] {
    const nn::Training on(modes);
    square_loss(net(batch.x[0]), batch.target, 12).backward();
  };
  backward();
  opt.step();                         // it keeps something
  backward();                         // there are gradients, and statistics
  slots[0].state->value.zero_grad();  // but for one
  using Bytes = std::vector<std::byte>;
  const auto state = [&] {
    std::vector<std::pair<const void*, Bytes>> all;
    const auto add = [&](const NDArray& x) { all.push_back({x.array().get(), x.defined() ? x.to_bytes() : Bytes()}); };
    for (const auto& [name, slot] : slots) {
      const bool is_trained = slot->kind == nn::Kind::parameter && !slot->frozen;
      add(slot->value);
      add(is_trained ? slot->value.grad() : NDArray());
      EXPECT_EQ(slot->value.device(), test::device(0)) << name;
      EXPECT_EQ(slot->value.requires_grad(), is_trained) << name;
      EXPECT_FALSE(slot->stand_in.defined()) << name;
      EXPECT_EQ(slot->path, name);
    }
    for (const nn::SavedArray& kept : opt.saved_arrays()) add(kept.value);
    for (const RandomStream* stream : {&draws, &modes}) {
      all.push_back({nullptr, Bytes(1, static_cast<std::byte>(stream->state().draw))});
    }
    return all;
  };
  const auto before = state();
  const parallel::Plan planned =
      parallel::plan(net, batch, engine.all, {}, {.microbatches = {1, 3}, .schedules = {"1f1b", "zb-h1"}},
                     {.rounds = 1, .loss = square_loss, .optimizer = kMomentum});
  EXPECT_TRUE(state() == before);
  EXPECT_GE(planned.chosen, 0);
  {  // Nor in the midst of a step, whose masks are those that they would have been.
    const auto step = [&](bool measures) {
      draws.restore({10, 77, 40});
      RandomStream again(12);
      const nn::Training on(again);
      (void)net(batch.x[0]);
      if (measures) {
        (void)parallel::measure_layers(net, batch, engine.all, {.rows = {4}, .rounds = 1, .loss = square_loss});
      }
      return square_loss(net(batch.x[0]), batch.target, 12).to_bytes();
    };
    const Bytes expected = step(false);
    EXPECT_TRUE(step(true) == expected);
  }
  // Nor does anything change where a layer throws in the middle.
  const auto later = state();
  net.push_back(nn::Linear{7, 2});
  nn::initialise(net[4], 1);
  EXPECT_THROW(parallel::plan(net, batch, engine.all, {}, {}, {.loss = square_loss}), ArrayError);
  EXPECT_TRUE(state() == later);
}

TEST(MeasuredLayers, APlanRunsAndItsTextHasAForm) {
  TestEngine engine(2);
  const nn::Sequential net = small_net();
  const Batch batch = small_batch(12);
  const parallel::Plan planned =
      parallel::plan(net, batch, engine.all, {}, {.microbatches = {4, 16}, .schedules = {"zbv"}}, {.rounds = 1});
  const parallel::Candidate& best = planned.best();
  parallel::Pipeline pipeline(net, batch.x[0].spec(), parallel::pipeline_options(best, engine.all));
  ASSERT_EQ(pipeline.stages(), 4);
  EXPECT_EQ(pipeline.device(3), test::device(0));
  for (int s = 0; s < 4; ++s) EXPECT_EQ(pipeline.functions(s).first, best.first_layer[static_cast<std::size_t>(s)]);
  EXPECT_GT(pipeline.step(batch.x, batch.target, {.microbatches = 4, .schedule = best.make()}).item<double>(), 0);
  EXPECT_THROW(parallel::pipeline_options(best, {test::device(0)}), UsageError);
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
  const nn::Sequential net = small_net();
  const parallel::Plan planned = parallel::plan(net, small_batch(8), engine.all, {2048, 2048},
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
  const nn::Sequential net = small_net();
  const Batch batch = small_batch(8);
  const auto measure = [&](const std::vector<Device>& devices, const parallel::MeasureOptions& options = {}) {
    return [&net, &batch, devices, options] { (void)parallel::measure_layers(net, batch, devices, options); };
  };
  EXPECT_THROW(parallel::measure_layers(nn::Sequential(), batch, engine.all), UsageError);
  EXPECT_THROW(measure({})(), UsageError);
  EXPECT_THROW(measure(engine.all, {.rows = {4, 4}})(), std::invalid_argument);
  EXPECT_THROW(measure(engine.all, {.rows = {9}})(), std::invalid_argument);
  EXPECT_THROW(measure(engine.all, {.rounds = 0})(), std::invalid_argument);
  const nn::Sequential without_values{nn::Flatten{}, nn::Linear{144, 5}};
  EXPECT_THROW(parallel::measure_layers(without_values, batch, engine.all), UsageError);
}

}  // namespace
}  // namespace sluice
