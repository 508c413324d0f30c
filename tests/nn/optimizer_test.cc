// What a bad batch does to an optimiser's steps (docs/semantics.md, 15): over devices, dtypes and operations, all of a
// step happens or nothing.
#include "../support/net_of.h"
#include "nn_support.h"

namespace sluice {
namespace {

using test::bits;
using test::broken;
using test::made_up;
using test::net_of;
using test::TestEngine;

void set_gradients(const std::vector<NDArray>& leaves) {
  for (const NDArray& w : leaves) w.set_grad(w.detach().copy());
}

TEST(Optimizers, ManyParametersOnTwoDevicesStepAsOneDoesAlone) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  constexpr std::int64_t kCount = 37;
  std::vector<NDArray> list, alone;
  for (int i = 0; i < 45; ++i) {  // more than fit one operation
    const NDArray w = made_up({kCount}, static_cast<std::uint64_t>(i));
    list.push_back(w.copy().to(test::device(i % 2)).with_grad());
    alone.push_back(w.copy().with_grad());
  }
  const auto net = net_of(list);
  nn::Optimizer together(net, nn::Adam{.lr = 0.01});
  for (int t = 0; t < 3; ++t) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i % 5 == 3) continue;  // no gradient: stays as it is
      list[i].set_grad(made_up({kCount}, 50 + i).to(list[i].device()));
    }
    together.step();
  }
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const auto single = net_of({alone[i]});
    nn::Optimizer opt(single, nn::Adam{.lr = 0.01});
    for (int t = 0; t < 3 && i % 5 != 3; ++t) {
      alone[i].set_grad(made_up({kCount}, 50 + i));
      opt.step();
    }
    EXPECT_TRUE(bits(list[i]) == bits(alone[i])) << i;
  }
}

TEST(Optimizers, CountsAreOnTheParametersDevice) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray w = made_up({4}, 1).to(test::device(1)).with_grad();
  const auto net = net_of({w});
  nn::Optimizer opt(net, nn::Adam{});
  for (std::int64_t t = 1; t <= 3; ++t) {
    set_gradients({w});
    opt.step();
    const NDArray count = opt.kept("0", "step");
    EXPECT_EQ(count.device(), test::device(1));
    EXPECT_EQ(count.item<std::int64_t>(), t);
  }
}

/// A network of two layers, and a training step that may go wrong.
struct Run {
  struct Net {
    nn::Linear up{.in = 6, .out = 5, .relu = true}, down{5, 3};
  };
  Run(bool adam, Device upper)
      : second(upper),
        opt(adam ? nn::Optimizer(net, nn::Adam{.lr = 0.01}) : nn::Optimizer(net, nn::Sgd{.lr = 0.1, .momentum = 0.9})) {
    nn::initialise(net, 4);
    nn::to(net.down, upper);
  }
  /// Rule 15's program. True: the batch was good.
  bool step(int t, bool bad = false) {
    const NDArray x = made_up({8, 6}, 10 + static_cast<std::uint64_t>(t), DType::f32);
    const NDArray y = from(std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1}, {8}).to(second);
    const NDArray loss = cross_entropy(net.down(net.up(bad ? broken(x) : x).to(second)), y);
    try {
      loss.backward();
      opt.step();
      losses.push_back(loss.item<float>());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.root().operation, "broken");
      opt.recover();
      return false;
    }
  }
  /// Of weights and of what is kept.
  std::string all_bits() const {
    std::string all;
    for (const nn::Named& p : nn::parameters(net)) all += bits(p.state->value);
    for (const nn::SavedArray& kept : opt.saved_arrays()) all += bits(kept.value);
    return all;
  }
  Net net;
  Device second;
  nn::Optimizer opt;
  std::vector<float> losses;
};

void expect_bad_batch_leaves_no_trace(bool adam, Device upper) {
  Run good(adam, upper), hit(adam, upper);
  const auto first = good.all_bits();
  for (int t = 0; t < 6; ++t) {
    ASSERT_TRUE(good.step(t));
    if (t == 1 || t == 3) {
      const auto before = hit.all_bits();
      default_engine().wait_all();  // an error on a device shuts the gate of each step in flight: the good one's too
      EXPECT_FALSE(hit.step(t, true));
      EXPECT_TRUE(hit.all_bits() == before) << "exact bits of weights and of what is kept";
    }
    ASSERT_TRUE(hit.step(t));
  }
  EXPECT_TRUE(hit.all_bits() == good.all_bits());
  EXPECT_EQ(hit.losses, good.losses);
  EXPECT_TRUE(good.all_bits() != first) << "nothing was trained";
}

