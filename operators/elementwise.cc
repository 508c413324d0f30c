// Rows and functions of elementwise operators.
#include "sluice/operators/elementwise.h"

#include <optional>
#include <type_traits>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise_gradients.h"
#include "sluice/operators/functors.h"
#include "sluice/operators/fused_relu.h"
#include "sluice/operators/operand_dtypes.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/rows.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

template <class F>
const Operator& row_of() {
  const Operator& row = detail::first_use([] { return &Registry::instance().get(F::name); });
  return row;
}

bool is_of(const NDArray& x, DType dtype) { return x.array()->dtype() == dtype; }

template <class F>
NDArray unary(const Operand& x) {
  return apply(row_of<F>(), {&x.array}, {}, {.where = x.where});
}

/// Of bool those of u8.
template <class F>
NDArray predicate(const Operand& x) {
  if (x.array.defined() && is_of(x.array, DType::boolean)) [[unlikely]]
    return unary<F>({x.array.to(DType::u8, x.where), x.where});
  return unary<F>(x);
}

[[noreturn]] void refuse_dtypes(const char* name, DType a, DType b, const std::source_location& where) {
  throw ArrayError(
      name, where,
      "no dtype holds both " + std::string(name_of(a)) + " and " + std::string(name_of(b)) + "; use to(dtype)");
}

/// The dtype in which both are computed.
DType common_dtype(const char* name, const NDArray& a, const NDArray& b, const std::source_location& where) {
  const DType types[] = {a.checked(name, where).dtype(), b.checked(name, where).dtype()};
  if (const std::optional<DType> common = promote(types[0], types[1])) return *common;
  refuse_dtypes(name, types[0], types[1], where);
}

/// Calls f with both arrays in one dtype. Comparisons of bool are those of u8.
template <class F, class Call>
NDArray in_one_dtype(const Operand& a, const Operand& b, Call call) {
  constexpr bool compares = std::is_same_v<decltype(F{}(1.0, 1.0)), bool>;
  if (a.array.defined() && b.array.defined()) [[likely]] {
    const DType of_a = a.array.array()->dtype(), of_b = b.array.array()->dtype();
    if (of_a != of_b || (compares && of_a == DType::boolean)) [[unlikely]] {
      DType common = common_dtype(F::name, a.array, b.array, a.where);
      if (compares && common == DType::boolean) common = DType::u8;
      return call(a.array.to(common, a.where), b.array.to(common, a.where));
    }
  }
  return call(a.array, b.array);
}

template <class F>
NDArray binary(const Operand& a, const Operand& b) {
  return in_one_dtype<F>(a, b, [&](const NDArray& x, const NDArray& y) {
    return apply(row_of<F>(), {&x, &y}, {}, {.where = a.where});
  });
}

template <class F>
const Operator& scalar_row_of() {
  const Operator& row = detail::first_use([] { return &Registry::instance().get(F::scalar_name); });
  return row;
}

template <class F>
NDArray with_scalar(const Operand& x, const Scalar& value, bool left = false) {
  constexpr bool compares = std::is_same_v<decltype(F{}(1.0, 1.0)), bool>;
  if (compares && x.array.defined() && is_of(x.array, DType::boolean)) [[unlikely]]
    return with_scalar<F>({x.array.to(DType::u8, x.where), x.where}, value, left);
  return apply(scalar_row_of<F>(), {&x.array}, ScalarAttributes{value, left}, {.where = x.where});
}

template <class F>
NDArray with_parameter(const Operand& x, const Scalar& p) {
  return apply(row_of<F>(), {&x.array}, ScalarAttributes{p}, {.where = x.where});
}

template <class F>
void comparison_infer(Signature& s) {
  s.same_dtypes();
  s.arithmetic();
  s.output(s.broadcast(), DType::boolean);
}

template <class F>
void scalar_infer(Signature& s) {
  rows::check_dtype<F>(s);
  const Scalar& value = s.attributes<ScalarAttributes>().value;
  if (!value.fits(s.dtype())) [[unlikely]]
    s.fail("the number " + value.text() + " beside " + std::string(name_of(s.dtype())) + "; use to(dtype)");
}

