// Several threads that push at once: arrays of their own and arrays that they share, gradients, training, pipelines.
// Each result has the bits that it has when its thread is alone. ThreadSanitizer runs this in CI (docs/testing.md).
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../support/devices.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

constexpr int kPushers = 4;
#ifdef SLUICE_SANITIZED
constexpr int kSteps = 8;
#else
constexpr int kSteps = 40;
#endif

using Bytes = std::vector<std::byte>;

/// Calls f(0) to f(kPushers - 1), each on a thread of its own, all at once.
void at_once(const std::function<void(int)>& f) {
  std::latch begin(kPushers);
  std::vector<std::thread> threads;
  for (int t = 0; t < kPushers; ++t)
    threads.emplace_back([&, t] {
      begin.arrive_and_wait();
      f(t);
    });
  for (std::thread& thread : threads) thread.join();
}

/// What each of `programs` results in when all run at once is what it results in alone.
void expect_the_same_alone(const std::function<Bytes(int)>& program) {
  std::vector<Bytes> together(kPushers);
  at_once([&](int t) { together[static_cast<std::size_t>(t)] = program(t); });
  for (int t = 0; t < kPushers; ++t) EXPECT_EQ(together[static_cast<std::size_t>(t)], program(t)) << "pusher " << t;
}

struct Pushers : ::testing::Test {
  test::DefaultEngine engine{{.threads = 2, .logical_cpus = 2}};
};

TEST_F(Pushers, OwnArraysAndSharedOperands) {
  RandomStream random(1);
  const NDArray weight = normal({24, 24}, random) * 0.1, bias = normal({24}, random);
  expect_the_same_alone([&](int t) {
    RandomStream own(static_cast<std::uint64_t>(t) + 2);
    NDArray x = normal({16, 24}, own);
    for (int i = 0; i < kSteps; ++i) {
      NDArray y = tanh(matmul(x, weight) + bias);
      y(i % 16).fill(i * 0.25);
      x += softmax(y, 1) * 0.5;
      x = concat({x.narrow(0, 8, 16), x.narrow(0, 0, 8)}, 0).transpose().contiguous().transpose();
      if (i % 4 == t) x(0) = sum(y, {0});
      if (i % 8 == 0) {
        EXPECT_GE(max(abs(x)).item<float>(), 0.0F);
      }
    }
    return x.contiguous().to_bytes();
  });
}

/// Each writes its rows; meanwhile all read the whole, whose values at that moment nobody knows.
TEST_F(Pushers, RowsOfOneArray) {
  const NDArray all = zeros({2 * kPushers, 32});
  at_once([&](int t) {
    for (int i = 0; i < kSteps; ++i) {
      for (const int row : {t, t + kPushers}) {
        NDArray mine = all(row);
        mine += row + 1;
      }
      if (i % 4 == 0) {
        EXPECT_GE(sum(all).item<float>(), 0.0F);
      }
    }
  });
  const std::vector<float> values = all.to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], static_cast<float>(kSteps) * static_cast<float>(i / 32 + 1)) << i;
}

/// Values that a gradient holds, written in place meanwhile; and a weight to whose gradient all add. All are small
/// integers, so that the order of the sums does not matter.
TEST_F(Pushers, GradientsOfHeldValuesAndOfASharedWeight) {
  const NDArray weight = full({8}, 2.0).with_grad();
  at_once([&](int t) {
    const NDArray x = full({8}, t + 1.0).with_grad();
    for (int i = 0; i < kSteps; ++i) {
      NDArray y = x * x;
      const NDArray loss = sum(y * y * weight);
      y.fill(-1);
      loss.backward();
    }
    EXPECT_EQ(x.grad().to_vector<float>(),
              std::vector<float>(8, static_cast<float>(kSteps * 8 * (t + 1) * (t + 1) * (t + 1))));
  });
  int sum_of_powers = 0;
  for (int t = 1; t <= kPushers; ++t) sum_of_powers += t * t * t * t;
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(8, static_cast<float>(kSteps * sum_of_powers)));
}

/// Each holds the value that an array has for its gradient, and then writes to the array, which goes to a new version
/// under the others' eyes. Each gradient is one of the values that the array has had.
TEST_F(Pushers, NewVersionsOfAnArrayWhoseValuesAreHeld) {
  const NDArray all = zeros({8});
  at_once([&](int) {
    for (int i = 0; i < kSteps; ++i) {
      const NDArray weight = full({8}, 1.0).with_grad();
      const NDArray loss = sum(weight * all);
      NDArray mine = all;
      mine += 1;
      loss.backward();
      const std::vector<float> grad = weight.grad().to_vector<float>();
      EXPECT_EQ(grad, std::vector<float>(8, grad[0]));
      EXPECT_EQ(8 * grad[0], loss.item<float>());
      EXPECT_GE(grad[0], static_cast<float>(i));
    }
  });
  EXPECT_EQ(all.to_vector<float>(), std::vector<float>(8, static_cast<float>(kPushers * kSteps)));
}

