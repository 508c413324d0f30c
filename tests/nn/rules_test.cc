// Rules of optimisers (rules_table.h) against their formulas in double, fused rows against compositions, and steps that
// fail: all new values are written, or none.
#include "sluice/nn/optim/rules.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "../support/temporary_directory.h"
#include "nn_support.h"
#include "rules_table.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/scratch.h"

namespace sluice {
namespace {

using test::bits;
using test::made_up;
using test::RuleRow;
using test::rules;
using test::TestEngine;
using ::testing::HasSubstr;

struct Tiny {
  nn::Parameter weight{{3, 4}, nn::normal(1)}, tall{{5, 2}, nn::normal(1)}, bias{{3}, nn::normal(1)};
};

void give_gradients(const Tiny& net, std::uint64_t step) {
  std::uint64_t i = 0;
  for (const nn::Slot* slot : {static_cast<const nn::Slot*>(&net.weight), static_cast<const nn::Slot*>(&net.tall),
                               static_cast<const nn::Slot*>(&net.bias)}) {
    const NDArray& value = slot->value();
    value.set_grad(made_up(value.shape(), 100 * step + i++, value.dtype()).to(value.device()));
  }
}

std::vector<NDArray> values(const Tiny& net) { return {net.weight, net.tall, net.bias}; }
std::vector<std::string> all_bits(const Tiny& net) {
  std::vector<std::string> list;
  for (const NDArray& x : values(net)) list.push_back(bits(x));
  return list;
}
std::vector<double> doubles(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

/// Whether it is computed otherwise with .fused.
bool may_be_fused(const std::vector<nn::RuleFor>& list) {
  return std::ranges::any_of(list, [](const nn::RuleFor& r) { return r.rule.fused(0).has_value(); });
}

TEST(Rules, FusedRowsEqualTheirComposition) {
  TestEngine engine;
  for (const auto& [name, rules_for, steps] : rules()) {
    if (!may_be_fused(rules_for)) continue;
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::f32, 1e-5}, {DType::f64, 1e-13}, {DType::bf16, 3e-2}, {DType::f16, 4e-3}}) {
      SCOPED_TRACE(name + " " + std::string(name_of(dtype)));
      Tiny fused, composed;
      nn::initialise(fused, 1, {}, {.dtype = dtype});
      nn::initialise(composed, 1, {}, {.dtype = dtype});
      nn::Optimizer one(fused, rules_for), other(composed, rules_for, {.fused = false});
      for (std::uint64_t step = 0; step < 8; ++step) {
        give_gradients(fused, step);
        give_gradients(composed, step);
        one.step();
        other.step();
      }
      EXPECT_EQ(one.steps(), 8);
      for (std::size_t i = 0; i < 3; ++i)
        test::expect_close(doubles(values(fused)[i]), doubles(values(composed)[i]), tolerance);
    }
  }
}

/// Shapes that rules may take for others: a scalar, rows and columns of one, stacks of matrices; and weights of 0.
struct Odd {
  nn::Parameter scalar{Dims{}, nn::normal(1)}, vector{{7}, nn::normal(1)}, matrix{{3, 4}, nn::normal(1)},
      tall{{5, 2}, nn::normal(1)}, row{{1, 6}, nn::normal(1)}, column{{6, 1}, nn::normal(1)},
      one{{1, 1}, nn::normal(1)}, image{{4, 3, 2, 5}, nn::normal(1)}, thin{{2, 1, 3, 1}, nn::normal(1)},
      zero{{3, 3}, nn::constant(0)};
};

TEST(Rules, FollowTheirFormulas) {
  TestEngine engine;
  for (const RuleRow& row : rules()) {
    if (!row.steps) continue;
    for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 2e-5}, {DType::bf16, 5e-2}}) {
      SCOPED_TRACE(row.name + " " + std::string(name_of(dtype)));
      const Odd net;
      nn::initialise(net, 1, {}, {.dtype = dtype});
      const std::vector<nn::Named> parameters = nn::parameters(net);
      ASSERT_EQ(parameters.size(), 10U);
      std::vector<std::vector<double>> wanted;
      std::vector<test::Steps> steps;
      for (const nn::Named& p : parameters) {
        wanted.push_back(doubles(p.state->value));
        steps.push_back(row.steps());
      }
      nn::Optimizer opt(net, row.rules);
      for (int step = 0; step < 7; ++step) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const NDArray& value = parameters[i].state->value;
          value.set_grad(made_up(value.shape(), static_cast<std::uint64_t>(100 * step) + i, dtype).to(value.device()));
          steps[i](wanted[i], doubles(value.grad()), value.shape(), step);
        }
        opt.step();
        EXPECT_FALSE(parameters[0].state->value.grad().defined()) << "a step drops gradients";
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        SCOPED_TRACE(parameters[i].name);
        test::expect_close(doubles(parameters[i].state->value), wanted[i], tolerance);
      }
    }
  }
}

