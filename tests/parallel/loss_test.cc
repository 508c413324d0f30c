// A pipeline's loss is that of the whole batch, however it is divided into microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "pipeline_support.h"
#include "sluice/ndarray/push.h"

namespace sluice {
namespace {

using namespace test;  // NOLINT: the pipelines' tests are in its words
using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 11, kIn = 6, kClasses = 5;

/// Numbers for (rows, classes) or, with places > 1, for (rows, classes, places).
struct Scores {
  nn::Linear up{kIn, 8}, down;
  std::int64_t places;
  explicit Scores(std::int64_t n) : down{8, kClasses * n}, places(n) {}
  auto parts() { return nn::parts("up", up, "down", down); }
  nn::Stages stages() const {
    nn::Stages list;
    list.add("up", [this](const NDArray& x) { return tanh(up(x)); });
    list.add("down", [this](const NDArray& x) {
      const NDArray y = down(x);
      return places == 1 ? y : y.reshape({y.size(0), kClasses, places});
    });
    return list;
  }
};

struct Case {
  std::string name;
  parallel::Loss loss;
  std::function<NDArray(const NDArray&, const NDArray&)> of_batch;  ///< on one device
  NDArray targets;
  std::int64_t places = 1;
};

/// Labels of which the first rows, a whole microbatch, are ignored, and two others.
NDArray some_ignored(std::int64_t places, std::int64_t ignored) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < kBatch * places; ++i) list.push_back((i * 7 + 3) % kClasses);
  for (std::int64_t i = 0; i < 4 * places; ++i) list[static_cast<std::size_t>(i)] = ignored;
  list[static_cast<std::size_t>(6 * places)] = list.back() = ignored;
  return places == 1 ? from(list, {kBatch}) : from(list, {kBatch, places});
}

template <class Function, class Options>
Case of(std::string name, Function* function, Options options, NDArray targets, std::int64_t places = 1) {
  return {std::move(name), parallel::Loss(function, options),
          [=](const NDArray& y, const NDArray& t) { return function(y, t, options); }, std::move(targets), places};
}

