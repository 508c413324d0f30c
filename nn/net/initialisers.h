// What parameters begin as. The names are those of the literature; each returns an Init for Parameter and for the rules
// of nn::initialise. fan_in is the number of inputs of one output: the product of all sizes but the first, which counts
// outputs; fan_out is the first size times the product of those from the third on (a convolution's kernel).
#pragma once

#include <cstdint>
#include <source_location>

#include "sluice/nn/net/parameter.h"

namespace sluice::nn {

Init constant(double value);
/// Normal with this standard deviation. Throws UsageError for a negative one.
Init normal(double deviation, double mean = 0);
/// Uniform in [low, high).
Init uniform(double low, double high);
/// Normal, drawn again (in effect) where it is more than `cut` deviations from 0.
Init truncated_normal(double deviation, double cut = 2);
/// Uniform in [-b, b], b = 1 / sqrt(fan_in): what PyTorch's layers begin with. `n` is the fan_in of a parameter whose
/// shape does not tell it, such as a bias; 0: from the shape. Throws ArrayError for a negative one.
Init fan_in(std::int64_t n = 0, std::source_location where = std::source_location::current());
/// The same with the fan_in of `weight`: for the bias beside it.
Init fan_in(const Slot& weight);
/// Normal with deviation sqrt(2 / fan_in), for relu (He et al., Delving deep into rectifiers, 2015).
Init kaiming();
/// Uniform in [-b, b], b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, Understanding the difficulty of
/// training deep feedforward neural networks, 2010).
Init xavier(double gain = 1);
/// A matrix (the first axis by all others) with orthonormal rows or columns, whichever are fewer, times `gain` (Saxe et
/// al., Exact solutions to the nonlinear dynamics of learning in deep linear networks, 2013). It draws the whole matrix
/// and needs two axes.
Init orthogonal(double gain = 1);

namespace detail {
/// a b, or the nearest number that there is: for sizes, none of which is so large.
std::int64_t times(std::int64_t a, std::int64_t b);
}  // namespace detail

}  // namespace sluice::nn