TEST(Rules, ASavedRunGoesOnBitForBit) {
  TestEngine engine;
  const test::TemporaryDirectory folder;
  const std::string path = (folder.path() / "run.safetensors").string();
  for (const RuleRow& row : rules()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(row.name + " " + std::string(name_of(dtype)));
      Tiny net, again;
      nn::initialise(net, 1, {}, {.dtype = dtype});
      nn::Optimizer opt(net, row.rules), other(again, row.rules);
      for (std::uint64_t step = 0; step < 6; ++step) {
        if (step == 3) nn::save(path, {{"net", net}, {"opt", opt}});
        give_gradients(net, step);
        opt.step();
      }
      nn::load(path, {{"net", again}, {"opt", other}});
      for (std::uint64_t step = 3; step < 6; ++step) {
        give_gradients(again, step);
        other.step();
      }
      EXPECT_TRUE(all_bits(again) == all_bits(net));
    }
  }
}

/// The iteration on plain loops.
std::vector<double> orthogonal(std::vector<double> x, int rows, int columns) {
  const auto at = [](std::vector<double>& m, int width, int i, int j) -> double& {
    return m[static_cast<std::size_t>(i * width + j)];
  };
  const bool tall = rows > columns;
  if (tall) {
    std::vector<double> turned(x.size());
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) at(turned, rows, j, i) = at(x, columns, i, j);
    x = turned;
    std::swap(rows, columns);
  }
  double norm = 0;
  for (const double v : x) norm += v * v;
  for (double& v : x) v /= std::max(std::sqrt(norm), 1e-7);
  for (int step = 0; step < 5; ++step) {
    const auto n = static_cast<std::size_t>(rows * rows);
    std::vector<double> gram(n), both(n), next(x.size());
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < rows; ++j)
        for (int k = 0; k < columns; ++k) at(gram, rows, i, j) += at(x, columns, i, k) * at(x, columns, j, k);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < rows; ++j) {
        double square = 0;
        for (int k = 0; k < rows; ++k) square += at(gram, rows, i, k) * at(gram, rows, k, j);
        at(both, rows, i, j) = -4.7750 * at(gram, rows, i, j) + 2.0315 * square;
      }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) {
        double sum = 3.4445 * at(x, columns, i, j);
        for (int k = 0; k < rows; ++k) sum += at(both, rows, i, k) * at(x, columns, k, j);
        at(next, columns, i, j) = sum;
      }
    x = next;
  }
  if (!tall) return x;
  std::vector<double> back(x.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) at(back, rows, j, i) = at(x, columns, i, j);
  return back;
}

TEST(Rules, MuonIsTheIterationOfItsMomentum) {
  TestEngine engine;
  Tiny net;
  nn::initialise(net, 1, {}, {.dtype = DType::f64});
  nn::Optimizer opt(net, {{"weight|tall", nn::Muon{.lr = 0.1}}, {"*", nn::Sgd{}}});
  for (const auto& [slot, rows, columns] : {std::tuple{&net.weight, 3, 4}, {&net.tall, 5, 2}}) {
    std::vector<double> wanted = doubles(*slot), momentum(wanted.size());
    for (std::uint64_t step = 0; step < 4; ++step) {
      give_gradients(net, step);
      const std::vector<double> g = doubles(slot->grad());
      std::vector<double> direction(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        momentum[i] = 0.95 * momentum[i] + 0.05 * g[i];
        direction[i] = 0.05 * g[i] + 0.95 * momentum[i];
      }
      direction = orthogonal(direction, rows, columns);
      const double rate = 0.1 * std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
      for (std::size_t i = 0; i < g.size(); ++i) wanted[i] = wanted[i] * (1 - 0.1 * 0.1) - rate * direction[i];
      opt.step();
    }
    test::expect_close(doubles(*slot), wanted, 1e-11);
    // The other matrix begins anew.
    Tiny again;
    nn::initialise(again, 1, {}, {.dtype = DType::f64});
    net = std::move(again);
    opt = nn::Optimizer(net, {{"weight|tall", nn::Muon{.lr = 0.1}}, {"*", nn::Sgd{}}});
  }
}

