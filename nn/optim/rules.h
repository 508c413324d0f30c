// The rules of optimisers. Each is a struct of its numbers; Optimizer drives it. Learning rates are numbers or
// functions of the step (schedule.h). Formulas are those of the papers, and of PyTorch where it has the rule.
#pragma once

#include <cstdint>
#include <optional>

#include "sluice/nn/optim/optimizer.h"
#include "sluice/nn/optim/schedule.h"
#include "sluice/nn/optim/update.h"

namespace sluice::nn {

/// d = g + weight_decay w; v = momentum v + d; w = w - lr v, or with nesterov w = w - lr (d + momentum v).
struct Sgd {
  Schedule lr = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  void operator()(Update& u) const;
  std::optional<FusedStep> fused(std::int64_t step) const;
};

/// Kingma and Ba, Adam: a method for stochastic optimization, 2014. weight_decay is added to the gradient.
struct Adam {
  Schedule lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  void operator()(Update& u) const;
  std::optional<FusedStep> fused(std::int64_t step) const;
};

/// Loshchilov and Hutter, Decoupled weight decay regularization, 2017: w = (1 - lr weight_decay) w, then Adam's step.
struct AdamW {
  Schedule lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  void operator()(Update& u) const;
  std::optional<FusedStep> fused(std::int64_t step) const;
};

/// s = alpha s + (1 - alpha) g^2; w = w - lr g / (sqrt(s) + eps), by a momentum where it is not 0 (Hinton, lecture 6e).
struct RmsProp {
  Schedule lr = 0.01;
  double alpha = 0.99, eps = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
  void operator()(Update& u) const;
};

/// s = s + g^2; w = w - lr g / (sqrt(s) + eps) (Duchi, Hazan and Singer, 2011).
struct Adagrad {
  Schedule lr = 0.01;
  double eps = 1e-10;
  double weight_decay = 0;
  void operator()(Update& u) const;
};

/// Chen et al., Symbolic discovery of optimization algorithms, 2023.
struct Lion {
  Schedule lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
  void operator()(Update& u) const;
};

/// Jordan et al., Muon, 2024: the momentum's nearest orthogonal matrix, by five steps of a Newton-Schulz iteration,
/// times lr sqrt(max(1, rows / columns)). For matrices; throws ArrayError for a parameter of another rank than 2.
/// Computed in f32, or f64 for f64.
struct Muon {
  Schedule lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  int iterations = 5;
  double eps = 1e-7;
  void operator()(Update& u) const;
};

}  // namespace sluice::nn
