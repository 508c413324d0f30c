// Rows and functions of elementwise operators.
#include "sluice/operators/elementwise.h"

#include <cmath>

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/reduction.h"
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

// ---- derivatives in terms of operators, for gradients of gradients: df(v) of the functor as an array.

template <class F>
NDArray derivative(const NDArray& v);
template <>
NDArray derivative<functors::Neg>(const NDArray& v) {
  return neg(ones_like(v));
}
template <>
NDArray derivative<functors::Abs>(const NDArray& v) {
  return greater(v, 0).to(v.dtype()) - less(v, 0).to(v.dtype());
}
template <>
NDArray derivative<functors::Square>(const NDArray& v) {
  return v * 2;
}
template <>
NDArray derivative<functors::Exp>(const NDArray& v) {
  return v;
}
template <>
NDArray derivative<functors::Log>(const NDArray& v) {
  return reciprocal(v);
}
template <>
NDArray derivative<functors::Sqrt>(const NDArray& v) {
  return 0.5 / v;
}
template <>
NDArray derivative<functors::Reciprocal>(const NDArray& v) {
  return neg(square(v));
}
template <>
NDArray derivative<functors::Sin>(const NDArray& v) {
  return cos(v);
}
template <>
NDArray derivative<functors::Cos>(const NDArray& v) {
  return neg(sin(v));
}
template <>
NDArray derivative<functors::Tanh>(const NDArray& v) {
  return 1 - square(v);
}
template <>
NDArray derivative<functors::Erf>(const NDArray& v) {
  return exp(neg(square(v))) * 1.1283791670955126;
}
template <>
NDArray derivative<functors::Sigmoid>(const NDArray& v) {
  return v * (1 - v);
}
template <>
NDArray derivative<functors::Gelu>(const NDArray& v) {
  return (erf(v * 0.70710678118654752) + 1) * 0.5 + v * exp(square(v) * -0.5) * 0.39894228040143268;
}

NDArray mask_of(const NDArray& condition, const NDArray& g) { return where(condition, g, zeros_like(g)); }

template <class F>
void unary_gradient(GradientContext& c) {
  if constexpr (std::is_same_v<F, functors::Relu>) {
    c.set(0, builtin::relu_gradient(c));
  } else {
    const NDArray& kept = F::from_output ? c.output() : c.input(0);
    if (c.create_graph()) {
      c.set(0, c.gradient() * derivative<F>(kept));
    } else {
      static const Operator& row = Registry::instance().get(F::grad_name);
      c.set(0, apply(row, {&c.gradient(), &kept}, {}, {.where = c.where()}));
    }
  }
}

