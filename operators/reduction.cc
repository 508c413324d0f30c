// Rows and functions of reductions and softmax.
#include "sluice/operators/reduction.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/along_axis.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/in_range.h"
#include "sluice/operators/rows.h"

namespace sluice {

// ---- what all reductions share

std::uint32_t rows::axis_bits(const char* who, const Operand& x, const Axes& axes) {
  x.array.checked(who, x.where);
  const int rank = x.array.rank();
  if (axes.every) return (1U << rank) - 1;
  if (axes.list.too_long()) [[unlikely]]
    throw ArrayError(who, x.where, to_string(x.array.shape()) + ": axes " + to_string(axes.list));
  std::uint32_t bits = 0;
  for (std::int64_t axis : axes.list) {
    const std::int64_t at = axis < 0 ? axis + rank : axis;
    if (rank == 0 && (axis == 0 || axis == -1)) continue;  // of one element, as in NumPy
    if (at < 0 || at >= rank) {
      throw ArrayError(who, x.where, to_string(x.array.shape()) + ": no axis " + std::to_string(axis));
    }
    if ((bits >> at & 1U) != 0) {
      throw ArrayError(
          who, x.where,
          to_string(x.array.shape()) + ": axis " + std::to_string(at) + " twice in " + to_string(axes.list));
    }
    bits |= 1U << at;
  }
  return bits;
}

Dims rows::reduced_shape(const Dims& shape, std::uint32_t axes, bool keep) {
  Dims out;
  for (int i = 0; i < shape.rank(); ++i) {
    if ((axes >> i & 1U) == 0) {
      out.push_back(shape[i]);
    } else if (keep) {
      out.push_back(1);
    }
  }
  return out;
}

void rows::need_elements(Signature& s, std::uint32_t axes) {
  for (int i = 0; i < s.shape(0).rank(); ++i) {
    if ((axes >> i & 1U) != 0 && s.shape(0)[i] == 0) s.fail("nothing to choose from");
  }
}

NDArray rows::widened(GradientContext& c, const NDArray& g) {
  const auto& a = c.attributes().get<ReduceAttributes>();
  const Dims& shape = c.input_spec(0).shape;
  if (!g.array()->owned() || g.shape().rank() == shape.rank()) {
    return g.reshape(reduced_shape(shape, a.axes, true), c.where()).broadcast_to(shape, c.where());
  }
  // An owner may have an axis of size 1 cut: a reshape does not say which one that becomes.
  Dims wide, order;
  int left = shape.rank() - g.shape().rank(), first = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    const bool gone = (a.axes >> i & 1U) != 0;
    order.push_back(gone ? first++ : left++);
    if (gone) wide.push_back(shape[i]);
  }
  for (int i = 0; i < g.shape().rank(); ++i) wide.push_back(g.shape()[i]);
  return g.broadcast_to(wide, c.where()).permute(order, c.where());
}

