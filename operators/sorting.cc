// Rows and functions of sorts, searches and counts.
#include "sluice/operators/sorting.h"

#include <algorithm>
#include <limits>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/along_axis.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/indexing.h"
#include "sluice/operators/lines.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/shaping.h"
#include "sluice/operators/waiting.h"

namespace sluice {
namespace {

using builtin::line_axis;

void need_index(Signature& s, int i) {
  const DType t = s.dtype(i);
  if (t != DType::i64 && t != DType::i32 && t != DType::u8) {
    s.fail("an index is i64, i32 or u8, not " + std::string(name_of(t)));
  }
}

const Operator& named(const char* name) { return Registry::instance().get(name); }

ValuesAndIndices first_sorted(const char* who, const Operand& x, int axis, bool descending, std::int64_t k) {
  const Operator& row = detail::first_use([] { return &named("sort"); });
  const NDArray* const inputs[] = {&x.array};
  const std::vector<NDArray> both =
      apply_all(row, inputs, LineAttributes{line_axis(who, x, axis), descending, k}, {.where = x.where});
  return {both[0], both[1]};
}

std::int64_t size_along(const char* who, const Operand& x, int axis) {
  const int at = line_axis(who, x, axis);
  return x.array.rank() == 0 ? 1 : x.array.shape()[at];
}

}  // namespace

NDArray builtin::add_along_axis(const NDArray& g, const NDArray& index, int axis, const Dims& shape,
                                const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &named("add_along_axis"); });
  const std::int64_t size = shape.rank() == 0 ? 1 : shape[axis];
  return apply(row, {&g, &index}, LineAttributes{axis, false, size}, {.where = where});
}

namespace {
Cost sort_cost(const Signature& s) {
  const std::int64_t n = s.shape(0).rank() == 0 ? 1 : s.shape(0)[s.attributes<LineAttributes>().axis];
  return costs::of(costs::count(s.shape(0)) * costs::log2_of(n), s);
}
}  // namespace

void builtin::add_sorting_rows(Registry& registry) {
  // Outputs: the first `size` elements along the axis in order, and their places.
  add_operator(registry, "sort", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = sort_cost;
    op.infer = [](Signature& s) {
      const auto& a = s.attributes<LineAttributes>();
      Dims shape = s.shape(0);
      const std::int64_t n = shape.rank() == 0 ? 1 : shape[a.axis];
      if (a.size < 0 || a.size > n || (shape.rank() == 0 && a.size != 1)) {
        s.fail("the first " + std::to_string(a.size) + " of " + std::to_string(n));
      }
      if (shape.rank() != 0) shape[a.axis] = a.size;
      s.output(shape, s.dtype());
      s.output(shape, DType::i64);
    };
    op.needs = {needs::output(1)};
    op.gradient = [](GradientContext& c) {
      const int axis = c.attributes().get<LineAttributes>().axis;
      c.set(0, add_along_axis(c.gradient(), c.output(1), axis, c.input_spec(0).shape, c.where()));
    };
  });
  add_operator(registry, "take_along_axis", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::picks;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      need_index(s, 1);
      const int axis = s.attributes<LineAttributes>().axis;
      Dims shape = s.shape(0);
      if (shape.rank() != s.shape(1).rank()) s.fail("ranks differ");
      if (shape.rank() != 0) shape[axis] = s.shape(1)[axis];
      if (!(shape == s.shape(1))) s.fail("sizes differ beside axis " + std::to_string(axis));
      s.output(shape, s.dtype());
    };
    op.needs = {needs::input(1)};
    op.gradient = [](GradientContext& c) {
      const int axis = c.attributes().get<LineAttributes>().axis;
      c.set(0, add_along_axis(c.gradient(), c.input(1), axis, c.input_spec(0).shape, c.where()));
    };
  });
  // Zeros, with the elements of the first input added in at their places along the axis, in order.
  add_operator(registry, "add_along_axis", [](Operator& op) {
    op.place = [](Placing& p) { p.along(p.attributes<LineAttributes>().axis); };
    op.cost = costs::each_input<>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.arithmetic();
      need_index(s, 1);
      if (!(s.shape(0) == s.shape(1))) s.fail("shapes differ");
      const auto& a = s.attributes<LineAttributes>();
      Dims shape = s.shape(0);
      if (shape.rank() != 0) shape[a.axis] = a.size;
      s.output(shape, s.dtype());
    };
    op.needs = {needs::input(1)};
    op.gradient = [](GradientContext& c) {
      c.set(0, apply(named("take_along_axis"), {&c.gradient(), &c.input(1)}, c.attributes(), {.where = c.where()}));
    };
  });
  add_operator(registry, "searchsorted", [](Operator& op) {
    op.place = [](Placing& p) { p.letters(p.shape(0).rank() == 1 ? "_,...->..." : "..._,..._->..._"); };
    op.cost = [](const Signature& s) {
      const Dims& sorted = s.shape(0);
      return costs::of(costs::count(s.shape(1)) * costs::log2_of(sorted[sorted.rank() - 1]), s);
    };
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.same_dtypes();
      const Dims &sorted = s.shape(0), &values = s.shape(1);
      if (sorted.rank() == 0) s.fail("what is sorted has an axis at least");
      bool fits = sorted.rank() == 1 || sorted.rank() == values.rank();
      for (int i = 0; fits && i + 1 < sorted.rank(); ++i) fits = sorted[i] == values[i];
      if (!fits) s.fail("sizes differ before the last axis");
      s.output(values, DType::i64);
    };
  });
  add_operator(registry, "bincount", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("...->_");
      p.adds(ReduceOp::sum);
    };
    op.cost = costs::each_input<>;
    op.infer = [](Signature& s) {
      need_index(s, 0);
      s.output({s.attributes<LineAttributes>().size}, DType::i64);
    };
  });
}