/// An array of one element, on the device and of the dtype of the array beside it.
NDArray number_beside(const char* name, const Operand& x, const ScalarOperand& value) {
  const Array& beside = x.array.checked(name, x.where);
  if (!value.fits(beside.dtype())) {
    throw ArrayError(
        name, value.where,
        "the number " + value.text() + " beside " + std::string(name_of(beside.dtype())) + "; use to(dtype)");
  }
  if (beside.owned()) return detail::ask_constant(x.array, {{}, beside.dtype(), beside.device()}, value, value.where);
  const DeviceScope on(beside.device());
  return full({}, value, beside.dtype(), value.where);
}

// Gradient i of a broadcasting operator, summed back to its input's shape.
void give(GradientContext& c, int i, const NDArray& gradient) {
  c.set(i, sum_to({gradient, c.where()}, c.input_spec(i).shape));
}

using namespace gradients;

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
struct ParameterRule;
#define SLUICE_WITH_NUMBER(Name, name, dtypes, initial, value, gradient)                                       \
  template <>                                                                                                  \
  struct ParameterRule<functors::Name> {                                                                       \
    static constexpr bool keeps_input = functors::mentions(#gradient, 'x');                                    \
    static NDArray of(const NDArray& g, [[maybe_unused]] const NDArray& x, [[maybe_unused]] const double& p) { \
      return gradient;                                                                                         \
    }                                                                                                          \
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

template <class F>
void parameter_gradient(GradientContext& c) {
  using Rule = ParameterRule<F>;
  const NDArray& g = c.gradient();
  c.set(0, Rule::of(g, Rule::keeps_input ? c.input(0) : g, c.attributes().get<ScalarAttributes>().value.as<double>()));
}

}  // namespace

std::vector<NDArray> builtin::in_one_dtype(const char* name, std::span<const NDArray*> inputs,
                                           const std::source_location& where) {
  DType common = inputs[0]->checked(name, where).dtype();
  bool differ = false;
  for (const NDArray* x : inputs.subspan(1)) {
    const DType dtype = x->checked(name, where).dtype();
    differ = differ || dtype != common;
    const std::optional<DType> both = promote(common, dtype);
    if (!both) refuse_dtypes(name, common, dtype, where);
    common = *both;
  }
  std::vector<NDArray> converted;
  if (!differ) return converted;
  converted.reserve(inputs.size());
  for (const NDArray*& x : inputs) {
    if (!is_of(*x, common)) x = &converted.emplace_back(x->to(common, where));
  }
  return converted;
}

NDArray builtin::narrowed(const char* name, const Operand& y, DType dtype) {
  const DType given = y.array.checked(name, y.where).dtype();
  if (given == dtype) return y.array;
  if (promote(dtype, given) != dtype) {
    throw ArrayError(name, y.where,
                     "a write of " + std::string(name_of(given)) + " to an array of " + std::string(name_of(dtype)) +
                         ", which it would have to widen; use to(dtype)");
  }
  return y.array.to(dtype, y.where);
}

NDArray builtin::relu_gradient(GradientContext& c) {
  if (c.create_graph()) return functors::Relu::gradient_of(c.gradient(), c.output());
  const Operator& row = detail::first_use([] { return &Registry::instance().get(functors::Relu::grad_name); });
  return apply(row, {&c.gradient(), &c.output()}, {}, {.where = c.where()});
}

void builtin::add_elementwise_rows(Registry& registry) {
  functors::Unary::each([&]<class F>() { rows::add_unary<F>(registry); });
  functors::Predicate::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = [](Signature& s) {
        rows::check_dtype<F>(s);
        s.output(s.shape(0), DType::boolean);
      };
    });
  });
  functors::WithNumber::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), s.dtype());
      };
      op.gradient = parameter_gradient<F>;
      if (ParameterRule<F>::keeps_input) op.needs = {needs::input(0)};
    });
  });
  functors::Binary::each([&]<class F>() {
    constexpr bool bits = F::takes == functors::DTypes::bits;
    add_operator(registry, F::name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = rows::infer_elementwise<F>;
      op.place = [](Placing& p) {  // quotients of integers are rounded
        p.elementwise();
        if (rows::linearity<F> != Linear::first || is_floating(p.dtype(0))) p.linear(rows::linearity<F>);
      };
      if (bits) return;
      op.gradient = binary_gradient<F>;
      op.needs = {needs_of<F>(0), needs_of<F>(1)};
    });
    add_operator(registry, F::scalar_name, [](Operator& op) {
      op.shown = F::name;
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), s.dtype());
      };
      op.place = [](Placing& p) {  // a sum times a number, or over it; not a sum and a number
        constexpr Linear way = rows::linearity<F>;
        p.elementwise();
        const bool over = way == Linear::first && !p.attributes<ScalarAttributes>().left && is_floating(p.dtype(0));
        if (way == Linear::each || over) p.linear(Linear::together);
      };
      if (bits) return;
      op.gradient = scalar_gradient<F>;
      if (scalar_keeps<F>()) op.needs = {needs::input(0)};
    });
  });
  functors::Comparison::each([&]<class F>() {
    add_operator(registry, F::name, [](Operator& op) {
      op.min_inputs = op.max_inputs = 2;
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = comparison_infer<F>;
    });
    add_operator(registry, F::scalar_name, [](Operator& op) {
      op.shown = F::name;
      op.elementwise = true;
      op.cost = costs::each_output<>;
      op.infer = [](Signature& s) {
        scalar_infer<F>(s);
        s.output(s.shape(0), DType::boolean);
      };
    });
  });
  add_operator(registry, "where", [](Operator& op) {
    op.cost = costs::each_output<>;
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
#define SLUICE_PREDICATE(Name, name, ...) \
  NDArray name(const Operand& x) { return predicate<functors::Name>(x); }
#define SLUICE_WITH_NUMBER(Name, name, ...) \
  NDArray name(const Operand& x, const ScalarOperand& p) { return with_parameter<functors::Name>(x, p); }
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise_table.inc"

NDArray where(const Operand& condition, const Operand& a, const Operand& b) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("where"); });
  if (a.array.defined() && b.array.defined() && !is_of(a.array, b.array.array()->dtype())) [[unlikely]] {
    const detail::Called called("where", condition.where);
    const DType common = common_dtype("where", a.array, b.array, condition.where);
    return where(condition, {a.array.to(common, a.where), a.where}, {b.array.to(common, b.where), b.where});
  }
  return apply(row, {&condition.array, &a.array, &b.array}, {}, {.where = condition.where});
}

