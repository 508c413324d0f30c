// Rows and functions of scans.
#include "sluice/operators/scan.h"

#include <algorithm>
#include <limits>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/along_axis.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/in_range.h"
#include "sluice/operators/lines.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/shaping.h"

namespace sluice {

int builtin::line_axis(const char* who, const Operand& x, int axis) {
  x.array.checked(who, x.where);
  const int rank = x.array.rank();
  const int at = axis < 0 ? axis + rank : axis;
  if (rank == 0 && (axis == 0 || axis == -1)) return 0;  // of one element, as in NumPy
  if (at < 0 || at >= rank) {
    throw ArrayError(who, x.where, to_string(x.array.shape()) + ": no axis " + std::to_string(axis));
  }
  return at;
}

namespace {

NDArray scan(const char* name, const NDArray& x, int axis, bool reverse, const std::source_location& where) {
  return apply(Registry::instance().get(name), {&x}, LineAttributes{axis, reverse, 0}, {.where = where});
}

NDArray linear(const NDArray& a, const NDArray& b, int axis, bool reverse, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("linear_scan"); });
  return apply(row, {&a, &b}, LineAttributes{axis, reverse, 0}, {.where = where});
}

/// What stands beside the first or the last element.
enum class Edge { zero, one, itself };

/// The element before each one in the scan's direction, or with `next` the element after it.
NDArray neighbour(const NDArray& x, int axis, bool reverse, bool next, Edge edge, const std::source_location& where) {
  const bool scalar = x.rank() == 0, from_above = reverse != next;
  const std::int64_t n = scalar ? 1 : x.shape()[axis];
  if (n == 0) return x;
  NDArray end = scalar ? x : from_above ? x.narrow(axis, n - 1, n, where) : x.narrow(axis, 0, 1, where);
  if (edge != Edge::itself) end = edge == Edge::zero ? zeros_like({end, where}) : ones_like({end, where});
  if (n == 1) return end;
  if (from_above) return concat({x.narrow(axis, 1, n, where), end}, axis, where);
  return concat({end, x.narrow(axis, 0, n - 1, where)}, axis, where);
}

void infer_scan(Signature& s) {
  s.arithmetic();
  s.output(s.shape(0), s.dtype());
}

void add_best(Registry& registry, const char* name) {
  add_operator(registry, name, [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::each_input<>;
    op.infer = [](Signature& s) {
      infer_scan(s);
      s.output(s.shape(0), DType::i64);
    };
    op.needs = {needs::output(1)};
    op.gradient = [](GradientContext& c) {
      const int axis = c.attributes().get<LineAttributes>().axis;
      c.set(0, builtin::add_along_axis(c.gradient(), c.output(1), axis, c.input_spec(0).shape, c.where()));
    };
  });
}

NDArray summable(const char* name, const Operand& x) {
  return has_sums(x.array.checked(name, x.where).dtype()) ? x.array : x.array.to(DType::i64, x.where);
}

ValuesAndIndices best(const char* name, const Operand& x, int axis) {
  const LineAttributes attributes{builtin::line_axis(name, x, axis), false, 0};
  const NDArray* const inputs[] = {&x.array};
  const std::vector<NDArray> both = apply_all(Registry::instance().get(name), inputs, attributes, {.where = x.where});
  return {both[0], both[1]};
}

}  // namespace

NDArray builtin::product_of_others(const NDArray& x, const std::source_location& where) {
  const int last = x.rank() - 1;
  const NDArray before = scan("cumprod", x, last, false, where), after = scan("cumprod", x, last, true, where);
  return mul({neighbour(before, last, false, false, Edge::one, where), where},
             neighbour(after, last, true, false, Edge::one, where));
}