TEST(Rules, ABadGradientChangesNothing) {
  TestEngine engine;
  for (const auto& [name, rules_for, steps] : rules()) {
    for (const bool fused : {true, false}) {
      if (fused && !may_be_fused(rules_for)) continue;
      SCOPED_TRACE(name + (fused ? " fused" : " composed"));
      Tiny net, twin;
      nn::initialise(net, 1);
      nn::initialise(twin, 1);
      nn::Optimizer opt(net, rules_for, {.fused = fused}), other(twin, rules_for, {.fused = fused});
      give_gradients(net, 0);
      give_gradients(twin, 0);
      opt.step();
      other.step();
      const std::vector<std::string> before = all_bits(net);
      engine->wait_all();  // an error on a device shuts the gate of each step in flight: the twin's too
      give_gradients(net, 1);
      net.bias.value().set_grad(test::broken(net.bias.grad()));
      opt.step();
      EXPECT_THROW(net.weight.value().wait(), Error);
      EXPECT_THROW(net.bias.value().wait(), Error);
      opt.recover();
      EXPECT_EQ(all_bits(net), before);
      // A schedule counts calls; a bias correction does not.
      other.set_counts({{"steps", 2}});
      give_gradients(net, 2);
      give_gradients(twin, 2);
      opt.step();
      other.step();
      EXPECT_EQ(all_bits(net), all_bits(twin));
    }
  }
}

/// Memory that runs out the later in a step, the larger `place` is.
class Shortage {
 public:
  Shortage(TestEngine& engine, std::size_t place) : control_(engine.control()) {
    engine->wait_all();
    if (control_) {
      device_pool(engine.engine(), test::device()).trim();
      // Without cached blocks an allocation is tried once, with some twice.
      control_->fail_nth(SimFault::allocation, place + 1);
      control_->fail_nth(SimFault::allocation, place + 2);
      return;
    }
    MemoryPool& pool = memory_pool(cpu(0));
    pool.trim();
    pool.set_limit(pool.stats().in_use + 64 * place + 1);
  }
  ~Shortage() {
    if (control_) {
      control_->fail_every(SimFault::allocation, 0);
    } else {
      memory_pool(cpu(0)).set_limit(0);
    }
  }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

 private:
  SimControl* control_;
};

