// Schedules against closed forms, and rates that fall by what is reported.
#include "sluice/nn/optim/schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "../support/temporary_directory.h"
#include "nn_support.h"
#include "sluice/nn/optim/plateau.h"

namespace sluice {
namespace {

using test::TestEngine;
using test::what_of;
using ::testing::HasSubstr;

/// Half a cosine from 1 to 0.
double half(double part) { return (1 + std::cos(std::numbers::pi * part)) / 2; }

struct ScheduleRow {
  const char* name;
  nn::Schedule schedule;
  std::function<double(double step)> formula;
  int steps;  ///< as far as the formula goes; from there on the value is that of the last step, or `endless`
  bool endless = false;
};

const std::vector<ScheduleRow>& schedules() {
  static const std::vector<ScheduleRow> table{
      {"number", 0.5, [](double) { return 0.5; }, 3},
      {"linear", nn::linear(1, 0.2, 4), [](double t) { return 1 - 0.2 * t; }, 4},
      {"cosine", nn::cosine(1, 9, 0.2), [](double t) { return 0.2 + 0.8 * half(t / 9); }, 9},
      {"step_decay", nn::step_decay(1, 0.1, 3), [](double t) { return std::pow(0.1, std::floor(t / 3)); }, 20, true},
      {"exponential", nn::exponential(2, 0.5), [](double t) { return 2 * std::pow(0.5, t); }, 20, true},
      {"warmup", nn::warmup(4, nn::linear(1, 0, 8)), [](double t) { return (1 - t / 8) * std::min(1.0, (t + 1) / 4); },
       8},
      {"warmup_cosine", nn::warmup_cosine(1, 2, 6, 0.1),
       [](double t) { return t < 2 ? (t + 1) / 2 : 0.1 + 0.9 * half((t - 2) / 4); }, 6},
      {"join", nn::join({{nn::linear(0, 1, 2), 2}, {5.0, 3}, {nn::exponential(1, 0.5), 0}}),
       [](double t) { return t < 2   ? t / 2
                             : t < 5 ? 5
                                     : std::pow(0.5, t - 5); }, 20, true},
      {"polynomial", nn::polynomial(1, 0.1, 7, 2), [](double t) { return 0.1 + 0.9 * (1 - t / 7) * (1 - t / 7); }, 7},
      {"polynomial_root", nn::polynomial(2, 0, 7, 0.5), [](double t) { return 2 * std::sqrt(1 - t / 7); }, 7},
      {"restarts", nn::restarts(1, 5), [](double t) { return half(std::fmod(t, 5) / 5); }, 100, true},
      {"restarts_doubled", nn::restarts(1, 3, 2, 0.1),
       [](double t) {
         const double cycle = std::floor(std::log2(t / 3 + 1));  // the ends are 3 (2^k - 1)
         const double begin = 3 * (std::exp2(cycle) - 1);
         return 0.1 + 0.9 * half((t - begin) / (3 * std::exp2(cycle)));
       },
       3 * 1023, true},
      {"one_cycle", nn::one_cycle(1, 50),
       [](double t) { return t < 14 ? 1 - (1 - 1 / 25.0) * half(t / 14) : 4e-6 + (1 - 4e-6) * half((t - 14) / 35); },
       49},
      {"one_cycle_between_steps", nn::one_cycle(2, 11, {.warm = 0.5, .divide = 4, .divide_end = 10}),
       [](double t) { return t < 4.5 ? 2 - 1.5 * half(t / 4.5) : 0.05 + 1.95 * half((t - 4.5) / 5.5); }, 10},
      {"one_cycle_down", nn::one_cycle(1, 5, {.warm = 0}), [](double t) { return 4e-6 + (1 - 4e-6) * half(t / 4); }, 4},
      {"one_cycle_up", nn::one_cycle(1, 5, {.warm = 1}), [](double t) { return 1 - 0.96 * half(t / 4); }, 4},
      {"one_cycle_of_one", nn::one_cycle(1, 1), [](double) { return 1; }, 0},
  };
  return table;
}

TEST(Schedules, FollowTheirFormulas) {
  for (const ScheduleRow& row : schedules()) {
    SCOPED_TRACE(row.name);
    for (int t = 0; t <= row.steps; ++t) EXPECT_NEAR(row.schedule(t), row.formula(t), 1e-12) << "at " << t;
    if (!std::string(row.name).starts_with("warmup")) {
      EXPECT_EQ(row.schedule(-1), row.schedule(0));
    }
    const std::int64_t far = std::numeric_limits<std::int64_t>::max();
    if (!row.endless) {
      EXPECT_EQ(row.schedule(row.steps + 1), row.schedule(row.steps));
      EXPECT_EQ(row.schedule(far), row.schedule(row.steps));
    } else {
      EXPECT_TRUE(std::isfinite(row.schedule(far)));
    }
  }
}

TEST(Schedules, MisusesAreNamed) {
  EXPECT_THAT(what_of([] { nn::cosine(1, 0); }), HasSubstr("[nn::cosine] 0 steps: at least 1 is wanted"));
  EXPECT_THROW(nn::join({}), UsageError);
  EXPECT_THAT(what_of([] { nn::polynomial(1, 0, -3, 1); }), HasSubstr("[nn::polynomial] -3 steps"));
  for (const double power : {0.0, -1.0, std::nan("")}) {
    EXPECT_THAT(what_of([&] { nn::polynomial(1, 0, 3, power); }), HasSubstr("one above 0 is wanted"));
  }
  EXPECT_THAT(what_of([] { nn::restarts(1, 0); }), HasSubstr("[nn::restarts] 0 steps"));
  EXPECT_THAT(what_of([] { nn::restarts(1, 3, 0); }), HasSubstr("[nn::restarts] periods grow 0 times"));
  EXPECT_THAT(what_of([] { nn::one_cycle(1, 0); }), HasSubstr("[nn::one_cycle] 0 steps"));
  for (const double warm : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(what_of([&] { nn::one_cycle(1, 3, {.warm = warm}); }), HasSubstr("[nn::one_cycle] warm is "));
  }
  EXPECT_THAT(what_of([] { nn::one_cycle(1, 3, {.divide = 0}); }), HasSubstr("the divisors are 0 and 10000"));
  EXPECT_THAT(what_of([] { nn::one_cycle(1, 3, {.divide_end = -2}); }), HasSubstr("the divisors are 25 and -2"));
}

TEST(Plateau, FallsWhenNothingGetsBetter) {
  nn::Plateau plateau{.lr = nn::linear(1, 0.5, 10), .factor = 0.5, .patience = 1, .threshold = 0.1, .cooldown = 2};
  const nn::Schedule rate = plateau;
  struct Report {
    double number;
    bool falls;
    double best;
    std::int64_t tries, cooling;
  };
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const Report reports[] = {
      {10, false, 10, 0, 0},        {9.5, false, 10, 1, 0},   // not better by a tenth
      {8.9, false, 8.9, 0, 0},                                // better
      {nan, false, 8.9, 1, 0},                                // no number is no better
      {-infinite, true, 8.9, 0, 2}, {8.9, false, 8.9, 0, 1},  // two are not counted
      {8.9, false, 8.9, 0, 0},      {8.9, false, 8.9, 1, 0}, {5, false, 5, 0, 0},
      {5, false, 5, 1, 0},          {5, true, 5, 0, 2},      {4, false, 4, 0, 1},  // the best is noted meanwhile
  };
  double scale = 1;
  for (const Report& r : reports) {
    SCOPED_TRACE(r.number);
    EXPECT_EQ(plateau.report(r.number), r.falls);
    if (r.falls) scale /= 2;
    EXPECT_EQ(plateau.best, r.best);
    EXPECT_EQ(plateau.tries, r.tries);
    EXPECT_EQ(plateau.cooling, r.cooling);
    EXPECT_EQ(rate(0), scale);
    EXPECT_EQ(rate(5), 0.75 * scale);
  }
}

TEST(Plateau, HasAFloorAndOtherWays) {
  nn::Plateau low{.lr = 0.1, .factor = 0.1, .patience = 0, .least = 0.02};
  const nn::Schedule rate = low;
  EXPECT_FALSE(low.report(1));
  EXPECT_TRUE(low.report(1));
  EXPECT_EQ(rate(0), 0.02);
  low.lr = 0.01;
  EXPECT_EQ(rate(0), 0.01) << "the floor raises no rate";
  nn::Plateau accuracy{.patience = 0, .threshold = 0.1, .absolute = true, .higher = true};
  EXPECT_FALSE(accuracy.report(0.5));
  EXPECT_TRUE(accuracy.report(0.55));
  EXPECT_FALSE(accuracy.report(0.61));
  EXPECT_EQ(accuracy.best, 0.61);
  nn::Plateau below{.patience = 0, .threshold = 0.1};
  EXPECT_FALSE(below.report(-1));
  EXPECT_TRUE(below.report(-1.05)) << "a tenth of the best's size is wanted";
  EXPECT_FALSE(below.report(-1.2));
  for (const double factor : {0.0, 1.0, -1.0, std::nan("")}) {
    nn::Plateau bad{.factor = factor};
    EXPECT_THAT(what_of([&] { bad.report(1); }), HasSubstr("[nn::Plateau] the factor is "));
    EXPECT_NE(bad.best, bad.best);
  }
}

TEST(Plateau, StepsARuleAndComesBackInAnotherProcess) {
  TestEngine engine;
  const test::TemporaryDirectory folder;
  const std::string path = (folder.path() / "run.safetensors").string();
  struct Net {
    nn::Parameter weight{{2}, nn::constant(1)};
  };
  Net net, other;
  nn::initialise(net, 1);
  nn::Plateau plateau{.lr = 0.5, .factor = 0.5, .patience = 0, .cooldown = 3}, again = plateau;
  nn::Optimizer opt(net, nn::Sgd{.lr = plateau}), second(other, nn::Sgd{.lr = again});
  const auto step = [](const Net& n, nn::Optimizer& o) {
    n.weight.value().set_grad(ones({2}));
    o.step();
    return n.weight.value().to_vector<float>()[0];
  };
  const auto saved = [](const Net& n, nn::Optimizer& o, nn::Plateau& p) {
    return nn::Saved{{"net", n},       {"opt", o},         {"scale", p.scale},
                     {"best", p.best}, {"tries", p.tries}, {"cooling", p.cooling}};
  };
  nn::save(path, saved(net, opt, plateau));  // with nothing yet: a NaN
  nn::load(path, saved(other, second, again));
  EXPECT_NE(again.best, again.best);
  EXPECT_EQ(step(net, opt), 0.5F);
  plateau.report(0.3);
  EXPECT_TRUE(plateau.report(0.3));
  EXPECT_EQ(step(net, opt), 0.25F) << "the rule sees the fall";
  nn::save(path, saved(net, opt, plateau));
  nn::load(path, saved(other, second, again));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(again.report(0.3), plateau.report(0.3)) << i;
    EXPECT_EQ(step(other, second), step(net, opt)) << i;
  }
  EXPECT_LT(plateau.scale, 0.5);
}

}  // namespace
}  // namespace sluice
