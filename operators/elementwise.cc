// Rows and functions of elementwise operators.
#include "sluice/operators/elementwise.h"

#include <cmath>

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/rows.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

template <class F>
const Operator& row_of() {
  static const Operator& row = Registry::instance().get(F::name);
  return row;
}

template <class F>
NDArray unary(const Operand& x) {
  return apply(row_of<F>(), {&x.array}, {}, {.where = x.where});
}

template <class F>
NDArray binary(const Operand& a, const Operand& b) {
  return apply(row_of<F>(), {&a.array, &b.array}, {}, {.where = a.where});
}

template <class F>
const Operator& scalar_row_of() {
  static const Operator& row = Registry::instance().get(F::scalar_name);
  return row;
}

template <class F>
NDArray with_scalar(const Operand& x, const Scalar& value, bool left = false) {
  return apply(scalar_row_of<F>(), {&x.array}, ScalarAttributes{value, left}, {.where = x.where});
}

template <class F>
void comparison_infer(Signature& s) {
  s.same_dtypes();
  s.arithmetic();
  s.output(s.broadcast(), DType::boolean);
}

template <class F>
void scalar_infer(Signature& s) {
  F::integers ? s.arithmetic() : s.floating();
  const Scalar& value = s.attributes<ScalarAttributes>().value;
  if (!is_floating(s.dtype()) && !value.is_integer && value.real != std::trunc(value.real)) {
    s.fail("the number " + std::to_string(value.real) + " beside " + std::string(name_of(s.dtype())));
  }
}

// Gradient i of a broadcasting operator, summed back to its input's shape.
void give(GradientContext& c, int i, const NDArray& gradient) {
  c.set(i, sum_to({gradient, c.where()}, c.input_spec(i).shape));
}

// ---- gradients of binary operators: of_a and of_b for two arrays, or an array and a number.

NDArray pow_gradient_of_base(const NDArray& g, const NDArray& a, const NDArray& b) {
  // At a = b = 0 the derivative is 0, and so is the next one: not 0 * infinity.
  const NDArray exponent = where(equal(a, 0), where(equal(b, 0), ones_like(b), b), b) - 1;
  return g * b * pow(a, exponent);
}
NDArray pow_gradient_of_base(const NDArray& g, const NDArray& a, double b) {
  return b == 0 ? zeros_like(g) : g * pow(a, b - 1) * b;
}
NDArray pow_gradient_of_exponent(const NDArray& g, const NDArray& a, const NDArray& b) {
  // At a = 0 the limit for b > 0 is 0, which the formula would make 0 * -infinity.
  return g * pow(a, b) * log(where(equal(a, 0), ones_like(a), a));
}
NDArray pow_gradient_of_exponent(const NDArray& g, double a, const NDArray& b) {
  return g * pow(a, b) * (a == 0 ? 0 : std::log(a));
}

template <class F>
struct BinaryRule;
#define SLUICE_BINARY(Name, name, dtypes, value, gradient_of_a, gradient_of_b)                        \
  template <>                                                                                         \
  struct BinaryRule<functors::Name> {                                                                 \
    static constexpr std::string_view text_of[2] = {#gradient_of_a, #gradient_of_b};                  \
    template <class A, class B>                                                                       \
    static NDArray of_a(const NDArray& g, [[maybe_unused]] const A& a, [[maybe_unused]] const B& b) { \
      return gradient_of_a;                                                                           \
    }                                                                                                 \
    template <class A, class B>                                                                       \
    static NDArray of_b(const NDArray& g, [[maybe_unused]] const A& a, [[maybe_unused]] const B& b) { \
      return gradient_of_b;                                                                           \
    }                                                                                                 \
  };
#include "sluice/operators/elementwise_table.inc"

template <class F>
constexpr bool names(int gradient, char operand) {
  return functors::mentions(BinaryRule<F>::text_of[gradient], operand);
}

template <class F>
Needs needs_of(int gradient) {
  return (names<F>(gradient, 'a') ? needs::input(0) : Needs()) | (names<F>(gradient, 'b') ? needs::input(1) : Needs());
}

// An operand that the gradient does not name was not kept, and g stands in for it.
template <class F>
void binary_gradient(GradientContext& c) {
  const NDArray& g = c.gradient();
  const auto operand = [&](int gradient, int i) -> const NDArray& {
    return names<F>(gradient, i == 0 ? 'a' : 'b') ? c.input(i) : g;
  };
  if (c.wanted(0)) give(c, 0, BinaryRule<F>::of_a(g, operand(0, 0), operand(0, 1)));
  if (c.wanted(1)) give(c, 1, BinaryRule<F>::of_b(g, operand(1, 0), operand(1, 1)));
}

/// True if the row with a number keeps its array: either side's gradient names it.
template <class F>
constexpr bool scalar_keeps() {
  return names<F>(0, 'a') || names<F>(1, 'b');
}

template <class F>
void scalar_gradient(GradientContext& c) {
  const NDArray& g = c.gradient();
  const NDArray& x = scalar_keeps<F>() ? c.input(0) : g;
  const auto& [value, left] = c.attributes().get<ScalarAttributes>();
  const double number = value.as<double>();
  c.set(0, left ? BinaryRule<F>::of_b(g, number, x) : BinaryRule<F>::of_a(g, x, number));
}

}  // namespace

