// Two programs of bench/cpu_nets.cc that are more than a net and a loss: WGAN-GP (Gulrajani et al., Improved training
// of Wasserstein GANs, 2017), whose penalty is a gradient of a gradient, and REINFORCE with a baseline (Williams, 1992)
// on cart-poles that are arrays. peers/ has the same of PyTorch and JAX.
#pragma once

#include <vector>

#include "sluice/sluice.h"

namespace sluice::bench {

struct Generator {
  nn::Linear a{64, 256}, b{256, 256}, c{256, 784};
  NDArray operator()(const NDArray& z) const { return tanh(c(relu(b(relu(a(z)))))); }
};
struct Critic {
  nn::Linear a{784, 256}, b{256, 256}, c{256, 1};
  NDArray operator()(const NDArray& x) const { return c(leaky_relu(b(leaky_relu(a(x), 0.2)), 0.2)); }
};

/// A step: five of the critic, each of two batches of 64 whose gradients are added, one of the generator, and a moving
/// average of the generator.
class Gan {
 public:
  Gan() {
    nn::initialise(generator_, 1);
    nn::initialise(average_, 1);
    nn::initialise(critic_, 2);
    for (int i = 0; i < 2; ++i) real_.push_back(normal({kBatch, 784}, random_));
  }
  void step() {
    for (int i = 0; i < 5; ++i) {
      for (const NDArray& real : real_) (0.5 * critic_loss(real)).backward();
      of_critic_.step();
    }
    nn::freeze(critic_, "*");
    (-mean(critic_(generator_(noise())))).backward();
    nn::freeze(critic_, "*", false);
    of_generator_.step();
    nn::blend(average_, generator_, 0.01);
  }

 private:
  static constexpr std::int64_t kBatch = 64;

  NDArray noise() { return normal({kBatch, 64}, random_); }
  NDArray critic_loss(const NDArray& real) {
    const NDArray fake = [&] {
      const NoGrad off;
      return generator_(noise());
    }();
    const NDArray part = uniform({kBatch, 1}, random_), between = (fake + part * (real - fake)).with_grad();
    const NDArray slope = grad(sum(critic_(between)), {between}, {.create_graph = true})[0];
    const NDArray penalty = mean(square(sqrt(sum(square(slope), {1})) - 1));
    const NDArray scores = critic_(concat({fake, real}));
    return mean(scores.narrow(0, 0, kBatch)) - mean(scores.narrow(0, kBatch, 2 * kBatch)) + 10 * penalty;
  }

  RandomStream random_{7};
  Generator generator_, average_;
  Critic critic_;
  nn::Optimizer of_generator_{generator_, rule()}, of_critic_{critic_, rule()};
  std::vector<NDArray> real_;

  static nn::Adam rule() { return {.lr = 1e-4, .beta1 = 0.5, .beta2 = 0.9}; }
};

/// The cart's and the pole's state, (n, 4): place, speed, angle, and its speed, after 0.02 s of a force, (n, 1). After
/// Barto, Sutton and Anderson, Neuronlike adaptive elements that can solve difficult learning control problems (1983).
inline NDArray moved(const NDArray& state, const NDArray& force) {
  constexpr double kGravity = 9.8, kPole = 0.1, kMass = 1.1, kHalf = 0.5, kTime = 0.02;
  const NDArray speed = state.narrow(1, 1, 2), angle = state.narrow(1, 2, 3), turn = state.narrow(1, 3, 4);
  const NDArray sine = sin(angle), cosine = cos(angle);
  const NDArray push = (force + kPole * kHalf * square(turn) * sine) / kMass;
  const NDArray turned = (kGravity * sine - cosine * push) / (kHalf * 4 / 3 - kHalf * kPole / kMass * square(cosine));
  const NDArray sped = push - kPole * kHalf / kMass * turned * cosine;
  return state + kTime * concat({speed, sped, turn, turned}, 1);
}

/// Two logits, for a push to the left and to the right, and what the rewards from here on are taken to be.
struct Policy {
  nn::Linear a{4, 64}, b{64, 64}, c{64, 3};
  NDArray operator()(const NDArray& state) const { return c(tanh(b(tanh(a(state))))); }
};

/// A step: 64 moves of 32 poles, each with the reward 1; one that falls is set up again. Then one update.
class Reinforce {
 public:
  Reinforce() { nn::initialise(policy_, 1); }
  void step() {
    play();
    const NDArray y = policy_(concat(states_)), missed = concat(returns_) - y.narrow(1, 2, 3);
    NDArray advantage = missed.detach();
    advantage = advantage - mean(advantage);
    advantage = advantage / (sqrt(mean(square(advantage))) + 1e-8);
    // Of two logits, log_softmax of one is -softplus of the other's lead.
    const NDArray surprise = softplus(lead(y) * concat(signs_));
    (0.5 * mean(square(missed)) + mean(surprise * advantage)).backward();
    nn::clip_gradients(policy_, 0.5);
    optimizer_.step();
  }
  /// The part of the last step's moves that did not let a pole fall.
  double upright() const { return mean(concat(kept_)).to(DType::f64).item<double>(); }

 private:
  static constexpr std::int64_t kPoles = 32;
  static constexpr int kMoves = 64;

  static NDArray lead(const NDArray& y) { return y.narrow(1, 1, 2) - y.narrow(1, 0, 1); }
  void play() {
    const NoGrad off;
    for (auto* list : {&states_, &signs_, &kept_}) list->clear();
    const NDArray drawn = uniform({kMoves, kPoles, 1}, random_),
                  anew = uniform({kMoves, kPoles, 4}, random_, -0.05, 0.05);
    for (int t = 0; t < kMoves; ++t) {
      const NDArray right = (drawn(t) < sigmoid(lead(policy_(state_)))).to(DType::f32), sign = 1 - 2 * right;
      const NDArray next = moved(state_, -10 * sign);
      const NDArray stands = (abs(next.narrow(1, 0, 1)) <= 2.4) & (abs(next.narrow(1, 2, 3)) <= 0.2095);
      states_.push_back(state_);
      signs_.push_back(sign);
      kept_.push_back(stands.to(DType::f32));
      state_ = where(stands, next, anew(t));
    }
    returns_.assign(kMoves, {});
    NDArray behind = zeros({kPoles, 1});
    for (std::size_t t = kMoves; t-- > 0;) returns_[t] = behind = 1 + 0.98 * kept_[t] * behind;
  }

  RandomStream random_{7};
  Policy policy_;
  nn::Optimizer optimizer_{policy_, nn::Adam{.lr = 3e-3}};
  NDArray state_ = uniform({kPoles, 4}, random_, -0.05, 0.05);
  std::vector<NDArray> states_, signs_, kept_, returns_;
};

}  // namespace sluice::bench
