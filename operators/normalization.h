// Normalisation. f16 and bf16 are normalised in f32, and the result is rounded once. Sums are in double, and a mean
// keeps what it lost when it was rounded, so rows far from 0 lose nothing. All have gradients and gradients of
// gradients on every device. Throws ArrayError where shapes or dtypes do not fit.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

struct LayerNormOptions {
  int axes = 1;       ///< how many of the last axes are normalised together; at least 1
  double eps = 1e-5;  ///< added to the variance
};
/// (x - mean) / sqrt(variance + eps) over the last axes, then times weight and plus bias, which have the shape of these
/// axes or are empty handles. The variance is that of the elements (divided by their number).
NDArray layer_norm(const Operand& x, const NDArray& weight = {}, const NDArray& bias = {},
                   const LayerNormOptions& options = {});

struct RmsNormOptions {
  int axes = 1;
  double eps = 1e-6;  ///< added to the mean of the squares
};
/// x / sqrt(mean(x^2) + eps) over the last axes, then times weight, which has their shape or is an empty handle.
NDArray rms_norm(const Operand& x, const NDArray& weight = {}, const RmsNormOptions& options = {});

/// Normalises each of `groups` groups of channels of x (n, channels, ...) for each n, over the channels of the group
/// and all further axes. weight and bias are (channels,) or empty handles. One group for each channel is an instance
/// normalisation.
NDArray group_norm(const Operand& x, std::int64_t groups, const NDArray& weight = {}, const NDArray& bias = {},
                   double eps = 1e-5);

/// What a batch normalisation remembers: (channels,), floating, usually f32. They may be empty handles in training.
struct RunningStatistics {
  NDArray mean, variance;
};
struct BatchNormOptions {
  bool training = true;
  double momentum = 0.1;  ///< the part that a batch has in the new running statistics
  double eps = 1e-5;
};
/// Normalises each channel of x (n, channels, ...). In training by the mean and variance of the batch; the running
/// statistics, if there are any, are updated in place, running = (1 - momentum) running + momentum batch, with the
/// variance divided by one less than the number of elements; it throws ArrayError where a channel has fewer than two.
/// Otherwise by the running statistics, which stay as they are. weight and bias are (channels,) or empty handles.
/// Of a batch that is cut over a mesh the statistics are those of the whole: all-reduces of one number and of two for
/// each channel, and as many in backward.
NDArray batch_norm(const Operand& x, const RunningStatistics& running, const NDArray& weight = {},
                   const NDArray& bias = {}, const BatchNormOptions& options = {});

}  // namespace sluice
