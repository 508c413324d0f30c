// Optimisers: their arithmetic against plain loops, and what a bad batch does to them (docs/semantics.md, 15).
#include <gmock/gmock.h>

#include <functional>
#include <memory>

#include "nn_support.h"

namespace sluice {
namespace {

using test::broken;
using test::expect_close;
using test::made_up;
using test::numbers;
using test::TestEngine;

constexpr int kSteps = 20;
constexpr std::int64_t kCount = 37;

/// 20 steps with made-up gradients; the parameter at the end.
std::vector<double> run(DType dtype, const std::function<std::unique_ptr<Optimizer>(const NDArray&)>& make) {
  NDArray w = made_up({kCount}, 1, dtype).with_grad();
  const auto optimizer = make(w);
  for (int t = 0; t < kSteps; ++t) {
    w.set_grad(made_up({kCount}, 100 + static_cast<std::uint64_t>(t), dtype));
    if (t == 10) optimizer->set_lr(optimizer->lr() / 2);
    optimizer->step();
    EXPECT_FALSE(w.grad().defined()) << "step clears the gradient";
  }
  return w.to(DType::f64).to_vector<double>();
}

std::vector<double> plain_sgd(double lr, double momentum, double decay) {
  std::vector<double> w = numbers(kCount, 1), v(kCount, 0.0);
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<double> g = numbers(kCount, 100 + static_cast<std::uint64_t>(t));
    if (t == 10) lr /= 2;
    for (std::size_t i = 0; i < w.size(); ++i) {
      v[i] = momentum * v[i] + g[i] + decay * w[i];
      w[i] -= lr * v[i];
    }
  }
  return w;
}

std::vector<double> plain_adam(double lr, double b1, double b2, double eps, double decay, bool decoupled) {
  std::vector<double> w = numbers(kCount, 1), m(kCount, 0.0), v(kCount, 0.0);
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<double> g = numbers(kCount, 100 + static_cast<std::uint64_t>(t));
    if (t == 10) lr /= 2;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double d = g[i];
      if (decoupled) {
        w[i] -= lr * decay * w[i];
      } else {
        d += decay * w[i];
      }
      m[i] = b1 * m[i] + (1 - b1) * d;
      v[i] = b2 * v[i] + (1 - b2) * d * d;
      const double first = m[i] / (1 - std::pow(b1, t + 1)), second = v[i] / (1 - std::pow(b2, t + 1));
      w[i] -= lr * first / (std::sqrt(second) + eps);
    }
  }
  return w;
}

TEST(Optimizers, SgdIsThePlainLoop) {
  TestEngine engine;
  for (const double momentum : {0.0, 0.9}) {
    for (const double decay : {0.0, 0.01}) {
      const auto make = [&](const NDArray& w) {
        return std::make_unique<Sgd>(ParameterList{w},
                                     SgdOptions{.lr = 0.1, .momentum = momentum, .weight_decay = decay});
      };
      const std::vector<double> wanted = plain_sgd(0.1, momentum, decay);
      expect_close(run(DType::f64, make), wanted, 1e-12);
      expect_close(run(DType::f32, make), wanted, 1e-5);
    }
  }
}

TEST(Optimizers, AdamIsThePlainLoop) {
  TestEngine engine;
  for (const bool decoupled : {false, true}) {
    const auto make = [&](const NDArray& w) {
      return std::make_unique<Adam>(
          ParameterList{w},
          AdamOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = decoupled});
    };
    const std::vector<double> wanted = plain_adam(0.01, 0.8, 0.95, 1e-8, 0.1, decoupled);
    expect_close(run(DType::f64, make), wanted, 1e-12);
    expect_close(run(DType::f32, make), wanted, 1e-5);
  }
}

TEST(Optimizers, ManyParametersOnTwoDevicesStepAsOneDoesAlone) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  for (const bool gate : {true, false}) {
    std::vector<NamedArray> list;
    std::vector<NDArray> alone;
    for (int i = 0; i < 21; ++i) {  // more than fit one operation
      const NDArray w = made_up({kCount}, static_cast<std::uint64_t>(i));
      list.push_back({std::to_string(i), w.copy().to(test::device(i % 2)).with_grad()});
      alone.push_back(w.copy().with_grad());
    }
    Adam together(list, {.lr = 0.01, .gate = gate});
    for (int t = 0; t < 3; ++t) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (i % 5 == 3) continue;  // no gradient: stays as it is
        list[i].value.set_grad(made_up({kCount}, 50 + i).to(list[i].value.device()));
      }
      together.step();
    }
    for (std::size_t i = 0; i < alone.size(); ++i) {
      Adam single({alone[i]}, {.lr = 0.01});
      for (int t = 0; t < 3 && i % 5 != 3; ++t) {
        alone[i].set_grad(made_up({kCount}, 50 + i));
        single.step();
      }
      EXPECT_EQ(list[i].value.to_bytes(), alone[i].to_bytes()) << i;
    }
  }
}

