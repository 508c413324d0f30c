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

/// You et al., Large batch optimization for deep learning, 2019: Adam's direction with decoupled decay, scaled for each
/// parameter by the trust ratio:
///
///   r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
///   w = w - lr |w| / |r| r, and by a ratio of 1 where |w| or |r| is 0
///
/// As timm's Lamb, but that without `adapt` for parameters without decay (say so by a group), and behind its clipping
/// by the norm of all gradients (nn::clip_gradients). On a mesh that cuts the parameter, ZeRO's too, the norms are sums
/// of the shards' sums: values agree to rounding with those of one device, and a step sends two numbers a parameter.
struct Lamb {
  Schedule lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  double weight_decay = 0.01;
  bool adapt = true;  ///< false: a ratio of 1, as for biases and norms
  void operator()(Update& u) const;
};

/// Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost, 2018. Of a matrix it keeps the
/// means of g^2 over rows and over columns alone; of a higher rank such means over each of the last two axes; of
/// vectors and scalars an average for each element. In step t, counted from 1 for each parameter:
///
///   b = 1 - t^beta2_decay
///   s = b s + (1 - b) g^2, of a matrix s = R C / max(mean(R), eps1) from the means R of rows and C of columns
///   d = g / sqrt(max(s, eps1^2))
///   d = d / max(1, RMS(d) / clip)
///   w = (1 - lr weight_decay) w - min(lr, 1 / sqrt(t)) max(eps2, RMS(w)) d
///
/// This is torch.optim.Adafactor, also where the paper differs: there eps1 (1e-30) is added to g^2, and nothing bounds
/// mean(R). As in PyTorch eps1 is the machine epsilon where it is not said, but of the dtype computed in, f32 for f16
/// and bf16, whose R and C are kept in f32 too. With beta1, which PyTorch lacks, w changes by the average of steps:
/// m = beta1 m + (1 - beta1) min(lr, 1 / sqrt(t)) max(eps2, RMS(w)) d. Where a mesh cuts the parameter, also by ZeRO,
/// values agree to rounding with those of one device; R and C are whole at each place, and a step sends them and three
/// numbers for each parameter.
struct Adafactor {
  Schedule lr = 1e-2;
  double beta2_decay = -0.8;
  std::optional<double> eps1{};  ///< machine epsilon where it is not said
  double eps2 = 1e-3;            ///< the least RMS(w) that counts
  double clip = 1;               ///< the largest RMS(d)
  double beta1 = 0;              ///< 0: no first moment is kept
  double weight_decay = 0;
  bool relative_step = true;    ///< false: lr in place of min(lr, 1 / sqrt(t))
  bool scale_parameter = true;  ///< false: 1 in place of max(eps2, RMS(w))
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