std::vector<Case> cases(DType dtype) {
  RandomStream random(5);
  const auto numbers = [&](double low, double high) {
    return uniform({kBatch, kClasses}, random, low, high, dtype).to(device(1));
  };
  const auto names = [](NDArray labels) { return labels.to(device(1)); };
  const NDArray weight = from(std::vector<double>{.5, 2, 0, 3, 1.25}, {kClasses}).to(dtype);
  const NDArray plain = names(labels(kBatch)), some = names(some_ignored(1, -100)), wide = names(some_ignored(3, 2)),
                all_wide = names(labels(kBatch * 3).reshape({kBatch, 3}));
  const auto ce = static_cast<parallel::Loss::OfLogits*>(cross_entropy);
  std::vector<Case> list;
  list.push_back({"nothing given", {}, [](const NDArray& y, const NDArray& t) { return cross_entropy(y, t); }, plain});
  list.push_back({"nothing given, two axes of targets",
                  {},
                  [](const NDArray& y, const NDArray& t) { return cross_entropy(y, t); },
                  all_wide,
                  3});
  list.push_back({"by its name", cross_entropy, [](const NDArray& y, const NDArray& t) { return cross_entropy(y, t); },
                  all_wide, 3});
  for (const double smoothing : {0., .2}) {
    const std::string s = smoothing > 0 ? ", smoothed" : "";
    list.push_back(
        of("ignored" + s, ce, CrossEntropyOptions{.ignore_index = -100, .label_smoothing = smoothing}, some));
    list.push_back(
        of("ignored, two axes" + s, ce, CrossEntropyOptions{.ignore_index = 2, .label_smoothing = smoothing}, wide, 3));
    list.push_back(of("weighted" + s, ce, CrossEntropyOptions{.weight = weight, .label_smoothing = smoothing}, plain));
    list.push_back(of("weighted, ignored" + s, ce,
                      CrossEntropyOptions{.ignore_index = -100, .weight = weight, .label_smoothing = smoothing}, some));
    list.push_back(of("weighted, ignored, two axes" + s, ce,
                      CrossEntropyOptions{.ignore_index = 2, .weight = weight, .label_smoothing = smoothing}, wide, 3));
    list.push_back(
        of("sum" + s, ce,
           CrossEntropyOptions{.reduction = Reduction::sum, .ignore_index = -100, .label_smoothing = smoothing}, some));
    list.push_back(of(
        "divisor" + s, ce,
        CrossEntropyOptions{.divisor = 3, .ignore_index = -100, .weight = weight, .label_smoothing = smoothing}, some));
  }
  list.push_back(of("nll", nll_loss, ClassLossOptions{}, all_wide, 3));
  list.push_back(of("nll, ignored", nll_loss, ClassLossOptions{.ignore_index = -100}, some));
  list.push_back(of("nll, weighted", nll_loss, ClassLossOptions{.weight = weight * 1e4}, plain));
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const LossOptions o{.reduction = reduction};
    list.push_back(of("mse", mse_loss, o, numbers(-1, 1)));
    list.push_back(of("l1", l1_loss, o, numbers(-1, 1)));
    list.push_back(of("kl", kl_div, o, numbers(0, 1)));
    list.push_back(of("huber", huber_loss, HuberOptions{.reduction = reduction, .delta = .3}, numbers(-1, 1)));
    list.push_back(of("bce", bce_with_logits, BceOptions{.reduction = reduction}, numbers(0, 1)));
  }
  list.push_back(of("mse, a target for each row", mse_loss, LossOptions{}, numbers(-1, 1).narrow(1, 0, 1)));
  list.push_back(of("mse, divisor", mse_loss, LossOptions{.divisor = 7}, numbers(-1, 1)));
  list.push_back(of("bce, weighted", bce_with_logits, BceOptions{.positive_weight = weight}, numbers(0, 1)));
  const auto squares = [](const NDArray& y, const NDArray& t, double n) { return sum(square(y - t)) / n; };
  const auto by = [&](double n) { return [=](const NDArray& y, const NDArray& t) { return sum(square(y - t)) / n; }; };
  list.push_back({"a lambda", squares, by(kBatch), numbers(-1, 1)});
  list.push_back({"a lambda's number",
                  {squares, [](const NDArray& t) { return t.count(); }},
                  by(kBatch * kClasses),
                  numbers(-1, 1)});
  list.push_back({"a lambda's array",
                  {squares, [](const NDArray& t) { return sum(abs(t)); }},
                  [](const NDArray& y, const NDArray& t) { return sum(square(y - t)) / sum(abs(t)); },
                  numbers(-1, 1)});
  return list;
}

void expect_near(const NDArray& got, const NDArray& wanted, double part, const std::string& what) {
  const NDArray a = got.to(cpu(0)).to(DType::f64), b = wanted.to(cpu(0)).to(DType::f64);
  const double size = max(abs(b)).item<double>(), apart = max(abs(a - b)).item<double>();
  EXPECT_LE(apart, part * (size + 1e-6)) << what;
}

TEST(PipelineLoss, IsThatOfTheWholeBatch) {
  ManyDevices many(2);
  for (const DType dtype : {DType::f64, DType::f32}) {
    RandomStream random(1);
    const NDArray x = normal({kBatch, kIn}, random, 0, 1, dtype);
    for (const Case& c : cases(dtype)) {
      SCOPED_TRACE(c.name + " " + std::string(name_of(dtype)));
      Scores one(c.places), cut(c.places);
      for (Scores* net : {&one, &cut}) {
        nn::initialise(*net, 1, {}, {.dtype = dtype});
      }
      const nn::Training on(random);
      const NDArray targets = c.targets.to(device(0));
      const NDArray loss = c.of_batch(nn::run(one.stages(), nn::Arrays{x})[0], targets);
      loss.backward();
      parallel::Pipeline pipeline(cut, x.spec(), {.devices = devices(2), .loss = c.loss});
      const double part = dtype == DType::f64 ? 1e-12 : 2e-5;
      for (const int microbatches : {1, 3, 4}) {
        for (const nn::Named& p : nn::parameters(cut)) p.state->value.zero_grad();
        const NDArray got = pipeline.step(x, c.targets, {.microbatches = microbatches});
        EXPECT_EQ(got.dtype(), dtype);
        expect_near(got, loss, part, std::to_string(microbatches) + " microbatches");
        const auto of_one = nn::parameters(one), of_cut = nn::parameters(cut);
        for (std::size_t i = 0; i < of_one.size(); ++i) {
          expect_near(of_cut[i].state->value.grad(), of_one[i].state->value.grad(), part, of_one[i].name);
        }
      }
    }
  }
}