template <class F>
void elementwise_infer(Signature& s) {
  s.same_dtypes();
  F::integers ? s.arithmetic() : s.floating();
  s.output(s.broadcast(), s.dtype());
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

template <class F>
struct BinaryRule;
template <>
struct BinaryRule<functors::Add> {
  static std::vector<std::uint32_t> needs() { return {}; }
  static void gradient(GradientContext& c) {
    if (c.wanted(0)) give(c, 0, c.gradient());
    if (c.wanted(1)) give(c, 1, c.gradient());
  }
  static void scalar(GradientContext& c) { c.set(0, c.gradient()); }
};
template <>
struct BinaryRule<functors::Sub> {
  static std::vector<std::uint32_t> needs() { return {}; }
  static void gradient(GradientContext& c) {
    if (c.wanted(0)) give(c, 0, c.gradient());
    if (c.wanted(1)) give(c, 1, neg(c.gradient()));
  }
  static void scalar(GradientContext& c) {
    c.set(0, c.attributes().get<ScalarAttributes>().left ? neg(c.gradient()) : c.gradient());
  }
};
template <>
struct BinaryRule<functors::Mul> {
  static std::vector<std::uint32_t> needs() { return {needs::input(1), needs::input(0)}; }
  static void gradient(GradientContext& c) {
    if (c.wanted(0)) give(c, 0, c.gradient() * c.input(1));
    if (c.wanted(1)) give(c, 1, c.gradient() * c.input(0));
  }
  static void scalar(GradientContext& c) {
    c.set(0, with_scalar<functors::Mul>(c.gradient(), c.attributes().get<ScalarAttributes>().value));
  }
};
template <>
struct BinaryRule<functors::Div> {
  static std::vector<std::uint32_t> needs() { return {needs::input(1), needs::input(0) | needs::input(1)}; }
  static void gradient(GradientContext& c) {
    const NDArray first = c.gradient() / c.input(1);
    if (c.wanted(0)) give(c, 0, first);
    // No square of b, which may be out of range where the quotients are not.
    if (c.wanted(1)) give(c, 1, neg(first * (c.input(0) / c.input(1))));
  }
  static void scalar(GradientContext& c) {
    const auto& [value, left] = c.attributes().get<ScalarAttributes>();
    if (left) {
      c.set(0, neg(c.gradient() / c.input(0) * with_scalar<functors::Div>(c.input(0), value, true)));
    } else {
      c.set(0, with_scalar<functors::Div>(c.gradient(), value));
    }
  }
};
template <bool largest>
struct ExtremumRule {
  static std::vector<std::uint32_t> needs() { return {needs::input(0) | needs::input(1)}; }
  static void gradient(GradientContext& c) {
    const NDArray& a = c.input(0);
    const NDArray& b = c.input(1);
    const NDArray first = largest ? greater_equal(a, b) : less_equal(a, b);
    if (c.wanted(0)) give(c, 0, mask_of(first, c.gradient()));
    if (c.wanted(1)) give(c, 1, where(first, zeros_like(c.gradient()), c.gradient()));
  }
  static void scalar(GradientContext& c) {
    const Scalar& value = c.attributes().get<ScalarAttributes>().value;
    const NDArray first = largest ? with_scalar<functors::GreaterEqual>(c.input(0), value)
                                  : with_scalar<functors::LessEqual>(c.input(0), value);
    c.set(0, mask_of(first, c.gradient()));
  }
};
template <>
struct BinaryRule<functors::Maximum> : ExtremumRule<true> {};
template <>
struct BinaryRule<functors::Minimum> : ExtremumRule<false> {};
template <>
struct BinaryRule<functors::Pow> {
  static std::vector<std::uint32_t> needs() {
    return {needs::input(0) | needs::input(1), needs::input(0) | needs::input(1)};
  }
  static void gradient(GradientContext& c) {
    const NDArray& a = c.input(0);
    const NDArray& b = c.input(1);
    if (c.wanted(0)) {
      // At a = b = 0 the derivative is 0, and so is the next one: not 0 * infinity.
      const NDArray exponent = where(equal(a, 0), where(equal(b, 0), ones_like(b), b), b) - 1;
      give(c, 0, c.gradient() * b * pow(a, exponent));
    }
    // At a = 0 the limit for b > 0 is 0, which the formula would make 0 * -infinity.
    if (c.wanted(1)) give(c, 1, c.gradient() * pow(a, b) * log(where(equal(a, 0), ones_like(a), a)));
  }
  static void scalar(GradientContext& c) {
    const auto& [value, left] = c.attributes().get<ScalarAttributes>();
    const double s = value.as<double>();
    if (left) {
      c.set(0, c.gradient() * with_scalar<functors::Pow>(c.input(0), value, true) * (s == 0 ? 0 : std::log(s)));
    } else if (s == 0) {
      c.set(0, zeros_like({c.gradient(), c.where()}));
    } else {
      c.set(0, c.gradient() * pow(c.input(0), s - 1) * s);
    }
  }
};

}  // namespace

NDArray builtin::relu_gradient(GradientContext& c) {
  if (c.create_graph()) return mask_of(greater(c.output(), 0), c.gradient());
  static const Operator& row = Registry::instance().get(functors::Relu::grad_name);
  return apply(row, {&c.gradient(), &c.output()}, {}, {.where = c.where()});
}

