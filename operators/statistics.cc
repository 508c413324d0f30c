// Functions of statistics. They have no rows of their own.
#include "sluice/operators/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/rows.h"
#include "sluice/operators/shaping.h"
#include "sluice/operators/sorting.h"

namespace sluice {
namespace {

/// x, and f16 and bf16 as f32. Throws for dtypes that are not floating.
NDArray wide(const char* name, const Operand& x) {
  const DType dtype = x.array.checked(name, x.where).dtype();
  if (!is_floating(dtype)) {
    throw ArrayError(name, x.where, "needs a floating dtype, not " + std::string(name_of(dtype)));
  }
  return x.array.to(*info_of(dtype).compute, x.where);
}
NDArray narrowed(const NDArray& y, const Operand& x) { return y.to(x.array.dtype(), x.where); }

/// The square root, with a gradient of 0 at 0: what is below the root has none there either.
NDArray root(const NDArray& y, const std::source_location& at) {
  if (!y.requires_grad(at)) return sqrt({y, at});
  const NDArray zero = equal({y, at}, ScalarOperand(0, at));
  return where({zero, at}, y, sqrt({where({zero, at}, ones_like({y, at}), y), at}));
}

NDArray variance_of(const char* name, const Operand& x, const Axes& axes, const VarianceOptions& options) {
  const std::source_location& at = x.where;
  const NDArray from = wide(name, x);
  const std::uint32_t bits = rows::axis_bits(name, x, axes);
  double n = 1;
  for (int i = 0; i < from.rank(); ++i) n *= (bits >> i & 1U) != 0 ? static_cast<double>(from.shape()[i]) : 1.0;
  const double divisor = n - options.correction;
  const double factor = divisor > 0 ? 1 / divisor : std::numeric_limits<double>::quiet_NaN();
  const NDArray off = sub({from, at}, mean({from, at}, axes, {.keep = true}));
  return mul({sum({square({off, at}), at}, axes, {.keep = options.keep}), at}, ScalarOperand(factor, at));
}

}  // namespace

NDArray variance(const Operand& x, const Axes& axes, const VarianceOptions& options) {
  return narrowed(variance_of("variance", x, axes, options), x);
}
NDArray stddev(const Operand& x, const Axes& axes, const VarianceOptions& options) {
  return narrowed(root(variance_of("stddev", x, axes, options), x.where), x);
}

NDArray norm(const Operand& x, const Axes& axes, const NormOptions& options) {
  const builtin::Composition made("norm", x);
  const std::source_location& at = x.where;
  const NDArray from = wide("norm", x);
  const ReduceOptions keep{options.keep};
  const double ord = options.ord;
  if (!(ord > 0)) throw ArrayError("norm", at, "ord is " + Scalar(ord).text() + ", which is not above 0");
  if (ord == 2) return narrowed(root(sum({square({from, at}), at}, axes, keep), at), x);
  const NDArray magnitudes = abs({from, at});
  if (ord == 1) return narrowed(sum({magnitudes, at}, axes, keep), x);
  if (std::isinf(ord)) return narrowed(max({magnitudes, at}, axes, keep), x);
  // Where the base is 0 the gradients of the powers are none, and 0 is meant.
  const auto power = [&](const NDArray& base, double exponent) {
    if (!base.requires_grad(at)) return pow({base, at}, ScalarOperand(exponent, at));
    const NDArray zero = equal({base, at}, ScalarOperand(0, at));
    const NDArray safe = where({zero, at}, ones_like({base, at}), base);
    return where({zero, at}, zeros_like({base, at}), pow({safe, at}, ScalarOperand(exponent, at)));
  };
  return narrowed(power(sum({power(magnitudes, ord), at}, axes, keep), 1 / ord), x);
}

namespace {

/// Of each q, in the reduced shape.
std::vector<NDArray> quantiles_of(const char* name, const Operand& x, std::span<const double> list, const Axes& axes,
                                  bool keep) {
  const std::source_location& at = x.where;
  const NDArray from = wide(name, x);
  if (list.empty()) throw ArrayError(name, at, "q is empty");
  for (const double q : list) {
    if (!(q >= 0 && q <= 1)) throw ArrayError(name, at, "q is " + Scalar(q).text() + ", which is not in [0, 1]");
  }
  const std::uint32_t bits = rows::axis_bits(name, x, axes);
  Dims order, groups;
  std::int64_t n = 1;
  for (const bool reduced : {false, true}) {
    for (int i = 0; i < from.rank(); ++i) {
      if ((bits >> i & 1U) != (reduced ? 1U : 0U)) continue;
      order.push_back(i);
      if (reduced) {
        n *= from.shape()[i];
      } else {
        groups.push_back(from.shape()[i]);
      }
    }
  }
  if (n == 0) throw ArrayError(name, at, to_string(from.shape()) + ": nothing to choose from");
  const NDArray lines = from.permute(order, at).reshape({groups.count(), n}, at);
  const NDArray sorted = sort({lines, at});
  const NDArray last = sorted.narrow(1, n - 1, n, at);  // NaN if any is
  const Dims shape = rows::reduced_shape(from.shape(), bits, keep);
  std::vector<NDArray> results;
  for (const double q : list) {
    const double position = q * static_cast<double>(n - 1);
    const auto below = std::min(static_cast<std::int64_t>(std::floor(position)), n - 1);
    const double part = position - static_cast<double>(below);
    NDArray y = sorted.narrow(1, below, below + 1, at);
    if (part > 0) {
      const NDArray step = sub({sorted.narrow(1, below + 1, below + 2, at), at}, y);
      y = add({y, at}, mul({step, at}, ScalarOperand(part, at)));
    }
    y = where({equal({last, at}, last), at}, y, last);
    results.push_back(narrowed(y.reshape(shape, at), x));
  }
  return results;
}

}  // namespace

NDArray quantile(const Operand& x, double q, const Axes& axes, const QuantileOptions& options) {
  const builtin::Composition made("quantile", x);
  return quantiles_of("quantile", x, {&q, 1}, axes, options.keep).front();
}
NDArray quantile(const Operand& x, const std::vector<double>& q, const Axes& axes, const QuantileOptions& options) {
  const builtin::Composition made("quantile", x);
  return stack(quantiles_of("quantile", x, q, axes, options.keep), 0, x.where);
}
NDArray quantile(const Operand& x, std::initializer_list<double> q, const Axes& axes, const QuantileOptions& options) {
  return quantile(x, std::vector<double>(q), axes, options);
}
NDArray median(const Operand& x, const Axes& axes, const QuantileOptions& options) {
  const builtin::Composition made("median", x);
  const double half = 0.5;
  return quantiles_of("median", x, {&half, 1}, axes, options.keep).front();
}

}  // namespace sluice
