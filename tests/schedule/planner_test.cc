// The planner on paper, against an exhaustive search that knows nothing of it.
#include "sluice/schedule/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/verify.h"
#include "sluice/tests/schedule/planned_cases.h"
#include "sluice/tests/schedule/schedules.h"

namespace sluice::parallel {
namespace {

using testing::HasSubstr;

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const auto time = [&] { return std::uniform_real_distribution(0.1, 3.0)(random); };
  Case c;
  c.options.devices = number(1, 3);
  const int layers = number(c.options.devices, 6);
  for (int l = 0; l < layers; ++l) {
    const bool weighted = number(0, 3) > 0;
    const int saved = number(1, 8);
    // One by one: in which order a call's arguments are made, the compiler chooses.
    const double f = time(), i = time(), w = weighted ? time() : 0;
    const int weights = weighted ? 4 * number(1, 5) : 0, input = number(0, 4), kept = number(1, saved);
    c.layers.push_back(layer(f, i, w, weights, saved, input, kept));
    LayerSample& sample = c.layers.back().samples[0];
    sample.shared = l > 0 ? number(0, saved) : 0;
    sample.output = number(0, 2);
    sample.work = number(0, 3);
    sample.kept_shared = l > 0 ? number(0, static_cast<int>(sample.both)) : 0;
    sample.both = number(0, static_cast<int>(sample.kept));
    // A fixed part too, as measured layers have one.
    LayerSample twice = sample;
    twice.rows = 2;
    twice.forward *= 1.5;
    twice.weight_gradient *= 2.2;
    twice.saved *= 2;
    twice.shared *= 2;
    c.layers.back().samples.push_back(twice);
    c.layers.back().step = number(0, 1) * 0.1;
    c.layers.back().push = number(0, 1) * 0.02;
  }
  c.options.rows = 12;
  c.options.microbatches = {number(1, 4), 6};
  c.options.most_simulations = 100'000;
  if (number(0, 1) != 0) c.options.link.latency = 0.3 * number(0, 2);
  if (number(0, 3) == 0) c.options.link.bandwidth = number(2, 20);
  c.options.shared_link = number(0, 3) == 0;
  c.options.link_takes_cores = number(0, 1) == 0;
  if (number(0, 2) == 0) c.options.cores = number(1, c.options.devices);
  c.options.steps = number(1, 2);
  if (number(0, 2) > 0) {
    for (int d = 0; d < c.options.devices; ++d) c.options.memory.push_back(number(10, 140));
  }
  return c;
}

/// What an exhaustive search finds for each candidate of the table must be what the table says.
void expect_exhaustive(unsigned seed, int& fit, int& refused, int& again) {
  const Case c = random_case(seed);
  const Plan plan = plan_layers(c.layers, c.options);
  double best = std::numeric_limits<double>::infinity();
  for (const std::string& name : plan.options.schedules) {
    for (const int m : plan.options.microbatches) {
      double planned = std::numeric_limits<double>::infinity();
      for (const Candidate& row : plan.table) {
        if (row.schedule != name || row.microbatches != m || !row.refused.empty()) continue;
        planned = std::min(planned, row.seconds);
        EXPECT_TRUE(row.exact);
        EXPECT_NEAR(row.seconds, time_of(c, make_schedule(name, row.stages(), m), row.first_layer, row.recompute),
                    1e-9);
        again += row.recomputes() ? 1 : 0;
      }
      const bool v = name == "zbv" || name == "dynamic-v";
      const int chunks = v ? 2 : name.starts_with("interleaved:") ? name.back() - '0' : 1;
      const int stages = c.options.devices * chunks;
      const bool defined =
          stages <= static_cast<int>(c.layers.size()) && (chunks == 1 || v || m % c.options.devices == 0);
      const double wanted =
          defined ? exhaustive(c, make_schedule(name, stages, m)) : std::numeric_limits<double>::infinity();
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + name + " m=" + std::to_string(m));
      if (std::isfinite(wanted)) {
        EXPECT_NEAR(planned, wanted, 1e-8 * wanted);
        ++fit;
      } else {
        EXPECT_EQ(planned, wanted);
        ++refused;
      }
      best = std::min(best, wanted);
    }
  }
  if (std::isfinite(best)) {
    EXPECT_NEAR(plan.best().seconds, best, 1e-8 * best);
  } else {
    EXPECT_EQ(plan.chosen, -1);
  }
}

TEST(Planner, EqualsAnExhaustiveSearch) {
  int fit = 0, refused = 0, again = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) expect_exhaustive(seed, fit, refused, again);
  // The cases are of all kinds.
  EXPECT_GT(fit, 500);
  EXPECT_GT(refused, 100);
  EXPECT_GT(again, 100);
}

TEST(Planner, CutsUnevenLayersSoThatStagesTakeTheSame) {
  // A heavy embedding and a heavy head around small blocks.
  std::vector<LayerCost> layers{layer(6, 0, 6, 4)};
  for (int i = 0; i < 7; ++i) layers.push_back(layer(1, 1, 1, 4));
  layers.push_back(layer(4, 4, 4, 4));
  const Plan plan = plan_layers(layers, {.devices = 3, .rows = 16, .microbatches = {16}, .schedules = {"1f1b"}});
  const Candidate& best = plan.best();
  EXPECT_TRUE(best.exact);
  EXPECT_EQ(cut_to_text(best, 9), "0-1 | 2-6 | 7-8");
}

