// Statistics over axes, made of other operators, which give them their gradients. Axes are as in reduction.h. All need
// a floating dtype, which the result has too; f16 and bf16 are computed in f32. Each throws ArrayError for other dtypes
// and for axes that x does not have.
#pragma once

#include <initializer_list>
#include <vector>

#include "sluice/operators/registry.h"

namespace sluice {

struct VarianceOptions {
  double correction = 1;  ///< the squares are summed and divided by n - correction; 0 is the variance of a population
  bool keep = false;      ///< the axes stay, with size 1; else they are dropped
};
/// The variance, and its root, of what is left of x after its mean is taken away twice, because the first mean is
/// rounded to x's dtype: exact to f32's roundings also where x lies far from 0. NaN where n - correction is not above
/// 0. Of equal elements stddev is 0, and so is its gradient.
NDArray variance(const Operand& x, const Axes& axes = all, const VarianceOptions& options = {});
NDArray stddev(const Operand& x, const Axes& axes = all, const VarianceOptions& options = {});

struct NormOptions {
  double ord = 2;  ///< above 0; infinity: the largest magnitude
  bool keep = false;
};
/// sum(|x|^ord)^(1/ord) of the elements over the axes: norm(x, -1, {.ord = 1}). The gradient at 0 is 0.
NDArray norm(const Operand& x, const Axes& axes = all, const NormOptions& options = {});

struct QuantileOptions {
  bool keep = false;
};
/// The value below which the part q, in [0, 1], of the elements lies: between two elements, by a line between them. NaN
/// if any is NaN. Throws ArrayError over no elements.
NDArray quantile(const Operand& x, double q, const Axes& axes = all, const QuantileOptions& options = {});
/// Several at once, from one sort: the result has a first axis of their number, also if that is 1. quantile(x, {0.25,
/// 0.75}, 1) of x (n, m) is (2, n). Throws ArrayError for none.
NDArray quantile(const Operand& x, std::initializer_list<double> q, const Axes& axes = all,
                 const QuantileOptions& options = {});
NDArray quantile(const Operand& x, const std::vector<double>& q, const Axes& axes = all,
                 const QuantileOptions& options = {});
/// quantile(x, 0.5): of an even number of elements the mean of the two in the middle.
NDArray median(const Operand& x, const Axes& axes = all, const QuantileOptions& options = {});

}  // namespace sluice