namespace {

using rows::axis_bits, rows::need_elements, rows::reduced_shape;

const Operator& named(const char* name) { return Registry::instance().get(name); }

// ---- what the table's gradients are made of, beside operators

NDArray scaled(GradientContext& c, const Operand& g) {
  const double scale = c.attributes().get<ReduceAttributes>().scale;
  return scale == 1 ? g.array : g * scale;
}

/// 1 where the first largest element of each reduced group lies, else 0.
NDArray first_largest(GradientContext& c, const Operand& x) {
  const Operator& row = detail::first_use([] { return &named("first_max"); });
  return apply(row, {&x.array}, c.attributes(), {.where = c.where()});
}

/// For each element the product of the others of its group. Made of running products, not of a quotient: elements may
/// be 0. A running product may be out of the range of f16 where the product of the others is not.
NDArray product_of_others(GradientContext& c, const Operand& x) {
  const std::uint32_t axes = c.attributes().get<ReduceAttributes>().axes;
  const Dims& shape = x.array.shape();
  Dims order, back = shape, groups;
  std::int64_t n = 1;
  for (const bool reduced : {false, true}) {
    for (int i = 0; i < shape.rank(); ++i) {
      if ((axes >> i & 1U) != (reduced ? 1U : 0U)) continue;
      back[i] = order.rank();
      order.push_back(i);
      if (reduced) {
        n *= shape[i];
      } else {
        groups.push_back(shape[i]);
      }
    }
  }
  const DType dtype = x.array.dtype();
  const NDArray sorted = x.array.to(*info_of(dtype).compute, c.where()).permute(order, c.where());
  const NDArray product = builtin::product_of_others(sorted.reshape({groups.count(), n}, c.where()), c.where());
  return product.reshape(sorted.shape(), c.where()).permute(back, c.where()).to(dtype, c.where());
}

/// exp(x) over the sum of it in each reduced group; 0 where all are -infinity, and of several infinities equal parts.
/// Not exp(x - y), because y has the rounding of a number that is larger than the differences of x.
NDArray parts_of_exponentials(GradientContext& c, const Operand& x) {
  const ReduceAttributes keep{c.attributes().get<ReduceAttributes>().axes, true, 1};
  const std::source_location& at = c.where();
  const DType dtype = x.array.dtype();
  const NDArray wide = x.array.to(*info_of(dtype).compute, at);
  if (wide.count() == 0) return x.array;
  NDArray shift;  // a constant to gradients: the quotient does not depend on it
  {
    const NoGrad no_grad;
    shift = builtin::finite_exponent(apply(named("max"), {&wide}, keep, {.where = at}), at);
  }
  // At most 1, but where x is infinity.
  const NDArray powers = minimum({exp({sub({wide, at}, shift), at}), at}, ScalarOperand(1, at));
  const NDArray total = apply(named("sum"), {&powers}, keep, {.where = at});
  const NDArray divisor = where({equal({total, at}, ScalarOperand(0, at)), at}, ones_like({total, at}), total);
  return mul({powers, at}, reciprocal({divisor, at})).to(dtype, at);
}

// Operands carry the place of the forward call to the operators that they meet.
template <class F>
struct ReductionRule;
#define SLUICE_REDUCTION(Name, name, dtypes, empty, fold, gradient) \
  template <>                                                       \
  struct ReductionRule<functors::Name> {                            \
    SLUICE_REDUCTION_RULE(gradient)                                 \
  };
#include "sluice/operators/reduction_table.inc"

template <class F>
NDArray reduce(const Operand& x, const Axes& axes, const ReduceOptions& options) {
  const Operator& row = detail::first_use([] { return &named(F::name); });
  if (F::widens && x.array.defined() && !has_sums(x.array.array()->dtype())) [[unlikely]]
    return rows::reduce(row, {x.array.to(DType::i64, x.where), x.where}, axes, options);
  return rows::reduce(row, x, axes, options);
}

NDArray last_axis(const char* name, const Operand& x, int axis) {
  x.array.checked(name, x.where);
  const int rank = x.array.rank(), at = builtin::line_axis(name, x, axis);
  if (rank == 0) {  // one element along its axis
    const NDArray line = x.array.reshape({1}, x.where);
    return apply(named(name), {&line}, {}, {.where = x.where}).reshape({}, x.where);
  }
  if (at == rank - 1) return apply(named(name), {&x.array}, {}, {.where = x.where});
  Dims axes;
  for (int i = 0; i < rank; ++i) axes.push_back(i == at ? rank - 1 : i == rank - 1 ? at : i);
  const NDArray swapped = x.array.permute(axes, x.where);
  return apply(named(name), {&swapped}, {}, {.where = x.where}).permute(axes, x.where).contiguous(x.where);
}

}  // namespace

void builtin::add_reduction_rows(Registry& registry) {
  functors::Reduction::each([&]<class F>() { rows::add_reduction<F, ReductionRule<F>>(registry); });
  // 1 where the first largest element of each reduced group lies, else 0.
  add_operator(registry, "first_max", [](Operator& op) {
    op.place = [](Placing& p) {
      const auto& a = p.attributes<ReduceAttributes>();
      for (int i = 0; i < p.shape(0).rank(); ++i) {
        if ((a.axes >> i & 1U) != 0) continue;
        p.input(0, i, static_cast<char>('A' + i));
        p.output(0, i, static_cast<char>('A' + i));
      }
    };
    op.cost = costs::each_input<>;
    op.infer = [](Signature& s) {
      s.arithmetic();
      s.output(s.shape(0), s.dtype());
    };
  });
  for (const char* name : {"argmax", "argmin"}) {
    add_operator(registry, name, [](Operator& op) {
      op.place = rows::place_reduction<void>;
      op.cost = costs::each_input<>;
      op.infer = [](Signature& s) {
        s.arithmetic();
        const auto& a = s.attributes<ReduceAttributes>();
        need_elements(s, a.axes);
        s.output(reduced_shape(s.shape(0), a.axes, a.keep), DType::i64);
      };
    });
  }
  for (const char* name : {"any", "all"}) {
    add_operator(registry, name, [](Operator& op) {
      op.place = rows::place_reduction<void>;
      op.cost = costs::each_input<>;
      op.infer = [](Signature& s) {
        const auto& a = s.attributes<ReduceAttributes>();
        if (s.dtype() != DType::boolean) s.fail("needs bool, not " + std::string(name_of(s.dtype())));
        s.output(reduced_shape(s.shape(0), a.axes, a.keep), DType::boolean);
      };
    });
  }
  const auto infer_softmax = [](Signature& s) {
    s.floating();
    if (s.shape(0).empty()) s.fail("a scalar has no axis");
    s.output(s.shape(0), s.dtype());
  };
  add_operator(registry, "softmax", [&](Operator& op) {
    op.cost = costs::each_output<5>;
    op.place = [](Placing& p) { p.letters("..._->..._"); };
    op.infer = infer_softmax;
    op.needs = {needs::output()};
    op.gradient = [](GradientContext& c) {
      // f16 and bf16 in f32, or the products would be rounded before they are summed.
      const DType dtype = c.output().dtype(), wide = *info_of(dtype).compute;
      const NDArray y = c.output().to(wide), g = c.gradient().to(wide);
      c.set(0, (y * (g - sum(g * y, -1, {.keep = true}))).to(dtype));
    };
  });
  add_operator(registry, "log_softmax", [&](Operator& op) {
    op.cost = costs::each_output<5>;
    op.place = [](Placing& p) { p.letters("..._->..._"); };
    op.infer = infer_softmax;
    op.needs = {needs::input(0)};  // exp(y) would have the rounding of y, which is larger than 1 in long rows
    op.gradient = [](GradientContext& c) {
      // f16 and bf16 in f32: sums may be out of their range.
      const DType dtype = c.gradient().dtype(), wide = *info_of(dtype).compute;
      const NDArray g = c.gradient().to(wide);
      c.set(0, (g - softmax(c.input(0).to(wide)) * sum(g, -1, {.keep = true})).to(dtype));
    };
  });
}

