// Limits, mixtures and products of several arrays.
#include "sluice/operators/mixing.h"

#include <string>

#include "sluice/operators/composition.h"

namespace sluice {
namespace {

void check_fits(const builtin::Composition& scope, const NDArray& x, const std::optional<Scalar>& value) {
  if (value && !value->fits(x.dtype())) {
    scope.fail("the number " + value->text() + " beside " + std::string(name_of(x.dtype())) + "; use to(dtype)");
  }
}

/// A number of any C++ type as an argument.
ScalarOperand operand(const Scalar& value) {
  ScalarOperand made(0);
  static_cast<Scalar&>(made) = value;
  return made;
}

NDArray times(const NDArray& x, const Scalar& value) { return value == Scalar(1) ? x : mul(x, operand(value)); }

}  // namespace

NDArray clip(const Operand& x, const ClipOptions& options) {
  const builtin::Composition scope("clip", x);
  scope.require(options.low || options.high, "low and high are both missing");
  if (!has_arithmetic(x.array.dtype())) scope.fail("no arithmetic in bool; use to(dtype)");
  check_fits(scope, x.array, options.low);
  check_fits(scope, x.array, options.high);
  const NDArray raised = options.low ? maximum(x, operand(*options.low)) : x.array;
  return options.high ? minimum(raised, operand(*options.high)) : raised;
}

// From the nearer end, so that both ends are exact. There the way to the other end counts only for the gradients, and
// not where it is infinite.
NDArray lerp(const Operand& a, const Operand& b, const Operand& weight) {
  const builtin::Composition scope("lerp", a);
  const NDArray way = b - a, rest = 1 - weight;
  const auto beyond = [&](const NDArray& part) {
    return where(logical_and(equal(part, 0), logical_not(isfinite(way))), 0, way) * part;
  };
  const NDArray nearer_a = less(weight, 0.5);
  return where(nearer_a, a + beyond(where(nearer_a, weight, 0)), b - beyond(where(nearer_a, 0, rest)));
}
NDArray lerp(const Operand& a, const Operand& b, const ScalarOperand& weight) {
  const builtin::Composition scope("lerp", a);
  const double part = weight.as<double>();
  NDArray way = b - a;
  if (part == 0 || part == 1) way = where(isfinite(way), way, 0);
  return part < 0.5 ? a + way * part : b - way * (1 - part);
}

NDArray addcmul(const Operand& x, const Operand& a, const Operand& b, const ProductOptions& options) {
  const builtin::Composition scope("addcmul", x);
  return x + times(a * b, options.value);
}
NDArray addcdiv(const Operand& x, const Operand& a, const Operand& b, const ProductOptions& options) {
  const builtin::Composition scope("addcdiv", x);
  return x + times(a / b, options.value);
}

}  // namespace sluice