TEST(PipelineLoss, OfABatchThatIsAllIgnoredIsNaNAsOnOneDevice) {
  ManyDevices many(2);
  Scores net(1);
  nn::initialise(net, 1);
  const NDArray x = ones({4, kIn});
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .loss = {cross_entropy, {.ignore_index = 1}}});
  EXPECT_TRUE(std::isnan(pipeline.step(x, ones({4}, DType::i64), {.microbatches = 2}).to(cpu(0)).item<float>()));
}

TEST(PipelineLoss, AStepDoesNotWaitForItsDivisor) {
  ManyDevices many(2);
  Scores net(1);
  nn::initialise(net, 1);
  const NDArray x = ones({4, kIn}), y = labels(4).to(device(1));
  NDArray busy;
  std::latch held(1);
  {
    const DeviceScope host(cpu(0));
    busy = empty({4}, DType::i64);
    push_op([&, busy](ArrayContext& c) { held.wait(), std::fill_n(c.output().as<std::int64_t>(), 4, 0); }, {}, {busy},
            {.name = "held"});
  }
  parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .loss = {cross_entropy, {.ignore_index = 1}}});
  const NDArray loss = pipeline.step(x, y + busy.to(device(1)), {.microbatches = 2});
  held.count_down();
  EXPECT_TRUE(std::isfinite(loss.to(cpu(0)).item<float>()));
}

TEST(PipelineLoss, WhatItCannotBeIsSaidInOneLine) {
  ManyDevices many(2);
  EXPECT_THAT(message([] { parallel::Loss(mse_loss, {.reduction = Reduction::none}); }),
              HasSubstr("[Loss] Reduction::none"));
  EXPECT_THAT(message([] { (void)parallel::Loss(parallel::LossFunction{}); }),
              HasSubstr("[Loss] the function is empty"));
  Scores net(1);
  nn::initialise(net, 1);
  const NDArray x = ones({5, kIn});
  const auto said = [&](parallel::Loss loss, const NDArray& targets) {
    parallel::Pipeline pipeline(net, x.spec(), {.devices = devices(2), .loss = std::move(loss)});
    return message([&] { pipeline.step(x, targets, {.microbatches = 1}); });
  };
  // Five targets broadcast over the five classes, so that a row would meet the others' targets.
  const std::string broadcast = said(mse_loss, ones({5}));
  EXPECT_THAT(broadcast, HasSubstr("the loss of (5, 5) with targets (5,) is no sum over rows"));
  EXPECT_THAT(broadcast, HasSubstr("loss_test.cc"));
  EXPECT_THAT(said({mse_loss, {.reduction = Reduction::sum}}, ones({5})), HasSubstr("is no sum over rows"));
  EXPECT_THAT(said({bce_with_logits, {.positive_weight = ones({5, 1})}}, ones({5, kClasses})),
              HasSubstr("a positive_weight (5, 1) for (5, 5): it must be the same for all rows"));
  const auto plain = [](const NDArray& y, const NDArray&, double) { return sum(y); };
  EXPECT_THAT(said({plain, [](const NDArray& t) { return t; }}, ones({5})),
              HasSubstr("the loss's divisor is an array of shape (5,): 0-d is wanted"));
  EXPECT_THAT(said({plain, [](const NDArray&) { return NDArray(); }}, ones({5})), HasSubstr("[pipeline]"));
  EXPECT_THAT(said({cross_entropy, {.ignore_index = 1}}, ones({5})), HasSubstr("labels are i64, i32 or u8, not f32"));
}

}  // namespace
}  // namespace sluice
