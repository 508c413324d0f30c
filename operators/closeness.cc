// Whether arrays are equal, or nearly so.
#include "sluice/operators/closeness.h"

#include <array>

#include "sluice/operators/composition.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

/// Both in one dtype, without their history.
struct Pair {
  Pair(const char* name, const Operand& x, const Operand& y) : a(x.array), b(y.array) {
    std::array<const NDArray*, 2> both{&a, &b};
    const std::vector<NDArray> converted = builtin::in_one_dtype(name, both, x.where);
    const NDArray p = both[0]->detach(x.where), q = both[1]->detach(x.where);
    a = p;
    b = q;
  }
  NDArray a, b;
};

NDArray both_nan(const Pair& p) { return isnan(p.a) & isnan(p.b); }

bool holds_everywhere(const NDArray& condition, const std::source_location& where) {
  return sum(logical_not(condition)).item<std::int64_t>(where) == 0;
}

}  // namespace

NDArray isclose(const Operand& a, const Operand& b, const CloseOptions& options) {
  const builtin::Composition scope("isclose", a);
  scope.require(options.rtol >= 0 && options.atol >= 0, "rtol and atol must not be negative");
  const Pair p("isclose", {a.array, scope.where()}, b);
  // Integers beyond 2^53 are equal by their own dtype.
  const NDArray same = p.a == p.b;
  const DType dtype = p.a.dtype() == DType::f64 || !is_floating(p.a.dtype()) ? DType::f64 : DType::f32;
  const NDArray x = p.a.to(dtype), y = p.b.to(dtype);
  const NDArray near = same | (isfinite(y) & (abs(x - y) <= abs(y) * options.rtol + options.atol));
  return options.equal_nan ? near | both_nan(p) : near;
}

bool allclose(const Operand& a, const Operand& b, const CloseOptions& options) {
  const builtin::Composition scope("allclose", a);
  return holds_everywhere(isclose({a.array, scope.where()}, b, options), scope.where());
}

bool array_equal(const Operand& a, const Operand& b, const EqualOptions& options) {
  const builtin::Composition scope("array_equal", a);
  const Pair p("array_equal", {a.array, scope.where()}, b);
  if (!(p.a.shape() == p.b.shape())) return false;
  const NDArray same = p.a == p.b;
  return holds_everywhere(options.equal_nan ? same | both_nan(p) : same, scope.where());
}

}  // namespace sluice
