// Rows of unary operators and of reductions, made from their functors: for the library's tables, and for operators that
// are defined elsewhere (define.h).
#pragma once

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/registry.h"

namespace sluice::rows {

// ---- elementwise

/// Throws ArrayError where F does not take input 0's dtype.
template <class F>
void check_dtype(const Signature& s) {
  using functors::DTypes;
  if constexpr (F::takes == DTypes::bits) {
    s.bits();
  } else {
    F::takes == DTypes::arithmetic ? s.arithmetic() : s.floating();
  }
}

template <class F>
void infer_elementwise(Signature& s) {
  s.same_dtypes();
  check_dtype<F>(s);
  s.output(s.broadcast(), s.dtype());
}

template <class F>
void unary_gradient(GradientContext& c) {
  const NDArray& kept = F::keeps_output ? c.output() : F::keeps_input ? c.input(0) : c.gradient();
  if constexpr (F::keeps_input || F::keeps_output) {
    if (!c.create_graph()) {
      const Operator& row = detail::first_use([] { return &Registry::instance().get(F::grad_name); });
      c.set(0, apply(row, {&c.gradient(), &kept}, {}, {.where = c.where()}));
      return;
    }
  }
  c.set(0, F::gradient_of(c.gradient(), kept));
}

/// True if the gradient is a row of its own, of g and the value that is kept.
template <class F>
constexpr bool has_gradient_row = F::keeps_input || F::keeps_output;

/// Which terms F is linear in (placement.h).
template <class F>
constexpr Linear linearity = Linear::no;
template <>
inline constexpr Linear linearity<functors::Neg> = Linear::together;
template <>
inline constexpr Linear linearity<functors::Add> = Linear::together;
template <>
inline constexpr Linear linearity<functors::Sub> = Linear::together;
template <>
inline constexpr Linear linearity<functors::Mul> = Linear::each;
template <>
inline constexpr Linear linearity<functors::Div> = Linear::first;

/// Axes that are kept may be cut. `adds`: so may those that go, and F is the reduction.
template <class F>
void place_reduction(Placing& p) {
  const auto& a = p.attributes<ReduceAttributes>();
  int out = 0;
  for (int i = 0; i < p.shape(0).rank(); ++i) {
    const bool gone = (a.axes >> i & 1U) != 0;
    p.input(0, i, static_cast<char>('A' + i));
    if (!gone) p.output(0, out, static_cast<char>('A' + i));
    out += !gone || a.keep;
  }
  if constexpr (std::is_same_v<F, functors::Sum>) {
    p.adds(ReduceOp::sum);
    p.linear(Linear::together);
  } else if constexpr (std::is_same_v<F, functors::Max>) {
    p.adds(ReduceOp::max, true);
  } else if constexpr (std::is_same_v<F, functors::Min>) {
    p.adds(ReduceOp::min, true);
  }
}

/// The row of a unary operator, and that of its gradient in one pass; the first is returned.
template <class F>
const Operator& add_unary(Registry& registry) {
  if constexpr (has_gradient_row<F>) {
    add_operator(registry, F::grad_name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.infer = infer_elementwise<functors::Derivative<F>>;
      op.cost = costs::each_output<2>;
    });
  }
  return add_operator(registry, F::name, [](Operator& op) {
    op.elementwise = true;
    op.place = place_linear<linearity<F>>;
    op.infer = infer_elementwise<F>;
    op.cost = costs::each_output<>;
    if (F::takes != functors::DTypes::bits) op.gradient = unary_gradient<F>;
    if (F::keeps_output) op.needs = {needs::output()};
    if (F::keeps_input) op.needs = {needs::input(0)};
  });
}

// ---- reductions

/// ReduceAttributes::axes. Throws ArrayError for axes that x does not have, or that are named twice.
std::uint32_t axis_bits(const char* who, const Operand& x, const Axes& axes);
Dims reduced_shape(const Dims& shape, std::uint32_t axes, bool keep);
/// Throws ArrayError where a group of elements to reduce is empty.
void need_elements(Signature& s, std::uint32_t axes);
/// A result, or its gradient, seen in the shape of what was reduced.
NDArray widened(GradientContext& c, const NDArray& g);

template <class F>
void infer_reduction(Signature& s) {
  const auto& a = s.attributes<ReduceAttributes>();
  if (F::needs_elements) need_elements(s, a.axes);
  if (F::integers && a.scale == 1) {
    s.arithmetic();
  } else {
    s.floating();
  }
  s.output(reduced_shape(s.shape(0), a.axes, a.keep), s.dtype());
}

/// What a reduction's gradient is made of, as members of a struct. Operands carry the place of the forward call to the
/// operators that they meet.
#define SLUICE_REDUCTION_RULE(gradient)                                                           \
  static constexpr bool keeps_input = ::sluice::functors::mentions(#gradient, 'x');               \
  static constexpr bool keeps_output = ::sluice::functors::mentions(#gradient, 'y');              \
  static ::sluice::NDArray of(                                                                    \
      [[maybe_unused]] ::sluice::GradientContext& c, [[maybe_unused]] const ::sluice::Operand& g, \
      [[maybe_unused]] const ::sluice::Operand& x, [[maybe_unused]] const ::sluice::Operand& y) { \
    return gradient;                                                                              \
  }

template <class Rule>
void reduction_gradient(GradientContext& c) {
  const NDArray g = widened(c, c.gradient());
  const NDArray& x = Rule::keeps_input ? c.input(0) : g;
  NDArray y;  // empty where the gradient does not name it
  if constexpr (Rule::keeps_output) y = widened(c, c.output());
  c.set(0, Rule::of(c, {g, c.where()}, {x, c.where()}, {y, c.where()}));
}

template <class F, class Rule>
const Operator& add_reduction(Registry& registry) {
  return add_operator(registry, F::name, [](Operator& op) {
    op.infer = infer_reduction<F>;
    op.place = place_reduction<F>;
    op.cost = costs::each_input<>;
    op.gradient = reduction_gradient<Rule>;
    op.needs = {(Rule::keeps_input ? needs::input(0) : Needs()) | (Rule::keeps_output ? needs::output() : Needs())};
  });
}

inline NDArray reduce(const Operator& row, const Operand& x, const Axes& axes, const ReduceOptions& options) {
  return apply(row, {&x.array}, ReduceAttributes{axis_bits(row.name, x, axes), options.keep, 1}, {.where = x.where});
}

}  // namespace sluice::rows