/// Some overwrite an array with values of others, and some hold what it is meanwhile: always a whole value.
TEST_F(Pushers, OverwritesOfAnArrayWhoseValuesAreHeld) {
  const NDArray all = zeros({8});
  at_once([&](int t) {
    const NDArray mine = full({8}, t);
    for (int i = 0; i < 50 * kSteps; ++i) {
      if (t % 2 == 0) {
        all.assign(mine);
        continue;
      }
      const NDArray kept = all.detach();
      if (i % 50 == 0) {
        const std::vector<float> value = kept.to_vector<float>();
        EXPECT_EQ(value, std::vector<float>(8, value[0]));
      }
    }
  });
  const std::vector<float> value = all.to_vector<float>();
  EXPECT_EQ(value, std::vector<float>(8, value[0]));
}

/// Recorded writes to one array, each of which gives it another history, while others ask for that.
TEST_F(Pushers, AnArrayWhoseHistoryGrows) {
  const NDArray weight = full({4}, 1.0).with_grad();
  NDArray all = zeros({4}) * weight;
  at_once([&](int t) {
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_TRUE(all.requires_grad());
      if (t % 2 == 0) {
        NDArray mine = all;
        mine += weight;
      } else {
        EXPECT_TRUE((all * 2).requires_grad());
      }
    }
  });
  sum(all).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(4, static_cast<float>(kPushers / 2 * kSteps)));
}

/// Adam, on small networks.
TEST_F(Pushers, TrainingOfOwnNetworks) {
  expect_the_same_alone([](int t) {
    RandomStream random(static_cast<std::uint64_t>(t) + 10);
    const nn::Sequential net{nn::Linear{12, 16}, relu, nn::Dropout{0.25}, nn::Linear{16, 4}};
    nn::initialise(net, static_cast<std::uint64_t>(t));
    nn::Optimizer adam(net, nn::Adam{.lr = 0.01});
    const NDArray x = normal({8, 12}, random);
    const NDArray labels = from(std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 2, 3}, {8});
    Bytes bytes;
    for (int i = 0; i < kSteps / 2; ++i) {
      const nn::Training on(random);
      cross_entropy(net(x), labels).backward();
      adam.step();
    }
    for (const nn::Named& p : nn::parameters(net)) {
      const Bytes one = p.state->value.to_bytes();
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    return bytes;
  });
}

TEST_F(Pushers, PipelinesBesideEachOther) {
  const auto schedules = {parallel::gpipe, parallel::one_f_one_b, parallel::zb_h1, parallel::zb_h2};
  expect_the_same_alone([&](int t) {
    RandomStream random(static_cast<std::uint64_t>(t) + 20);
    const nn::Sequential net{nn::Linear{8, 8}, relu, nn::Linear{8, 8}, relu};
    nn::initialise(net, static_cast<std::uint64_t>(t));
    const NDArray x = normal({8, 8}, random);
    const NDArray labels = from(std::vector<std::int64_t>{7, 6, 5, 4, 3, 2, 1, 0}, {8});
    parallel::Pipeline pipeline(net, x.spec(), {.devices = {test::device(0), test::device(1)}, .cut = {0, 2}});
    for (int i = 0; i < kSteps / 4; ++i)
      pipeline.step(x, labels, {.microbatches = 4, .schedule = std::data(schedules)[t]});
    Bytes bytes;
    for (const nn::Named& p : nn::parameters(net)) {
      const Bytes one = p.state->value.grad().to_bytes();
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    return bytes;
  });
}

/// What fails in one thread's arrays poisons those, and they heal by an overwrite; the others never see it.
TEST_F(Pushers, ErrorsStayWithTheirArrays) {
  at_once([&](int t) {
    NDArray x = full({16}, 1.0);
    for (int i = 0; i < kSteps; ++i) {
      if (t % 2 == 0) {
        engine.engine().push([] { throw std::runtime_error("planted"); }, {write(x)});
        EXPECT_THROW((x * 2).wait(), Error);
        x.fill(1);
      }
      x = x * 1.0 + 0.0;
      EXPECT_EQ(sum(x).item<float>(), 16.0F);
    }
  });
  engine.engine().clear_errors();
}

}  // namespace
}  // namespace sluice