TEST(Rules, MemoryThatRunsOutChangesNothing) {
  TestEngine engine;
  if (test::device_kind() == DeviceKind::gpu) GTEST_SKIP() << "CUDA's memory is not the test's to take";
  int refused = 0;
  for (const auto& [name, rules_for, steps] : rules()) {
    for (const auto& [fused, first] : {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
      if (fused && !may_be_fused(rules_for)) continue;
      SCOPED_TRACE(name + (fused ? " fused" : " composed") + (first ? ", its first step" : ""));
      Tiny net, twin;
      nn::initialise(net, 1);
      nn::initialise(twin, 1);
      nn::Optimizer opt(net, rules_for, {.fused = fused}), other(twin, rules_for, {.fused = fused});
      give_gradients(net, 0);
      give_gradients(twin, 0);
      if (first) {
        opt.zero_grad();
        other.zero_grad();
      } else {
        opt.step();
        other.step();
      }
      const std::vector<std::string> before = all_bits(net);
      bool stepped = false;
      // With each further block the step comes further.
      for (std::size_t blocks = 0; !stepped; ++blocks) {
        ASSERT_LT(blocks, 1000U);
        give_gradients(net, 1);
        bool pushed = false;
        std::optional<Shortage> shortage(std::in_place, engine, blocks);
        try {
          opt.step();
          pushed = true;
          for (const NDArray& x : values(net)) x.wait();
          stepped = true;
        } catch (const std::exception& error) {  // of the push itself, or of an op
          ++refused;
          EXPECT_THAT(error.what(), HasSubstr("left:"));
        }
        try {
          engine->wait_all();
        } catch (const Error&) {
        }
        engine->clear_errors();
        shortage.reset();
        if (stepped) break;
        for (const NDArray& x : values(net)) {
          if (!pushed) break;
          EXPECT_THROW(x.wait(), Error) << "one of them was changed";
        }
        opt.recover();
        EXPECT_EQ(all_bits(net), before);
      }
      other.set_counts({{"steps", opt.steps() - 1}});
      give_gradients(twin, 1);
      other.step();
      EXPECT_EQ(all_bits(net), all_bits(twin));
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(Rules, AFailureThatIsNoticedLateIsHealed) {
  for (const bool fused : {true, false}) {
    for (const int late : {1, 2, 3}) {
      SCOPED_TRACE((fused ? "fused, " : "composed, ") + std::to_string(late) + " steps late");
      TestEngine engine;
      Tiny net;
      nn::initialise(net, 1);
      nn::Optimizer opt(net, nn::Sgd{.lr = 0.1, .momentum = 0.9}, {}, {.fused = fused});
      const std::vector<std::string> before = all_bits(net);
      CancelScope scope;
      scope.cancel();
      {
        const CancelScope::Guard guard(scope);
        for (int i = 0; i < late; ++i) {
          give_gradients(net, 0);
          opt.step();
        }
      }
      EXPECT_THROW(net.weight.value().wait(), Error);
      opt.recover();
      EXPECT_EQ(all_bits(net), before);
      give_gradients(net, 1);
      opt.step();
      EXPECT_NE(all_bits(net), before);
    }
  }
}

TEST(Rules, CopiesOfARuleShareNothing) {
  TestEngine engine;
  const std::vector<nn::RuleFor> rules{{"*", nn::Sgd{.lr = 0.5}}};
  Tiny one, other;
  nn::initialise(one, 1);
  nn::initialise(other, 1);
  nn::Optimizer a(one, rules), b(other, rules);
  a.rule<nn::Sgd>().momentum = 0.75;
  EXPECT_EQ(b.rule<nn::Sgd>().momentum, 0);
}

std::string line_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Rules, MisusesAreNamed) {
  TestEngine engine;
  Tiny net;
  const auto make = [&](const std::vector<nn::Group<nn::Sgd>>& groups) {
    return nn::Optimizer(net, nn::Sgd{}, groups);
  };
  EXPECT_THAT(line_of([&] {
                make({{"*.biass", [](nn::Sgd&) {}}});
              }),
              HasSubstr("the group '*.biass' is the first match of none of the 3 parameters"));
  EXPECT_THAT(line_of([&] {
                nn::Optimizer(net, {{"weight", nn::Sgd{}}});
              }),
              HasSubstr("no rule is for the parameter 'tall'"));
  nn::Optimizer opt = make({});
  EXPECT_THAT(line_of([&] { make({}); }), HasSubstr("'weight' is trained by another nn::Optimizer"));
  EXPECT_THAT(line_of([&] { opt.step(); }), HasSubstr("'weight' has no value"));
  EXPECT_THAT(line_of([&] { opt.rule<nn::Lion>(); }), HasSubstr("rule 0 of 1 is not of the type"));
  EXPECT_THAT(line_of([&] { opt.rule<nn::Sgd>(1); }), HasSubstr("rule 1 of 1"));
  nn::initialise(net, 1);
  opt.step();  // no gradients: nothing to do
  give_gradients(net, 0);
  EXPECT_THAT(line_of([&] { net.weight.value().set_grad(ones({3, 5})); }), HasSubstr("(3, 5)"));
  net.tall = nn::Parameter({5, 2}, nn::constant(1));
  EXPECT_THAT(line_of([&] { opt.step(); }), HasSubstr("'tall' belongs to no net any more"));
  struct None {
    int number = 0;
  } none;
  EXPECT_THAT(line_of([&] { nn::Optimizer(none, nn::Sgd{}); }), HasSubstr("the net has no parameters"));
}

TEST(Rules, GroupsFreezingAndMovingAreSeen) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  Tiny net;
  nn::Optimizer opt(net, nn::Sgd{.lr = 1},
                    {{"bias", [](nn::Sgd& r) { r.lr = 0.5; }}, {"*a*", [](nn::Sgd& r) { r.lr = 0; }}});
  nn::initialise(net, 1, {{"*", nn::constant(1)}});
  const auto set_ones = [&] {
    for (const NDArray& x : values(net)) {
      if (x.requires_grad()) x.set_grad(ones_like(x));
    }
  };
  set_ones();
  opt.step();
  EXPECT_EQ(doubles(net.weight), std::vector<double>(12, 0));
  EXPECT_EQ(doubles(net.bias), std::vector<double>(3, 0.5)) << "the first group that matches counts";
  EXPECT_EQ(doubles(net.tall), std::vector<double>(10, 1));
  nn::freeze(net, "weight");
  set_ones();
  opt.rule<nn::Sgd>(1).lr = 2;
  opt.step();
  EXPECT_EQ(doubles(net.weight), std::vector<double>(12, 0));
  EXPECT_EQ(doubles(net.tall), std::vector<double>(10, -1));
  EXPECT_FALSE(net.weight.value().requires_grad());
  nn::freeze(net, "weight", false);
  if (!test::on_streams()) nn::to(net, cpu(1));
  set_ones();
  opt.step();
  EXPECT_EQ(doubles(net.weight), std::vector<double>(12, -1));
  EXPECT_EQ(doubles(net.bias), std::vector<double>(3, -0.5));
}

TEST(Rules, WhatIsKeptFollowsItsParameter) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  if (test::on_streams()) GTEST_SKIP() << "logical CPUs";
  for (const bool fused : {true, false}) {
    Tiny net, twin;
    nn::initialise(net, 1);
    nn::initialise(twin, 1);
    const nn::AdamW rule{.lr = 0.1};
    nn::Optimizer opt(net, rule, {}, {.fused = fused}), other(twin, rule, {}, {.fused = fused});
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 3) nn::to(net, cpu(1));
      give_gradients(net, step);
      give_gradients(twin, step);
      opt.step();
      other.step();
    }
    EXPECT_EQ(opt.kept("weight", "exp_avg").device(), cpu(1));
    EXPECT_EQ(all_bits(net), all_bits(twin));
  }
}

}  // namespace
}  // namespace sluice
