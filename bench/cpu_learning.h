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
    for (int i = 0; i < 2; ++i) real_.push_back(tanh(normal({kBatch, 784}, random_)));
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
    return mean(critic_(fake)) - mean(critic_(real)) + 10 * penalty;
  }

  RandomStream random_{7};
  Generator generator_, average_;
  Critic critic_;
  nn::Optimizer of_generator_{generator_, rule()}, of_critic_{critic_, rule()};
  std::vector<NDArray> real_;

  static nn::Adam rule() { return {.lr = 1e-4, .beta1 = 0.5, .beta2 = 0.9}; }
};

/// The pole's and the cart's state, (n, 4): place, speed, angle, and its speed. After Barto, Sutton and Anderson,
/// Neuronlike adaptive elements that can solve difficult learning control problems (1983), in steps of 0.02 s.
inline NDArray moved(const NDArray& state, const NDArray& force) {
  constexpr double kGravity = 9.8, kPole = 0.1, kMass = 1.1, kHalf = 0.5, kTime = 0.02;
  const auto part = [&](std::int64_t i) { return state.narrow(1, i, i + 1); };
  const NDArray x = part(0), speed = part(1), angle = part(2), turn = part(3);
  const NDArray sine = sin(angle), cosine = cos(angle);
  const NDArray push = (force + kPole * kHalf * square(turn) * sine) / kMass;
  const NDArray turned = (kGravity * sine - cosine * push) / (kHalf * (4.0 / 3 - kPole / kMass * square(cosine)));
  const NDArray sped = push - kPole * kHalf / kMass * turned * cosine;
  return concat({x + kTime * speed, speed + kTime * sped, angle + kTime * turn, turn + kTime * turned}, 1);
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
    const NDArray seen = concat(states_), chosen = concat(actions_), returns = concat(returns_);
    const NDArray y = policy_(seen), value = y.narrow(1, 2, 3), missed = returns - value;
    NDArray advantage = missed.detach();
    advantage = advantage - mean(advantage);
    advantage = advantage / (sqrt(mean(square(advantage))) + 1e-8);
    const NDArray chances = gather(log_softmax(y.narrow(1, 0, 2)), 1, chosen);
    (0.5 * mean(square(missed)) - mean(chances * advantage)).backward();
    nn::clip_gradients(policy_, 0.5);
    optimizer_.step();
  }
  /// The part of the last step's moves that did not let a pole fall.
  double upright() const { return mean(concat(kept_)).to(DType::f64).item<double>(); }

 private:
  static constexpr std::int64_t kPoles = 32;
  static constexpr int kMoves = 64;

  NDArray anew() { return uniform({kPoles, 4}, random_, -0.05, 0.05); }
  void play() {
    const NoGrad off;
    for (auto* list : {&states_, &actions_, &kept_}) list->clear();
    for (int t = 0; t < kMoves; ++t) {
      const NDArray action = categorical(policy_(state_).narrow(1, 0, 2), random_).unsqueeze(1);
      const NDArray next = moved(state_, action.to(DType::f32) * 20 - 10);
      const NDArray stands = (abs(next.narrow(1, 0, 1)) <= 2.4) & (abs(next.narrow(1, 2, 3)) <= 0.2095);
      states_.push_back(state_);
      actions_.push_back(action);
      kept_.push_back(stands.to(DType::f32));
      state_ = where(stands, next, anew());
    }
    returns_.assign(kMoves, {});
    NDArray behind = zeros({kPoles, 1});
    for (std::size_t t = kMoves; t-- > 0;) returns_[t] = behind = 1 + 0.98 * kept_[t] * behind;
  }

  RandomStream random_{7};
  Policy policy_;
  nn::Optimizer optimizer_{policy_, nn::Adam{.lr = 3e-3}};
  NDArray state_ = anew();
  std::vector<NDArray> states_, actions_, kept_, returns_;
};

}  // namespace sluice::bench
