// mixup: training on mixtures of samples (Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: beyond empirical risk
// minimization", ICLR 2018).
#pragma once

#include <source_location>

#include "sluice/ndarray/nd_array.h"
#include "sluice/resources/random.h"

namespace sluice::nn {

struct Mixed {
  NDArray x, y;
  double lambda = 1;
};

/// lambda x + (1 - lambda) x[p] and lambda y + (1 - lambda) y[p], with one lambda from Beta(alpha, alpha) and one
/// permutation p of the rows for the batch, both from the next draws of `stream` (two of them). x (n, ...) and y (n,
/// ...) are f16, bf16, f32 or f64; labels become y by one_hot(labels, classes). On the arrays' device, pushed and not
/// waited for; gradients go through. Throws ArrayError for other dtypes and different lengths, and for an alpha that is
/// not above 0 and finite.
Mixed mixup(const NDArray& x, const NDArray& y, RandomStream& stream, double alpha = 0.2,
            std::source_location where = std::source_location::current());

/// A draw from Beta(alpha, alpha), alpha > 0, by two gamma variates (Marsaglia and Tsang, "A simple method for
/// generating gamma variables", 2000), in logarithms, so that a small alpha gives 0 or 1 and never a NaN.
double beta_draw(const RandomKey& key, double alpha);

}  // namespace sluice::nn