NDArray builtin::relu_gradient(GradientContext& c) {
  if (c.create_graph()) return functors::Relu::gradient_of(c.gradient(), c.output());
  static const Operator& row = Registry::instance().get(functors::Relu::grad_name);
  return apply(row, {&c.gradient(), &c.output()}, {}, {.where = c.where()});
}

void builtin::add_elementwise_rows(Registry& registry) {
  functors::Unary::each([&]<class F>() { rows::add_unary<F>(registry); });
  functors::Binary::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.infer = rows::infer_elementwise<F>;
      op.gradient = binary_gradient<F>;
      op.needs = {needs_of<F>(0), needs_of<F>(1)};
    });
    add_operator(registry, F::scalar_name, [](Operator& op) {
      op.elementwise = true;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), s.dtype());
      };
      op.gradient = scalar_gradient<F>;
      if (scalar_keeps<F>()) op.needs = {needs::input(0)};
    });
  });
  functors::Comparison::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.infer = comparison_infer<F>;
    });
    add_operator(registry, F::scalar_name, [](Operator& op) {
      op.elementwise = true;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), DType::boolean);
      };
    });
  });
  add_operator(registry, "where", [](Operator& op) {
    op.min_inputs = op.max_inputs = 3;
    op.elementwise = true;
    op.key = -1;
    op.infer = [](Signature& s) {
      if (s.dtype(0) != DType::boolean) s.fail("the condition is " + std::string(name_of(s.dtype(0))) + ", not bool");
      s.same_dtypes(1);
      s.output(s.broadcast(), s.dtype(1));
    };
    op.needs = {Needs(), needs::input(0)};
    op.gradient = [](GradientContext& c) {
      const NDArray& g = c.gradient();
      if (c.wanted(1)) give(c, 1, where(c.input(0), g, zeros_like(g)));
      if (c.wanted(2)) give(c, 2, where(c.input(0), zeros_like(g), g));
    };
  });
}

// ---- functions

#define SLUICE_UNARY(Name, name, ...) \
  NDArray name(const Operand& x) { return unary<functors::Name>(x); }
#define SLUICE_BINARY(Name, name, ...)                                                                 \
  NDArray name(const Operand& a, const Operand& b) { return binary<functors::Name>(a, b); }            \
  NDArray name(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Name>(a, b); } \
  NDArray name(const ScalarOperand& a, const Operand& b) { return with_scalar<functors::Name>(b, a, true); }
#define SLUICE_COMPARISON(...) SLUICE_BINARY(__VA_ARGS__)
#include "sluice/operators/elementwise_table.inc"

NDArray where(const Operand& condition, const Operand& a, const Operand& b) {
  static const Operator& row = Registry::instance().get("where");
  return apply(row, {&condition.array, &a.array, &b.array}, {}, {.where = condition.where});
}

namespace {

template <class F>
NDArray& in_place(NDArray& x, const Operand& y) {
  apply_into(row_of<F>(), {&x, &y.array}, {}, {.where = y.where, .into = std::span(&x, 1)});
  return x;
}
template <class F>
NDArray& in_place(NDArray& x, const ScalarOperand& y) {
  apply_into(scalar_row_of<F>(), {&x}, ScalarAttributes{y, false}, {.where = y.where, .into = std::span(&x, 1)});
  return x;
}

}  // namespace

NDArray& NDArray::operator+=(const Operand& y) { return in_place<functors::Add>(*this, y); }
NDArray& NDArray::operator-=(const Operand& y) { return in_place<functors::Sub>(*this, y); }
NDArray& NDArray::operator*=(const Operand& y) { return in_place<functors::Mul>(*this, y); }
NDArray& NDArray::operator/=(const Operand& y) { return in_place<functors::Div>(*this, y); }
NDArray& NDArray::operator+=(const ScalarOperand& y) { return in_place<functors::Add>(*this, y); }
NDArray& NDArray::operator-=(const ScalarOperand& y) { return in_place<functors::Sub>(*this, y); }
NDArray& NDArray::operator*=(const ScalarOperand& y) { return in_place<functors::Mul>(*this, y); }
NDArray& NDArray::operator/=(const ScalarOperand& y) { return in_place<functors::Div>(*this, y); }

}  // namespace sluice
