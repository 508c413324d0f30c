// Rows and functions of products: matmul, linear.
#include "sluice/operators/linear_algebra.h"

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

void infer_matmul(Signature& s) {
  s.same_dtypes();
  s.sums();
  s.rank(0, 2);
  s.rank(1, 2);
  const auto& [ta, tb] = s.attributes<MatmulAttributes>();
  if (s.shape(0)[ta ? 0 : 1] != s.shape(1)[tb ? 1 : 0]) {
    s.fail(ta || tb ? std::string("inner sizes differ (") + (ta ? "a" : "") + (ta && tb ? ", " : "") + (tb ? "b" : "") +
                          " transposed)"
                    : "inner sizes differ");
  }
  s.output({s.shape(0)[ta ? 1 : 0], s.shape(1)[tb ? 0 : 1]}, s.dtype());
}

void matmul_gradient(GradientContext& c) {
  const auto [ta, tb] = c.attributes().get<MatmulAttributes>();
  const Operand g(c.gradient(), c.where());
  if (c.wanted(0)) c.set(0, ta ? matmul({c.input(1), c.where()}, g, tb, true) : matmul(g, c.input(1), false, !tb));
  if (c.wanted(1)) c.set(1, tb ? matmul(g, c.input(0), true, ta) : matmul({c.input(0), c.where()}, g, !ta, false));
}

void infer_linear(Signature& s) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 2);
  s.rank(1, 2);
  if (s.shape(0)[1] != s.shape(1)[1])
    s.fail("x has " + std::to_string(s.shape(0)[1]) + " columns, weight " + std::to_string(s.shape(1)[1]));
  if (s.inputs() == 3 && !(s.shape(2) == Dims{s.shape(1)[0]})) s.fail("bias does not fit");
  s.output({s.shape(0)[0], s.shape(1)[0]}, s.dtype());
}

template <bool with_relu>
void linear_gradient(GradientContext& c) {
  NDArray g = c.gradient();
  if constexpr (with_relu) {
    g = builtin::relu_gradient(c);
  }
  if (c.wanted(0)) c.set(0, matmul({g, c.where()}, c.input(1)));
  if (c.wanted(1)) c.set(1, matmul({g, c.where()}, c.input(0), true, false));
  if (c.inputs() == 3 && c.wanted(2)) c.set(2, sum({g, c.where()}, 0));
}

template <bool with_relu>
void linear_row(Operator& op) {
  op.min_inputs = 2;
  op.max_inputs = 3;
  op.infer = infer_linear;
  const Needs y = with_relu ? needs::output() : Needs();
  op.needs = {needs::input(1) | y, needs::input(0) | y, y};
  op.gradient = linear_gradient<with_relu>;
}

}  // namespace

void builtin::add_matrix_rows(Registry& registry) {
  add_operator(registry, "matmul", [](Operator& op) {
    op.min_inputs = op.max_inputs = 2;
    op.infer = infer_matmul;
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = matmul_gradient;
  });
  add_operator(registry, "linear", linear_row<false>);
  add_operator(registry, "linear_relu", linear_row<true>);
}

NDArray matmul(const Operand& a, const Operand& b, bool trans_a, bool trans_b) {
  static const Operator& row = Registry::instance().get("matmul");
  return apply(row, {&a.array, &b.array}, MatmulAttributes{trans_a, trans_b}, {.where = a.where});
}

NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias, bool relu) {
  static const Operator& plain = Registry::instance().get("linear");
  static const Operator& with_relu = Registry::instance().get("linear_relu");
  const Operator& row = relu ? with_relu : plain;
  if (bias.defined()) return apply(row, {&x.array, &weight.array, &bias}, LinearAttributes{relu}, {.where = x.where});
  return apply(row, {&x.array, &weight.array}, LinearAttributes{relu}, {.where = x.where});
}

}  // namespace sluice