void builtin::add_scan_rows(Registry& registry) {
  add_operator(registry, "cumsum", [](Operator& op) {
    op.place = [](Placing& p) {
      p.along(p.attributes<LineAttributes>().axis);
      p.linear(Linear::together);
    };
    op.cost = costs::each_input<>;
    op.infer = infer_scan;
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<LineAttributes>();
      c.set(0, scan("cumsum", c.gradient(), a.axis, !a.reverse, c.where()));
    };
  });
  // d/dx[i] = the product before i, times the sum over k >= i of g[k] and the product between i and k. That sum is a
  // linear recurrence. Nothing is divided by x, which may be 0.
  add_operator(registry, "cumprod", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::each_input<>;
    op.infer = infer_scan;
    op.needs = {needs::input(0) | needs::output()};
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<LineAttributes>();
      const NDArray factors = neighbour(c.input(0), a.axis, a.reverse, true, Edge::zero, c.where());
      const NDArray sums = linear(factors, c.gradient(), a.axis, !a.reverse, c.where());
      c.set(0, neighbour(c.output(), a.axis, a.reverse, false, Edge::one, c.where()) * sums);
    };
  });
  // d/dx[i] = exp(x[i] - y[i]) times the sum over k >= i of g[k] exp(y[i] - y[k]), a linear recurrence too. No
  // exponent is above 0.
  add_operator(registry, "logcumsumexp", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::each_input<4>;
    op.infer = [](Signature& s) {
      s.floating();
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::input(0) | needs::output()};
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<LineAttributes>();
      const NDArray &y = c.output(), next = neighbour(y, a.axis, a.reverse, true, Edge::itself, c.where());
      const NDArray factors = exp(where(equal(y, next), 0, y - next));  // 1 between equal infinities
      const NDArray sums = linear(factors, c.gradient(), a.axis, !a.reverse, c.where());
      c.set(0, minimum(exp(c.input(0) - finite_exponent(y, c.where())), 1) * sums);
    };
  });
  // The gradient of b is the recurrence backwards, with the factors of the next elements.
  add_operator(registry, "linear_scan", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::each_input<2>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.arithmetic();
      s.same_dtypes();
      if (!(s.shape(0) == s.shape(1))) s.fail("shapes differ");
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::input(0) | needs::output(), needs::input(0)};
    op.common_needs = needs::input(0);
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<LineAttributes>();
      const NDArray& of_b = c.common([](GradientContext& x) {
        const auto& line = x.attributes().get<LineAttributes>();
        const NDArray factors = neighbour(x.input(0), line.axis, line.reverse, true, Edge::zero, x.where());
        return linear(factors, x.gradient(), line.axis, !line.reverse, x.where());
      });
      if (c.wanted(0)) c.set(0, of_b * neighbour(c.output(), a.axis, a.reverse, false, Edge::zero, c.where()));
      if (c.wanted(1)) c.set(1, of_b);
    };
  });
  add_best(registry, "cummax");
  add_best(registry, "cummin");
}

NDArray builtin::finite_exponent(const NDArray& y, const std::source_location& at) {
  const double low = -std::numeric_limits<double>::infinity();
  return where({equal({y, at}, ScalarOperand(low, at)), at}, zeros_like({y, at}),
               minimum({y, at}, ScalarOperand(largest_number(y.dtype()), at)));
}

NDArray cumsum(const Operand& x, int axis, const ScanOptions& options) {
  return scan("cumsum", summable("cumsum", x), builtin::line_axis("cumsum", x, axis), options.reverse, x.where);
}
NDArray cumprod(const Operand& x, int axis, const ScanOptions& options) {
  return scan("cumprod", summable("cumprod", x), builtin::line_axis("cumprod", x, axis), options.reverse, x.where);
}
NDArray logcumsumexp(const Operand& x, int axis, const ScanOptions& options) {
  return scan("logcumsumexp", x.array, builtin::line_axis("logcumsumexp", x, axis), options.reverse, x.where);
}
NDArray linear_scan(const Operand& a, const Operand& b, int axis, const ScanOptions& options) {
  std::vector<const NDArray*> inputs{&a.array, &b.array};
  const int at = builtin::line_axis("linear_scan", a, axis);
  b.array.checked("linear_scan", b.where);
  const std::vector<NDArray> converted = builtin::in_one_dtype("linear_scan", inputs, a.where);
  return linear(*inputs[0], *inputs[1], at, options.reverse, a.where);
}

ValuesAndIndices cummax(const Operand& x, int axis) { return best("cummax", x, axis); }
ValuesAndIndices cummin(const Operand& x, int axis) { return best("cummin", x, axis); }

NDArray diff(const Operand& x, int n, int axis) {
  const builtin::Composition made("diff", x);
  const int at = builtin::line_axis("diff", x, axis);
  if (n < 0) made.fail("n is " + std::to_string(n) + ", which is below 0");
  made.require(x.array.rank() != 0, "a scalar has no axis");
  if (n == 0) return x.array.copy();
  NDArray y = x.array;
  // Beyond its size an axis has no elements left, however often.
  for (std::int64_t left = std::min<std::int64_t>(n, std::max<std::int64_t>(1, y.shape()[at])); left > 0; --left) {
    const std::int64_t size = y.shape()[at];
    const NDArray behind = y.narrow(at, std::min<std::int64_t>(1, size), size);
    const NDArray before = y.narrow(at, 0, std::max<std::int64_t>(0, size - 1));
    y = x.array.dtype() == DType::boolean ? behind ^ before : behind - before;
  }
  return y;
}

}  // namespace sluice