TEST(BadBatch, LeavesNoTrace) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  for (const int upper : {0, 1}) {
    expect_bad_batch_leaves_no_trace(false, test::device(upper));
    expect_bad_batch_leaves_no_trace(true, test::device(upper));
  }
}

TEST(BadBatch, LeavesNoTraceInSerialMode) {
  TestEngine engine({.mode = EngineMode::serial, .mode_given = true});
  expect_bad_batch_leaves_no_trace(true, test::device(0));
}

TEST(BadBatch, OneBadGradientStopsAllParameters) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
  const auto net = net_of({a, b});
  nn::Optimizer opt(net, nn::Sgd{.lr = 1});
  set_gradients({b});
  a.set_grad(broken(a.detach()));
  opt.step();
  EXPECT_THROW(a.wait(), Error);
  EXPECT_THROW(b.wait(), Error);
  EXPECT_THROW(a.wait(), Error) << "every time, until recover";
  opt.recover();
  EXPECT_EQ(a.to_bytes(), made_up({4}, 1).to_bytes());
  EXPECT_EQ(b.to_bytes(), made_up({4}, 2).to_bytes());
}

TEST(BadBatch, WhatIsKeptAndBadStopsAllParameters) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
  const auto net = net_of({a, b});
  nn::Optimizer opt(net, nn::Sgd{.lr = 1, .momentum = 0.5});
  set_gradients({a, b});
  opt.step();
  const auto before = bits(b);
  set_gradients({a, b});
  push_op([](ArrayContext&) { throw std::runtime_error("bad state"); }, {}, {opt.kept("0", "momentum")},
          {.name = "broken"});
  opt.step();
  EXPECT_THROW(a.wait(), Error);
  EXPECT_THROW(b.wait(), Error) << "b would have stepped alone";
  opt.recover();
  EXPECT_TRUE(bits(b) == before);
}

TEST(BadBatch, ParametersOfTwoDtypesStandBehindOneGate) {
  TestEngine engine;
  const NDArray a = made_up({4}, 1, DType::f32).with_grad(), b = made_up({4}, 2, DType::f64).with_grad();
  const auto net = net_of({a, b});
  nn::Optimizer opt(net, nn::Adam{});
  const auto before = a.to_bytes();
  set_gradients({a});
  b.set_grad(broken(b.detach()));
  opt.step();
  EXPECT_THROW(a.wait(), Error);
  EXPECT_THROW(b.wait(), Error);
  opt.recover();
  EXPECT_EQ(a.to_bytes(), before);
  set_gradients({a, b});
  opt.step();
  EXPECT_NE(a.to_bytes(), before);
  EXPECT_EQ(opt.kept("1", "step").item<std::int64_t>(), 1);
}

TEST(BadBatch, CancellingStopsAllParametersOrNone) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
  const auto net = net_of({a, b});
  nn::Optimizer opt(net, nn::Sgd{.lr = 1});
  const auto begin = [&] {
    set_gradients({a, b});
    engine->wait_all();
  };
  {
    begin();
    CancelScope scope;
    const CancelScope::Guard guard(scope);
    Borrow hold = engine->borrow(update(b));  // keeps the gate from its turn
    opt.step();
    scope.cancel();
    hold.release();
    EXPECT_THROW(a.wait(), Error);
    EXPECT_THROW(b.wait(), Error);
  }
  opt.recover();
  EXPECT_EQ(a.to_bytes(), made_up({4}, 1).to_bytes());
  EXPECT_EQ(b.to_bytes(), made_up({4}, 2).to_bytes());
  {
    begin();
    CancelScope scope;
    const CancelScope::Guard guard(scope);
    Borrow hold = engine->borrow(read(b));  // the gate may read b, the step of b waits
    opt.step();
    a.wait();
    scope.cancel();
    hold.release();
    EXPECT_EQ(a.to_vector<double>(), std::vector<double>(4, 0.0));
    EXPECT_EQ(b.to_vector<double>(), std::vector<double>(4, 0.0));
  }
}

TEST(BadBatch, AHeldSnapshotOfTheWeightsChangesNothing) {
  TestEngine engine;
  const NDArray w = made_up({4}, 1).with_grad();
  const auto net = net_of({w});
  nn::Optimizer opt(net, nn::Sgd{.lr = 1, .momentum = 0.5});
  const NDArray kept = w.detach();
  w.set_grad(broken(kept));
  opt.step();
  EXPECT_THROW(w.wait(), Error);
  opt.recover();
  EXPECT_EQ(w.to_bytes(), made_up({4}, 1).to_bytes());
  w.set_grad(kept.copy());
  opt.step();
  EXPECT_EQ(w.to_vector<double>(), std::vector<double>(4, 0.0));
  EXPECT_EQ(kept.to_bytes(), made_up({4}, 1).to_bytes());
}

}  // namespace
}  // namespace sluice