TEST(Planner, RecomputesWhereMemoryWantsItAndOnlyThere) {
  std::vector<LayerCost> layers;
  for (int i = 0; i < 4; ++i) layers.push_back(layer(1, 1, 1, 4, 16, 4, 2));
  PlanOptions options{.devices = 2, .memory = {200, 80}, .rows = 8, .microbatches = {8}, .schedules = {"gpipe"}};
  // 8 rows in 8 microbatches save 8 x 2 x 16 bytes in a stage of two layers: not even the first device has those.
  const Plan plan = plan_layers(layers, options);
  ASSERT_EQ(plan.table.size(), 1U);
  EXPECT_EQ(cut_to_text(plan.best(), 4), "0-1 R | 2-3 R");
  verify(plan.best().make());
  // Where the first has room for all, it does not run forward again.
  options.memory = {300, 80};
  EXPECT_EQ(cut_to_text(plan_layers(layers, options).best(), 4), "0-1 | 2-3 R");
}

TEST(Planner, SaysWhyACandidateIsRefused) {
  const std::vector<LayerCost> layers{layer(1, 1, 1, 4 << 20, 8 << 20), layer(1, 1, 1, 4 << 20, 8 << 20),
                                      layer(1, 1, 1, 4 << 20, 8 << 20), layer(1, 1, 1, 4 << 20, 8 << 20)};
  const double mib = 1 << 20;
  const Plan plan = plan_layers(layers, {.devices = 2,
                                         .memory = {44 * mib, 40 * mib},
                                         .rows = 3,
                                         .microbatches = {3, 4},
                                         .schedules = {"gpipe", "1f1b", "interleaved:2", "zbv", "interleaved:3"},
                                         .recompute = false});
  const std::string text = to_text(plan);
  // In 3 microbatches of a row a device of two layers holds 8 MiB of weights and up to 3 x 16 MiB.
  EXPECT_THAT(text, HasSubstr("gpipe              3  refused: device 1 needs 56.00 MiB of 40.00 MiB\n"));
  EXPECT_THAT(text, HasSubstr("interleaved:2      3  refused: schedule 'interleaved:2' needs a multiple of its 2 "
                              "devices as microbatches, not 3\n"));
  EXPECT_THAT(text, HasSubstr("interleaved:3      3  refused: 6 stages want as many layers, and there are 4\n"));
  EXPECT_THAT(text, HasSubstr("1f1b               4  refused: a batch has 3 rows\n"));
  EXPECT_THAT(text, HasSubstr("* zbv                3"));
}

TEST(Planner, ALargeNetworkHasABound) {
  std::mt19937 random(5);
  std::vector<LayerCost> layers;
  for (int i = 0; i < 48; ++i) {
    const double t = std::uniform_real_distribution(0.5, 2.0)(random);
    layers.push_back(layer(t, t, t, 4, 1, 1, 1));
  }
  const Plan plan = plan_layers(layers, {.devices = 8,
                                         .rows = 16,
                                         .microbatches = {16},
                                         .schedules = {"1f1b", "interleaved:2"},
                                         .recompute = false,
                                         .most_simulations = 60});
  for (const Candidate& c : plan.table) {
    ASSERT_EQ(c.refused, "");
    EXPECT_LE(c.bound, c.seconds);
    EXPECT_GT(c.bound, 0.5 * c.seconds);
  }
  EXPECT_THAT(to_text(plan), HasSubstr("quicker)"));
}

TEST(Planner, InterpolatesBetweenSamples) {
  const LayerCost cost{.name = "x",
                       .samples = {{.rows = 4, .forward = 3}, {.rows = 8, .forward = 5}, {.rows = 16, .forward = 13}}};
  EXPECT_DOUBLE_EQ(cost.at(2).forward, 2);
  EXPECT_DOUBLE_EQ(cost.at(6).forward, 4);
  EXPECT_DOUBLE_EQ(cost.at(12).forward, 9);
  EXPECT_DOUBLE_EQ(cost.at(32).forward, 29);
  EXPECT_DOUBLE_EQ((LayerCost{.name = "y", .samples = {{.rows = 4, .forward = 3}}}.at(8).forward), 6);
  EXPECT_THROW(LayerCost().at(1), std::invalid_argument);
  EXPECT_THROW((LayerCost{.name = "z", .samples = {{.rows = 4}, {.rows = 4}}}.at(1)), std::invalid_argument);
}

TEST(Planner, RefusesOptionsThatMakeNoSense) {
  const std::vector<LayerCost> one{layer(1, 1, 1)};
  const auto why = [](std::span<const LayerCost> layers, const PlanOptions& options) -> std::string {
    try {
      plan_layers(layers, options);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why({}, {}), "a plan needs at least 1 layer");
  EXPECT_EQ(why(one, {.devices = 0}), "a plan needs at least 1 device, not 0");
  EXPECT_EQ(why(one, {.devices = 2, .memory = {1}}), "a plan needs the memory of 2 devices, not of 1");
  EXPECT_EQ(why(one, {.rows = 0}), "a plan needs at least 1 row, not 0");
  EXPECT_EQ(why(one, {.rows = 1, .microbatches = {0}}), "a plan needs at least 1 microbatch, not 0");
}

TEST(Planner, ChainsAndRecomputationsAreSchedules) {
  for (const Schedule& s : fixed_schedules()) {
    if (s.stages > 4 || s.microbatches > 8) continue;
    const Schedule twice = chained(with_recompute(s, std::vector<bool>(static_cast<std::size_t>(s.stages), true)), 2);
    EXPECT_EQ(refusal(twice), "accepted") << describe(s);
  }
  EXPECT_THROW(chained(make_schedule("dynamic", 2, 4), 2), std::invalid_argument);
  EXPECT_THROW(with_recompute(gpipe(2, 2), {true}), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::parallel