NDArray sort(const Operand& x, int axis, const SortOptions& options) {
  return first_sorted("sort", x, axis, options.descending, size_along("sort", x, axis)).values;
}
NDArray argsort(const Operand& x, int axis, const SortOptions& options) {
  const detail::Called called("argsort", x.where);
  return first_sorted("argsort", x, axis, options.descending, size_along("argsort", x, axis)).indices;
}
ValuesAndIndices sort_with_indices(const Operand& x, int axis, const SortOptions& options) {
  const char* const name = "sort_with_indices";
  const detail::Called called(name, x.where);
  return first_sorted(name, x, axis, options.descending, size_along(name, x, axis));
}

ValuesAndIndices topk(const Operand& x, std::int64_t k, int axis, const TopKOptions& options) {
  const detail::Called called("topk", x.where);
  const std::int64_t n = size_along("topk", x, axis);
  if (k < 0 || k > n || (x.array.rank() == 0 && k != 1)) {
    throw ArrayError("topk", x.where,
                     to_string(x.array.shape()) + ": " + std::to_string(k) + " of " + std::to_string(n) + " elements");
  }
  return first_sorted("topk", x, axis, options.largest, k);
}

NDArray take_along_axis(const Operand& x, const Operand& index, int axis) {
  const Operator& row = detail::first_use([] { return &named("take_along_axis"); });
  const int at = line_axis("take_along_axis", x, axis);
  index.array.checked("take_along_axis", x.where);
  NDArray from = x.array, places = index.array;
  if (from.rank() == places.rank() && from.rank() > 0) {
    Dims of_x = from.shape(), of_index = places.shape();
    for (int i = 0; i < from.rank(); ++i) {
      if (i == at) continue;
      if (of_x[i] == 1) of_x[i] = of_index[i];
      if (of_index[i] == 1) of_index[i] = of_x[i];
    }
    if (!(of_x == from.shape())) from = from.broadcast_to(of_x, x.where);
    if (!(of_index == places.shape())) places = places.broadcast_to(of_index, x.where);
  }
  return apply(row, {&from, &places}, LineAttributes{at, false, 0}, {.where = x.where});
}

NDArray searchsorted(const Operand& sorted, const Operand& values, const SearchOptions& options) {
  const Operator& row = detail::first_use([] { return &named("searchsorted"); });
  sorted.array.checked("searchsorted", sorted.where);
  values.array.checked("searchsorted", sorted.where);
  std::vector<const NDArray*> inputs{&sorted.array, &values.array};
  const std::vector<NDArray> converted = builtin::in_one_dtype("searchsorted", inputs, sorted.where);
  return apply(row, {inputs[0], inputs[1]}, LineAttributes{0, options.right, 0}, {.where = sorted.where});
}

namespace {
bool can_be_counted(DType dtype) { return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::u8; }
/// The largest number and 1. Waits.
std::int64_t bins_for(const Operand& x) {
  builtin::check_may_wait("bincount", x.where);
  if (x.array.count() == 0) return 0;
  const std::int64_t largest = max(x).to(DType::i64, x.where).item<std::int64_t>(x.where);
  check_shape("bincount", {std::max<std::int64_t>(largest, 0)}, DType::i64, x.where);
  return std::max<std::int64_t>(0, largest + 1);
}
}  // namespace