TEST(Optimizers, UseThatCannotBeRightThrowsAtTheCall) {
  TestEngine engine;
  const NDArray w = made_up({3}, 1).with_grad();
  EXPECT_THROW(Sgd({w, made_up({3}, 1)}, {}), ArrayError) << "wants no gradient";
  EXPECT_THROW(Sgd({w, w}, {}), ArrayError) << "twice";
  EXPECT_THROW(Sgd({NDArray()}, {}), ArrayError) << "empty";
  Sgd sgd({w}, {});
  sgd.step();  // no gradients: nothing to do
  EXPECT_EQ(w.to_bytes(), made_up({3}, 1).to_bytes());
}

/// A two-layer network, its optimiser, and a training step that may go wrong.
struct Training {
  explicit Training(bool adam, Device upper = test::device(0), bool gate = true) {
    RandomStream stream(4);
    net.push_back(Linear(6, 5, stream, {.relu = true}));
    net.push_back(Linear(5, 3, stream));
    net.layer(1).to(upper);
    second = upper;
    if (adam) {
      optimizer = std::make_unique<Adam>(net.parameters(), AdamOptions{.lr = 0.01, .gate = gate});
    } else {
      optimizer = std::make_unique<Sgd>(net.parameters(), SgdOptions{.lr = 0.1, .momentum = 0.9, .gate = gate});
    }
  }
  /// Rule 15's program. True: the batch was good.
  bool step(int t, bool bad = false) {
    const NDArray x = made_up({8, 6}, 10 + static_cast<std::uint64_t>(t), DType::f32);
    const NDArray y = from(std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1}, {8}).to(second);
    NDArray hidden = net.layer(0)(bad ? broken(x) : x);
    NDArray loss = cross_entropy(net.layer(1)(hidden.to(second)), y);
    try {
      loss.backward();
      optimizer->step();
      losses.push_back(loss.item<float>());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.root().operation, "broken");
      optimizer->recover();
      return false;
    }
  }
  /// Of weights and state.
  std::string bits() const {
    std::string all_bits;
    for (const NamedArray& p : optimizer->parameters()) all_bits += test::bits(p.value);
    for (const NamedArray& s : optimizer->state()) all_bits += test::bits(s.value);
    return all_bits;
  }
  Sequential net;
  Device second;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> losses;
};

void expect_bad_batch_leaves_no_trace(bool adam, Device upper) {
  Training good(adam, upper), hit(adam, upper);
  const auto first = good.bits();
  for (int t = 0; t < 6; ++t) {
    ASSERT_TRUE(good.step(t));
    if (t == 0 || t == 3) {
      const auto before = hit.bits();
      EXPECT_FALSE(hit.step(t, true));
      EXPECT_TRUE(hit.bits() == before) << "exact bits of weights and state";
    }
    ASSERT_TRUE(hit.step(t));
  }
  EXPECT_TRUE(hit.bits() == good.bits());
  EXPECT_EQ(hit.losses, good.losses);
  EXPECT_TRUE(good.bits() != first) << "nothing was trained";
}

TEST(BadBatch, LeavesNoTrace) {
  TestEngine engine;
  expect_bad_batch_leaves_no_trace(false, test::device(0));
  expect_bad_batch_leaves_no_trace(true, test::device(0));
}

TEST(BadBatch, LeavesNoTraceAcrossDevices) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  expect_bad_batch_leaves_no_trace(false, test::device(1));
  expect_bad_batch_leaves_no_trace(true, test::device(1));
}

TEST(BadBatch, LeavesNoTraceInSerialMode) {
  TestEngine engine({.mode = EngineMode::serial, .mode_given = true});
  expect_bad_batch_leaves_no_trace(true, test::device(0));
}