#define SLUICE_REDUCTION(Name, name, ...)                                          \
  NDArray name(const Operand& x, const Axes& axes, const ReduceOptions& options) { \
    return reduce<functors::Name>(x, axes, options);                               \
  }
#include "sluice/operators/costs.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction_table.inc"

NDArray mean(const Operand& x, const Axes& axes, const ReduceOptions& options) {
  const Operator& row = detail::first_use([] { return &named("sum"); });
  const detail::Called called("mean", x.where);
  const std::uint32_t bits = axis_bits("mean", x, axes);
  std::int64_t n = 1;
  for (int i = 0; i < x.array.rank(); ++i) n *= (bits >> i & 1U) != 0 ? x.array.shape()[i] : 1;
  if (!is_floating(x.array.dtype())) {
    throw ArrayError("mean", x.where, "needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  }
  return apply(row, {&x.array}, ReduceAttributes{bits, options.keep, 1.0 / static_cast<double>(n)}, {.where = x.where});
}

NDArray builtin::less_mean(const NDArray& x, const NDArray& average, const Axes& axes, const std::source_location& at) {
  const NDArray off = sub({x, at}, average);
  if (x.dtype() == DType::f64) return off;
  NDArray rest;
  {
    const NoGrad no_grad;
    rest = mean({off, at}, axes, {.keep = true});
  }
  return sub({off, at}, rest);
}

namespace {

NDArray best_place(const char* name, const Operand& x, const Axes& axes, const ReduceOptions& options) {
  return rows::reduce(named(name), x, axes, options);
}
NDArray of_conditions(const char* name, const Operand& x, const Axes& axes, const ReduceOptions& options) {
  const detail::Called called(name, x.where);
  if (x.array.checked(name, x.where).dtype() == DType::boolean) return rows::reduce(named(name), x, axes, options);
  return rows::reduce(named(name), {not_equal(x, ScalarOperand(0, x.where)), x.where}, axes, options);
}

}  // namespace

NDArray argmax(const Operand& x, int axis, const ReduceOptions& options) {
  return best_place("argmax", x, axis, options);
}
NDArray argmax(const Operand& x, All, const ReduceOptions& options) { return best_place("argmax", x, all, options); }
NDArray argmin(const Operand& x, int axis, const ReduceOptions& options) {
  return best_place("argmin", x, axis, options);
}
NDArray argmin(const Operand& x, All, const ReduceOptions& options) { return best_place("argmin", x, all, options); }

NDArray any(const Operand& x, const Axes& axes, const ReduceOptions& options) {
  return of_conditions("any", x, axes, options);
}
NDArray All::operator()(const Operand& x) const { return of_conditions("all", x, *this, {}); }
NDArray All::operator()(const Operand& x, const Axes& axes) const { return of_conditions("all", x, axes, {}); }
NDArray All::operator()(const Operand& x, const Axes& axes, const ReduceOptions& options) const {
  return of_conditions("all", x, axes, options);
}

NDArray count_nonzero(const Operand& x, const Axes& axes, const ReduceOptions& options) {
  const builtin::Composition made("count_nonzero", x);
  if (x.array.checked("count_nonzero", x.where).dtype() == DType::boolean) return sum(x, axes, options);
  return sum({not_equal(x, ScalarOperand(0, x.where)), x.where}, axes, options);
}

NDArray sum_to(const Operand& x, const Dims& shape) {
  const detail::Called called("sum_to", x.where);
  x.array.checked("sum_to", x.where);
  if (x.array.shape() == shape) return x.array;
  const int added = x.array.rank() - shape.rank();
  Dims axes;
  for (int i = 0; i < x.array.rank(); ++i) {
    const bool fits = i >= added && (shape[i - added] == x.array.shape()[i] || shape[i - added] == 1);
    if (added < 0 || (i >= added && !fits)) {
      throw ArrayError("sum_to", x.where, to_string(x.array.shape()) + " does not sum to " + to_string(shape));
    }
    if (i < added || shape[i - added] != x.array.shape()[i]) axes.push_back(i);
  }
  const NDArray result = axes.empty() ? x.array : sum(x, axes);
  return result.reshape(shape, x.where);
}

NDArray softmax(const Operand& x, int axis) { return last_axis("softmax", x, axis); }
NDArray log_softmax(const Operand& x, int axis) { return last_axis("log_softmax", x, axis); }

}  // namespace sluice