void builtin::add_elementwise_rows(Registry& registry) {
  functors::Unary::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.elementwise = true;
      op.infer = elementwise_infer<F>;
      op.gradient = unary_gradient<F>;
      op.needs = {F::from_output ? needs::output() : needs::input(0)};
    });
    add_operator(registry, F::grad_name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.infer = elementwise_infer<functors::Derivative<F>>;
    });
  });
  functors::Binary::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.infer = elementwise_infer<F>;
      op.gradient = BinaryRule<F>::gradient;
      op.needs = BinaryRule<F>::needs();
    });
    add_operator(registry, F::scalar_name, [](Operator& op) {
      op.elementwise = true;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), s.dtype());
      };
      op.gradient = BinaryRule<F>::scalar;
      // The derivatives of sums and products by a number do not depend on x.
      if (std::string_view(F::name) != "add" && std::string_view(F::name) != "sub" &&
          std::string_view(F::name) != "mul") {
        op.needs = {needs::input(0)};
      }
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
    op.needs = {0, needs::input(0)};
    op.gradient = [](GradientContext& c) {
      const NDArray& g = c.gradient();
      if (c.wanted(1)) give(c, 1, where(c.input(0), g, zeros_like(g)));
      if (c.wanted(2)) give(c, 2, where(c.input(0), zeros_like(g), g));
    };
  });
}

// ---- functions

NDArray neg(const Operand& x) { return unary<functors::Neg>(x); }
NDArray abs(const Operand& x) { return unary<functors::Abs>(x); }
NDArray square(const Operand& x) { return unary<functors::Square>(x); }
NDArray exp(const Operand& x) { return unary<functors::Exp>(x); }
NDArray log(const Operand& x) { return unary<functors::Log>(x); }
NDArray sqrt(const Operand& x) { return unary<functors::Sqrt>(x); }
NDArray reciprocal(const Operand& x) { return unary<functors::Reciprocal>(x); }
NDArray sin(const Operand& x) { return unary<functors::Sin>(x); }
NDArray cos(const Operand& x) { return unary<functors::Cos>(x); }
NDArray tanh(const Operand& x) { return unary<functors::Tanh>(x); }
NDArray erf(const Operand& x) { return unary<functors::Erf>(x); }
NDArray sigmoid(const Operand& x) { return unary<functors::Sigmoid>(x); }
NDArray relu(const Operand& x) { return unary<functors::Relu>(x); }
NDArray gelu(const Operand& x) { return unary<functors::Gelu>(x); }

NDArray add(const Operand& a, const Operand& b) { return binary<functors::Add>(a, b); }
NDArray sub(const Operand& a, const Operand& b) { return binary<functors::Sub>(a, b); }
NDArray mul(const Operand& a, const Operand& b) { return binary<functors::Mul>(a, b); }
NDArray div(const Operand& a, const Operand& b) { return binary<functors::Div>(a, b); }
NDArray maximum(const Operand& a, const Operand& b) { return binary<functors::Maximum>(a, b); }
NDArray minimum(const Operand& a, const Operand& b) { return binary<functors::Minimum>(a, b); }
NDArray pow(const Operand& a, const Operand& b) { return binary<functors::Pow>(a, b); }

NDArray add(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Add>(a, b); }
NDArray sub(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Sub>(a, b); }
NDArray sub(const ScalarOperand& a, const Operand& b) { return with_scalar<functors::Sub>(b, a, true); }
NDArray mul(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Mul>(a, b); }
NDArray div(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Div>(a, b); }
NDArray div(const ScalarOperand& a, const Operand& b) { return with_scalar<functors::Div>(b, a, true); }
NDArray maximum(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Maximum>(a, b); }
NDArray minimum(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Minimum>(a, b); }
NDArray pow(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Pow>(a, b); }

NDArray equal(const Operand& a, const Operand& b) { return binary<functors::Equal>(a, b); }
NDArray not_equal(const Operand& a, const Operand& b) { return binary<functors::NotEqual>(a, b); }
NDArray less(const Operand& a, const Operand& b) { return binary<functors::Less>(a, b); }
NDArray less_equal(const Operand& a, const Operand& b) { return binary<functors::LessEqual>(a, b); }
NDArray greater(const Operand& a, const Operand& b) { return binary<functors::Greater>(a, b); }
NDArray greater_equal(const Operand& a, const Operand& b) { return binary<functors::GreaterEqual>(a, b); }
NDArray equal(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Equal>(a, b); }
NDArray less(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Less>(a, b); }
NDArray greater(const Operand& a, const ScalarOperand& b) { return with_scalar<functors::Greater>(a, b); }

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
