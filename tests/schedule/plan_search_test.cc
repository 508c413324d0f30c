// The planner's search where a device has several stages and memory is short, and the parts that it is made of.
#include "sluice/schedule/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

#include "sluice/schedule/device_peak.h"
#include "sluice/schedule/simulated_tasks.h"
#include "sluice/tests/schedule/planned_cases.h"
#include "sluice/tests/schedule/schedules.h"

namespace sluice::parallel {
namespace {

using testing::HasSubstr;

std::vector<int> even_cut(int layers, int stages) {
  std::vector<int> first;
  for (int s = 0; s < stages; ++s) first.push_back(s * layers / stages);
  return first;
}

double most(const std::vector<double>& peaks) { return *std::ranges::max_element(peaks); }

TEST(PlanSearch, RecomputesAllWhereNothingElseFits) {
  const std::vector<LayerCost> layers(96, layer(1, 1, 1, 1, 7, 2, 4));
  PlanOptions options{.devices = 16, .memory = std::vector<double>(16, 400), .rows = 64};
  const Candidate even = time_cut(layers, options, "interleaved:3", 64, even_cut(96, 48), std::vector<bool>(48, true));
  EXPECT_EQ(even.seconds, 1612);
  EXPECT_EQ(most(even.peak), 272);
  options.memory.assign(16, 272);
  options.microbatches = {64};
  options.schedules = {"interleaved:3"};
  const Plan plan = plan_layers(layers, options);
  EXPECT_LE(plan.best().seconds, even.seconds);
  EXPECT_LE(most(plan.best().peak), 272);
  // 1F1B, which takes 1,631 s of 400, is not chosen.
  options.memory.assign(16, 400);
  options.schedules = {"1f1b", "interleaved:3"};
  EXPECT_LE(plan_layers(layers, options).best().seconds, even.seconds);
}

TEST(PlanSearch, HeavyLayersGoToOneDeviceEach) {
  std::vector<LayerCost> layers;
  for (int i = 0; i < 32; ++i) layers.push_back(layer(1, 1, 1, i < 4 ? 100 : 1, 0.25, 0, 0.25));
  for (const char* const schedule : {"zbv", "dynamic-v", "interleaved:2"}) {
    SCOPED_TRACE(schedule);
    const PlanOptions options{
        .devices = 4, .memory = std::vector<double>(4, 150), .rows = 4, .microbatches = {4}, .schedules = {schedule}};
    const Candidate known = time_cut(layers, options, schedule, 4, {0, 1, 2, 3, 9, 15, 20, 26});
    ASSERT_LE(most(known.peak), 150);
    const Plan plan = plan_layers(layers, options);
    ASSERT_EQ(plan.chosen, 0) << to_text(plan);
    EXPECT_LE(most(plan.best().peak), 150);
    EXPECT_LE(plan.best().seconds, known.seconds);
  }
}

/// A few layers, of which some are heavy, for devices that mostly have several stages and little memory.
Case small_table(unsigned seed) {
  std::mt19937 random(seed);
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const char* const schedules[] = {"interleaved:2", "zbv", "dynamic-v", "interleaved:3", "1f1b", "zb-h1"};
  Case c;
  const std::string schedule = schedules[number(0, 5)];
  c.options.schedules = {schedule};
  const int chunks = stages_of_a_device(schedule);
  c.options.devices = chunks == 3 ? number(1, 2) : number(2, 3);
  const int stages = c.options.devices * chunks;
  const int most_layers = stages > 4 ? stages + 1 : 8;
  const bool whole = number(0, 1) == 0;  // times alike, so that many cuts take as long
  for (int l = number(stages, most_layers); l > 0; --l) {
    const auto time = [&] { return whole ? number(1, 2) : std::uniform_real_distribution(0.1, 3.0)(random); };
    const bool heavy = number(0, 3) == 0;
    const int saved = number(1, 8);
    // One by one: in which order a call's arguments are made, the compiler chooses.
    const double f = time(), i = time(), w = time();
    const int input = number(0, 4), kept = number(1, saved);
    c.layers.push_back(layer(f, i, w, heavy ? 40 : 4, saved, input, kept));
    c.layers.back().samples[0].both = number(0, static_cast<int>(c.layers.back().samples[0].kept));
    c.layers.back().samples[0].work = number(0, 3);
  }
  const int m = c.options.devices * number(1, 2);
  c.options.rows = m;
  c.options.microbatches = {m};
  c.options.most_simulations = number(0, 2) > 0 ? 300 : number(1, 30);
  if (number(0, 3) == 0) c.options.link = {.latency = 0.25, .bandwidth = number(0, 1) == 0 ? 20.0 : 1e300};
  if (number(0, 3) == 0) c.options.cores = number(1, c.options.devices);
  const int bytes = number(40, 160);
  for (int d = 0; d < c.options.devices; ++d) c.options.memory.push_back(bytes + number(0, 20));
  return c;
}

struct Seen {
  int exact = 0, refused = 0, open = 0, not_found = 0;
};

/// What the table says of the only schedule, against all cuts and all choices of stages that recompute.
void expect_no_worse(unsigned seed, Seen& seen) {
  const Case c = small_table(seed);
  const std::string& name = c.options.schedules[0];
  const int m = c.options.microbatches[0], stages = c.options.devices * stages_of_a_device(name);
  SCOPED_TRACE("table " + std::to_string(seed) + ", " + name);
  const Schedule base = make_schedule(name, stages, m);
  const double wanted = exhaustive(c, base), infinity = std::numeric_limits<double>::infinity();
  const Plan plan = plan_layers(c.layers, c.options);
  const Candidate& first = plan.table[0];
  const double planned = plan.chosen < 0 ? infinity : plan.best().seconds;
  if (plan.chosen >= 0) {
    EXPECT_NEAR(planned, time_of(c, base, first.first_layer, first.recompute), 1e-9);
    EXPECT_LE(first.bound, wanted * (1 + 1e-9));
  }
  if (first.exact && std::isfinite(wanted)) {
    EXPECT_NEAR(planned, wanted, 1e-8 * wanted);
  } else if (first.exact) {
    EXPECT_EQ(planned, wanted);
  }
  EXPECT_EQ(first.refused.starts_with("no cut found in "), !first.exact && plan.chosen < 0) << first.refused;
  for (const bool again : {false, true}) {
    if (again && !base.fixed_order) continue;
    const double even = time_of(c, base, even_cut(static_cast<int>(c.layers.size()), stages),
                                std::vector<bool>(static_cast<std::size_t>(stages), again));
    EXPECT_LE(planned, even * (1 + 1e-9));
  }
  ++(plan.chosen < 0 ? first.exact ? seen.refused : seen.not_found : first.exact ? seen.exact : seen.open);
}

TEST(PlanSearch, EqualsAllCutsWhereItEndsAndIsNeverWorseThanEvenOnes) {
  const unsigned tables = std::getenv("SLUICE_DEEP") ? 6600 : 200;
  Seen seen;
  for (unsigned seed = 1; seed <= tables; ++seed) expect_no_worse(seed, seen);
  // The tables are of all kinds.
  EXPECT_GT(seen.exact, 80);
  EXPECT_GT(seen.refused, 20);
  EXPECT_GT(seen.open, 10);
}

TEST(PlanSearch, SaysWhereItDidNotEnd) {
  // What must go into each device is hard to say beforehand: the weights of many layers, none like another.
  std::mt19937 random(3);
  std::vector<LayerCost> layers;
  double weights = 0;
  for (int i = 0; i < 40; ++i) {
    layers.push_back(layer(1, 1, 1, std::uniform_int_distribution(20, 60)(random)));
    weights += layers.back().weights;
  }
  const PlanOptions options{.devices = 4,
                            .memory = std::vector<double>(4, weights / 4),
                            .rows = 4,
                            .microbatches = {4},
                            .schedules = {"interleaved:2"},
                            .most_simulations = 3};
  const Plan plan = plan_layers(layers, options);
  ASSERT_EQ(plan.chosen, -1);
  EXPECT_FALSE(plan.table[0].exact);
  EXPECT_THAT(to_text(plan), HasSubstr("refused: no cut found in 3001 tried; the nearest: device "));
}

/// Bytes of stages, none like another; whole numbers, so that sums are exact.
std::vector<StageBytes> some_bytes(int stages, std::mt19937& random) {
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  std::vector<StageBytes> all;
  for (int s = 0; s < stages; ++s) {
    StageBytes bytes{.weights = 1.0 * number(0, 20), .saved = 1.0 * number(0, 9), .kept = 1.0 * number(0, 9)};
    bytes.input = number(0, 9);
    bytes.both = number(0, static_cast<int>(std::min(bytes.saved, bytes.kept)));
    bytes.work = number(0, 9);
    bytes.gradients = number(0, 9);
    all.push_back(bytes);
  }
  return all;
}

TEST(DevicePeak, IsTheProversPeak) {
  std::mt19937 random(1);
  for (const Schedule& plain : fixed_and_free_schedules()) {
    for (const auto& list : plain.per_device) {
      // The device's stages, numbered from 0.
      std::vector<int> mine;
      for (const Action& a : list) {
        if (std::ranges::find(mine, a.stage) == mine.end()) mine.push_back(a.stage);
      }
      std::ranges::sort(mine);
      Schedule part = plain;
      part.stages = static_cast<int>(mine.size());
      part.per_device = {list};
      part.rings.clear();
      for (Action& a : part.per_device[0]) {
        a.stage = static_cast<int>(std::ranges::find(mine, a.stage) - mine.begin());
      }
      for (const int s : mine) {
        if (!plain.rings.empty()) part.rings.push_back(plain.rings[static_cast<std::size_t>(s)]);
      }
      if (part.fixed_order && random() % 2 == 0) part.sum = sum_by_halves(part.microbatches);
      std::vector<bool> again;
      for (int s = 0; s < part.stages; ++s) again.push_back(random() % 2 == 0);
      const Schedule schedule = with_recompute(part, again);
      const DevicePeak peak(schedule);
      for (int i = 0; i < 3; ++i) {
        std::vector<StageBytes> bytes = some_bytes(part.stages, random);
        const double all = peak.most(bytes);
        EXPECT_EQ(all, peak_bytes(schedule, bytes).front().bytes) << describe(plain);
        bytes.back() = {};
        EXPECT_LE(peak.most(bytes), all);
      }
    }
  }
}

TEST(SimulatedTasks, ServeManyCostsAndTakeAsLongAsTheSimulation) {
  std::mt19937 random(1);
  const auto time = [&] { return std::uniform_real_distribution(0.0, 3.0)(random); };
  const SimulateOptions machines[] = {{},
                                      {.link = {.latency = 0.5}},
                                      {.push = 4},
                                      {.link = {.latency = 0.1, .bandwidth = 3}},
                                      {.cores = 2, .push = 2, .link = {.bandwidth = 3}, .link_takes_cores = true}};
  for (const Schedule& plain : fixed_and_free_schedules()) {
    if (plain.stages > 8 || plain.microbatches > 12) continue;
    const auto stages = static_cast<std::size_t>(plain.stages);
    for (SimulateOptions machine : machines) {
      const Schedule all = with_recompute(plain, std::vector<bool>(stages, plain.fixed_order));
      SimulatedTasks tasks(all, machine, true);
      for (int i = 0; i < 2; ++i) {
        std::vector<StageCost> costs;
        std::vector<bool> again;
        machine.output_bytes.clear();
        machine.gradient_share.clear();
        for (std::size_t s = 0; s < stages; ++s) {
          costs.push_back(cost_of_halves(time(), time(), time()));
          again.push_back(plain.fixed_order && random() % 2 == 0);
          costs.back().recompute = again.back() ? time() : 0;
          machine.output_bytes.push_back(time());
          machine.gradient_share.push_back(time() / 3);
        }
        tasks.set(costs, machine);
        // A stage that does not recompute has R actions that take no time.
        EXPECT_NEAR(tasks.span(), simulate(with_recompute(plain, again), costs, machine).span, 1e-9) << describe(plain);
        EXPECT_NEAR(tasks.span(), tasks.run().span, 1e-12);
      }
    }
  }
}

/// Sums of fractions differ in their last bits by the order of their terms.
TEST(PlanSearch, ACutThatNeedsAllOfTheMemoryFits) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Case c = small_table(seed);
    for (LayerCost& l : c.layers) {
      l.weights *= .1;
      l.gradients *= .1;
      LayerSample& s = l.samples[0];
      for (double* bytes : {&s.saved, &s.shared, &s.output, &s.kept, &s.both, &s.kept_shared, &s.work, &s.input})
        *bytes *= .1;
    }
    const std::string& name = c.options.schedules[0];
    const int stages = c.options.devices * stages_of_a_device(name), layers = static_cast<int>(c.layers.size());
    SCOPED_TRACE("table " + std::to_string(seed) + ", " + name);
    std::vector<int> even;
    for (int s = 0; s < stages; ++s) even.push_back(s * layers / stages);
    c.options.memory.clear();
    c.options.most_simulations = 300;
    const Candidate wanted = time_cut(c.layers, c.options, name, c.options.microbatches[0], even, {});
    c.options.memory = wanted.peak;
    const Plan plan = plan_layers(c.layers, c.options);
    ASSERT_GE(plan.chosen, 0) << to_text(plan);
    EXPECT_LE(plan.best().seconds, wanted.seconds * (1 + 1e-9));
  }
}

TEST(PlanSearch, FiguresThatAreNoneAreRefused) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto said = [](const Case& c) {
    try {
      (void)to_text(plan_layers(c.layers, c.options));
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
    return std::string("planned");
  };
  EXPECT_EQ(said(small_table(1)), "planned");
  for (const double x : {infinity, nan, -1.0}) {
    Case c = small_table(1);
    c.layers[1].samples[0].forward = x;
    EXPECT_EQ(said(c), "a plan needs times and bytes that are finite and 0 or more; layer 1 has others");
    c = small_table(1);
    c.layers[0].weights = x;
    EXPECT_EQ(said(c), "a plan needs times and bytes that are finite and 0 or more; layer 0 has others");
    c = small_table(1);
    c.options.link.latency = x;
    EXPECT_EQ(said(c), "a plan needs a link with a finite latency and a bandwidth above 0");
    if (x == infinity) continue;
    c = small_table(1);
    c.options.memory[0] = x;
    EXPECT_EQ(said(c), "a plan needs memory of 0 bytes or more for each device");
  }
}

}  // namespace
}  // namespace sluice::parallel