NDArray bincount(const Operand& x, std::optional<std::int64_t> size) {
  const Operator& row = detail::first_use([] { return &named("bincount"); });
  const detail::Called called("bincount", x.where);
  if (!size && can_be_counted(x.array.checked("bincount", x.where).dtype())) size = bins_for(x);
  return apply(row, {&x.array}, LineAttributes{0, false, size.value_or(0)}, {.where = x.where});
}
NDArray bincount(const Operand& x, const Operand& weights, std::optional<std::int64_t> size) {
  const builtin::Composition made("bincount", x);
  const NDArray& w = weights.array;
  const DType dtype = x.array.dtype(), wide = w.checked("bincount", made.where()).dtype();
  if (!can_be_counted(dtype)) made.fail("an index is i64, i32 or u8, not " + std::string(name_of(dtype)));
  if (!is_floating(wide)) made.fail("weights are of a floating dtype, not " + std::string(name_of(wide)));
  if (!(w.shape() == x.array.shape())) {
    made.fail("weights " + to_string(w.shape()) + " for " + to_string(x.array.shape()));
  }
  const std::int64_t n = size ? *size : bins_for(x);
  if (n < 0) made.fail("a size of " + std::to_string(n));
  // Negative numbers would count from the end: they become n, which is out of range.
  const NDArray index = x.array.reshape({-1}).to(DType::i64);
  const NDArray places = where(index < 0, full_like(index, n), index);
  return scatter_add(zeros({n}, DType::f64), 0, places, w.reshape({-1}).to(DType::f64)).to(wide);
}

Histogram histogram(const Operand& x, std::int64_t bins, double low, double high) {
  const builtin::Composition made("histogram", x);
  const std::source_location at = made.where();
  const DType dtype = x.array.dtype();
  if (!is_floating(dtype)) {
    throw ArrayError("histogram", at, "needs a floating dtype, not " + std::string(name_of(dtype)));
  }
  if (bins < 1 || !(low < high) || !(high - low < std::numeric_limits<double>::infinity())) {
    throw ArrayError("histogram", at,
                     std::to_string(bins) + " bins of [" + Scalar(low).text() + ", " + Scalar(high).text() + "]");
  }
  check_shape("histogram", {bins}, DType::i64, at);
  const DeviceScope on(x.array.device());
  const NDArray steps = arange(0, static_cast<double>(bins + 1), 1, DType::f64, at);
  NDArray edges =
      add({mul({steps, at}, ScalarOperand((high - low) / static_cast<double>(bins), at)), at}, ScalarOperand(low, at));
  edges = where({equal({steps, at}, ScalarOperand(bins, at)), at}, full({}, high, DType::f64, at), edges).to(dtype, at);
  // The number of edges at or below an element: 0 below the first, bins + 1 at the last and above it, and for NaN.
  const NDArray flat = x.array.reshape({-1}, at).detach(at);
  const NDArray below = searchsorted({edges, at}, flat, {.right = true});
  const NDArray last = edges.narrow(0, bins, bins + 1, at);
  const NDArray part = where({equal({flat, at}, last), at}, full({}, bins, DType::i64, at), below);
  return {bincount({part, at}, bins + 2).narrow(0, 1, bins + 1, at).copy(at), edges};
}

Unique unique(const Operand& x, const UniqueOptions& options) {
  const builtin::Composition made("unique", x);
  const NDArray flat = x.array.reshape({-1}).detach();
  const std::int64_t n = flat.count();
  if (options.size && *options.size < 0) made.fail("a size of " + std::to_string(*options.size));
  if (options.size) check_shape("unique", {*options.size}, DType::i64, x.where);
  const auto filled = [&](const Dims& shape) { return full(shape, options.fill.value_or(0), x.array.dtype()); };
  if (!options.size) builtin::check_may_wait("unique", x.where);
  if (n == 0) {
    const std::int64_t size = options.size.value_or(0);
    return {filled({size}), zeros(x.array.shape(), DType::i64), zeros({size}, DType::i64)};
  }
  const auto [sorted, places] = sort_with_indices(flat);
  // 1 where an element differs from the one before it. All NaN are one, and come last.
  const NDArray a = sorted.narrow(0, 0, n - 1), b = sorted.narrow(0, 1, n);
  const NDArray differs = (less(a, b) | (equal(a, a) & not_equal(b, b))).to(DType::i64);
  const NDArray number = cumsum(concat({zeros({1}, DType::i64), differs}, 0));
  const std::int64_t size = options.size ? *options.size : number.narrow(0, n - 1, n).item<std::int64_t>(x.where) + 1;
  const NDArray numbers = arange(0, size);
  const NDArray begins = searchsorted(number, numbers), ends = searchsorted(number, numbers, {.right = true});
  NDArray values = options.size ? take_rows(sorted, minimum(begins, n - 1)) : take_rows(sorted, begins);
  if (options.fill) {
    values = where(begins < n, values, filled({}));
  } else if (options.size) {
    values = where(begins < n, values, sorted.narrow(0, 0, 1));
  }
  const NDArray inverse = builtin::add_along_axis(number, places, 0, {n}, made.where());
  return {values, inverse.reshape(x.array.shape()), ends - begins};
}

}  // namespace sluice