NDArray where(const Operand& condition, const Operand& a, const ScalarOperand& b) {
  const detail::Called called("where", condition.where);
  return where(condition, a, {number_beside("where", a, b), b.where});
}
NDArray where(const Operand& condition, const ScalarOperand& a, const Operand& b) {
  const detail::Called called("where", condition.where);
  return where(condition, {number_beside("where", b, a), a.where}, b);
}

namespace {

template <class F>
NDArray& in_place(NDArray& x, const Operand& y) {
  if (x.defined() && y.array.defined() && !is_of(y.array, x.array()->dtype())) [[unlikely]]
    return in_place<F>(x, {builtin::narrowed(F::name, y, x.array()->dtype()), y.where});
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
NDArray& NDArray::operator&=(const Operand& y) { return in_place<functors::BitwiseAnd>(*this, y); }
NDArray& NDArray::operator|=(const Operand& y) { return in_place<functors::BitwiseOr>(*this, y); }
NDArray& NDArray::operator^=(const Operand& y) { return in_place<functors::BitwiseXor>(*this, y); }
NDArray& NDArray::operator&=(const ScalarOperand& y) { return in_place<functors::BitwiseAnd>(*this, y); }
NDArray& NDArray::operator|=(const ScalarOperand& y) { return in_place<functors::BitwiseOr>(*this, y); }
NDArray& NDArray::operator^=(const ScalarOperand& y) { return in_place<functors::BitwiseXor>(*this, y); }

}  // namespace sluice
