// Functions of statistics. They have no rows of their own.
#include "sluice/operators/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/in_range.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/rows.h"
#include "sluice/operators/shaping.h"
#include "sluice/operators/sorting.h"

namespace sluice {
namespace {

/// x, and f16 and bf16 as f32; or all as f64. Throws for dtypes that are not floating.
NDArray wide(const char* name, const Operand& x, bool as_f64 = false) {
  const DType dtype = x.array.checked(name, x.where).dtype();
  if (!is_floating(dtype)) {
    throw ArrayError(name, x.where, "needs a floating dtype, not " + std::string(name_of(dtype)));
  }
  return x.array.to(as_f64 ? DType::f64 : *info_of(dtype).compute, x.where);
}
NDArray narrowed(const NDArray& y, const Operand& x) { return y.to(x.array.dtype(), x.where); }

/// The square root, with a gradient of 0 at 0: what is below the root has none there either.
NDArray root(const NDArray& y, const std::source_location& at) {
  if (!y.requires_grad(at)) return sqrt({y, at});
  const NDArray zero = equal({y, at}, ScalarOperand(0, at));
  return where({zero, at}, y, sqrt({where({zero, at}, ones_like({y, at}), y), at}));
}

/// What x, which is f64, is divided by so that no power of it is out of range: its largest magnitude along the axes, a
/// constant to gradients. An empty handle where x was another dtype, whose squares f64 has.
NDArray scale_of(const NDArray& x, DType was, const Axes& axes, const std::source_location& at) {
  if (was != DType::f64 || x.count() == 0) return {};
  const ScopeGuard scope;
  current_scope().flags |= kNoGradFlag;
  const NDArray most = max({abs({x, at}), at}, axes, {.keep = true});
  const NDArray has_one = bitwise_and({isfinite({most, at}), at}, not_equal({most, at}, ScalarOperand(0, at)));
  return where({has_one, at}, most, ones_like({most, at}));
}
NDArray scaled(const NDArray& x, const NDArray& scale, const std::source_location& at) {
  return scale.defined() ? div({x, at}, scale) : x;
}
/// y, which has the reduced axes with size 1, times the scale, and without these axes where they are not kept.
NDArray unscaled(const NDArray& y, const NDArray& scale, const Dims& shape, const std::source_location& at) {
  return (scale.defined() ? mul({y, at}, scale) : y).reshape(shape, at);
}

/// The deviations from the mean, and the number by which the sum of their squares is multiplied.
std::pair<NDArray, double> deviations(const NDArray& from, const Operand& x, const Axes& axes, std::uint32_t bits,
                                      const VarianceOptions& options) {
  const std::source_location& at = x.where;
  double n = 1;
  for (int i = 0; i < from.rank(); ++i) n *= (bits >> i & 1U) != 0 ? static_cast<double>(from.shape()[i]) : 1.0;
  const double divisor = n - options.correction;
  const double factor = divisor > 0 ? 1 / divisor : std::numeric_limits<double>::quiet_NaN();
  return {builtin::less_mean(from, mean({from, at}, axes, {.keep = true}), axes, at), factor};
}

NDArray variance_of(const char* name, const Operand& x, const Axes& axes, const VarianceOptions& options) {
  const std::source_location& at = x.where;
  const NDArray from = wide(name, x);
  const std::uint32_t bits = rows::axis_bits(name, x, axes);
  const auto [off, factor] = deviations(from, x, axes, bits, options);
  return mul({sum({square({off, at}), at}, axes, {.keep = options.keep}), at}, ScalarOperand(factor, at));
}

}  // namespace

NDArray variance(const Operand& x, const Axes& axes, const VarianceOptions& options) {
  const detail::Called called("variance", x.where);
  return narrowed(variance_of("variance", x, axes, options), x);
}
NDArray stddev(const Operand& x, const Axes& axes, const VarianceOptions& options) {
  const detail::Called called("stddev", x.where);
  const std::source_location& at = x.where;
  const NDArray from = wide("stddev", x, true);
  const std::uint32_t bits = rows::axis_bits("stddev", x, axes);
  const auto [off, factor] = deviations(from, x, axes, bits, options);
  const NDArray scale = scale_of(off, x.array.dtype(), axes, at);
  const NDArray squares = sum({square({scaled(off, scale, at), at}), at}, axes, {.keep = true});
  const NDArray y = root(mul({squares, at}, ScalarOperand(factor, at)), at);
  return narrowed(unscaled(y, scale, rows::reduced_shape(from.shape(), bits, options.keep), at), x);
}

NDArray norm(const Operand& x, const Axes& axes, const NormOptions& options) {
  const builtin::Composition made("norm", x);
  const std::source_location& at = x.where;
  const double ord = options.ord;
  if (!(ord > 0)) throw ArrayError("norm", at, "ord is " + Scalar(ord).text() + ", which is not above 0");
  if (ord == 1 || std::isinf(ord)) {
    const NDArray magnitudes = abs({wide("norm", x), at});
    const ReduceOptions keep{options.keep};
    return narrowed(ord == 1 ? sum({magnitudes, at}, axes, keep) : max({magnitudes, at}, axes, keep), x);
  }
  const NDArray all_of_it = wide("norm", x, true);
  const Dims shape = rows::reduced_shape(all_of_it.shape(), rows::axis_bits("norm", x, axes), options.keep);
  const NDArray scale = scale_of(all_of_it, x.array.dtype(), axes, at), from = scaled(all_of_it, scale, at);
  const auto total = [&](const NDArray& powers) { return sum({powers, at}, axes, {.keep = true}); };
  if (ord == 2) return narrowed(unscaled(root(total(square({from, at})), at), scale, shape, at), x);
  // Where the base is 0 the gradients of the powers are none, and 0 is meant.
  const auto power = [&](const NDArray& base, double exponent) {
    if (!base.requires_grad(at)) return pow({base, at}, ScalarOperand(exponent, at));
    const NDArray zero = equal({base, at}, ScalarOperand(0, at));
    const NDArray safe = where({zero, at}, ones_like({base, at}), base);
    return where({zero, at}, zeros_like({base, at}), pow({safe, at}, ScalarOperand(exponent, at)));
  };
  return narrowed(unscaled(power(total(power(abs({from, at}), ord)), 1 / ord), scale, shape, at), x);
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
      // From one to the other, where their difference has a value; else it is infinite, or they are.
      const NDArray above = sorted.narrow(1, below + 1, below + 2, at), step = sub({above, at}, y);
      const NDArray between = add({y, at}, mul({step, at}, ScalarOperand(part, at)));
      const NDArray mixed =
          add({mul({y, at}, ScalarOperand(1 - part, at)), at}, mul({above, at}, ScalarOperand(part, at)));
      y = where({isfinite({step, at}), at}, between, where({equal({y, at}, above), at}, y, mixed));
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