TEST(BadBatch, OneBadGradientStopsAllParametersBehindTheGate) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  for (const bool gate : {true, false}) {
    const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
    Sgd sgd({a, b}, {.lr = 1, .gate = gate});
    a.set_grad(broken(a.detach()));
    b.set_grad(b.detach().copy());
    sgd.step();
    EXPECT_THROW(a.wait(), Error);
    if (gate) {
      EXPECT_THROW(b.wait(), Error);
    } else {
      EXPECT_EQ(b.to_vector<double>(), std::vector<double>(4, 0.0)) << "stepped by itself";
    }
    EXPECT_THROW(a.wait(), Error) << "every time, until recover";
    sgd.recover();
    EXPECT_EQ(a.to_bytes(), made_up({4}, 1).to_bytes());
    if (gate) {
      EXPECT_EQ(b.to_bytes(), made_up({4}, 2).to_bytes());
    }
  }
}

TEST(BadBatch, ABadStateStopsAllParametersBehindTheGate) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
  Sgd sgd({a, b}, {.lr = 1, .momentum = 0.5});
  for (const NDArray& w : {a, b}) w.set_grad(w.detach().copy());
  push_op([](ArrayContext&) { throw std::runtime_error("bad state"); }, {}, {sgd.state()[0].value}, {.name = "broken"});
  sgd.step();
  EXPECT_THROW(a.wait(), Error);
  EXPECT_THROW(b.wait(), Error) << "b would have stepped alone";
  sgd.recover();
  EXPECT_EQ(b.to_bytes(), made_up({4}, 2).to_bytes());
}

TEST(BadBatch, ParametersOfTwoDtypesStandBehindOneGate) {
  TestEngine engine;
  const NDArray a = made_up({4}, 1, DType::f32).with_grad(), b = made_up({4}, 2, DType::f64).with_grad();
  Adam adam({a, b}, {});
  const auto before = a.to_bytes();
  a.set_grad(a.detach().copy());
  b.set_grad(broken(b.detach()));
  adam.step();
  EXPECT_THROW(a.wait(), Error);
  EXPECT_THROW(b.wait(), Error);
  adam.recover();
  EXPECT_EQ(a.to_bytes(), before);
  for (const NDArray& w : {a, b}) w.set_grad(w.detach().copy());
  adam.step();
  EXPECT_NE(a.to_bytes(), before);
  EXPECT_EQ(adam.state().back().value.item<std::int64_t>(), 1);
}

TEST(Optimizers, AdamCountsStepsOnTheParametersDevice) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray w = made_up({4}, 1).to(test::device(1)).with_grad();
  Adam adam({w}, {});
  const NamedArray count = adam.state().back();
  EXPECT_EQ(count.name, "0.step");
  EXPECT_EQ(count.value.device(), test::device(1));
  for (std::int64_t t = 1; t <= 3; ++t) {
    w.set_grad(w.detach().copy());
    adam.step();
    EXPECT_EQ(count.value.item<std::int64_t>(), t);
  }
}

TEST(BadBatch, CancellingStopsAllParametersOrNone) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const NDArray a = made_up({4}, 1).with_grad(), b = made_up({4}, 2).to(test::device(1)).with_grad();
  Sgd sgd({a, b}, {.lr = 1});
  const auto set_gradients = [&] {
    for (const NDArray& w : {a, b}) w.set_grad(w.detach().copy());
    engine->wait_all();
  };
  {
    set_gradients();
    CancelScope scope;
    const CancelScope::Guard guard(scope);
    Borrow hold = engine->borrow(update(b));  // keeps the gate from its turn
    sgd.step();
    scope.cancel();
    hold.release();
    EXPECT_THROW(a.wait(), Error);
    EXPECT_THROW(b.wait(), Error);
  }
  sgd.recover();
  EXPECT_EQ(a.to_bytes(), made_up({4}, 1).to_bytes());
  EXPECT_EQ(b.to_bytes(), made_up({4}, 2).to_bytes());
  {
    set_gradients();
    CancelScope scope;
    const CancelScope::Guard guard(scope);
    Borrow hold = engine->borrow(read(b));  // the gate may read b, the step of b waits
    sgd.step();
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
  Sgd sgd({w}, {.lr = 1, .momentum = 0.5});
  const NDArray kept = w.detach();
  w.set_grad(broken(kept));
  sgd.step();
  EXPECT_THROW(w.wait(), Error);
  sgd.recover();
  EXPECT_EQ(w.to_bytes(), made_up({4}, 1).to_bytes());
  w.set_grad(kept.copy());
  sgd.step();
  EXPECT_EQ(w.to_vector<double>(), std::vector<double>(4, 0.0));
  EXPECT_EQ(kept.to_bytes(), made_up({4}, 1).to_bytes());
}

}  // namespace
}  // namespace sluice
