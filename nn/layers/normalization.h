// Normalisations and Dropout.
#pragma once

#include <optional>
#include <source_location>

#include "sluice/nn/net/initialisers.h"
#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

/// Over the last axis, of `width` elements.
struct LayerNorm {
  Size width;
  double eps = 1e-5;
  std::source_location where = std::source_location::current();
  Parameter weight{{width}, constant(1), where}, bias{{width}, constant(0), where};
  NDArray operator()(const NDArray& x) const;
};

/// x / sqrt(mean(x^2) + eps) over the last axis, times weight.
struct RmsNorm {
  Size width;
  double eps = 1e-6;
  std::source_location where = std::source_location::current();
  Parameter weight{{width}, constant(1), where};
  NDArray operator()(const NDArray& x) const;
};

/// Each group of channels of (n, channels, ...) for each n.
struct GroupNorm {
  Size groups, channels;
  double eps = 1e-5;
  std::source_location where = std::source_location::current();
  Parameter weight{{channels}, constant(1), where}, bias{{channels}, constant(0), where};
  NDArray operator()(const NDArray& x) const;
};

/// Each channel of (n, channels, ...). In training by the batch's mean and variance, and the running ones follow, by
/// the part `momentum`; in evaluation, and once one of these is frozen, by the running ones. Where neither nn::Training
/// nor nn::Evaluation is said it throws (mode.h).
struct BatchNorm {
  Size channels;
  double momentum = 0.1, eps = 1e-5;
  std::source_location where = std::source_location::current();
  Parameter weight{{channels}, constant(1), where}, bias{{channels}, constant(0), where};
  Statistic running_mean{{channels}, constant(0), where}, running_var{{channels}, constant(1), where};
  NDArray operator()(const NDArray& x) const;
};

/// In training, zeros in the place of each element with probability p, and the others divided by 1 - p; else x itself.
/// Masks are keyed by the layer's place in the net (mode.h). Where neither mode is said it throws. Throws ArrayError
/// for p outside of [0, 1].
struct Dropout {
  double p = 0.5;
  std::source_location where = std::source_location::current();
  Place place{};
  NDArray operator()(const NDArray& x) const;
};

}  // namespace sluice::nn
