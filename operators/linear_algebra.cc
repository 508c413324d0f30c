// Rows and functions of products: matmul, linear. einsum is in einsum.cc.
#include "sluice/operators/linear_algebra.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/batches.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/fused_relu.h"
#include "sluice/operators/linear_rows.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

void check_inner(Signature& s, std::int64_t of_a, std::int64_t of_b) {
  if (of_a == of_b) return;
  const auto& [ta, tb] = s.attributes<MatmulAttributes>();
  s.fail(ta || tb ? std::string("inner sizes differ (") + (ta ? "a" : "") + (ta && tb ? ", " : "") + (tb ? "b" : "") +
                        " transposed)"
                  : "inner sizes differ");
}

void infer_matmul(Signature& s) {
  s.same_dtypes();
  s.sums();
  s.rank(0, 2);
  s.rank(1, 2);
  const auto& [ta, tb] = s.attributes<MatmulAttributes>();
  check_inner(s, s.shape(0)[ta ? 0 : 1], s.shape(1)[tb ? 1 : 0]);
  s.output({s.shape(0)[ta ? 1 : 0], s.shape(1)[tb ? 0 : 1]}, s.dtype());
}

void infer_batch_matmul(Signature& s) {
  s.same_dtypes();
  s.sums();
  const auto& [ta, tb] = s.attributes<MatmulAttributes>();
  const Dims &a = s.shape(0), &b = s.shape(1);
  if (a.rank() < 2 || b.rank() < 2) s.fail("needs matrices");
  check_inner(s, a[a.rank() - (ta ? 2 : 1)], b[b.rank() - (tb ? 1 : 2)]);
  const int rank = std::max(a.rank(), b.rank());
  Dims y;
  for (int i = 0; i < rank - 2; ++i) {
    const int at_a = i - (rank - a.rank()), at_b = i - (rank - b.rank());
    const std::int64_t of_a = at_a < 0 ? 1 : a[at_a], of_b = at_b < 0 ? 1 : b[at_b];
    if (of_a != of_b && of_a != 1 && of_b != 1) s.fail("batches do not broadcast");
    y.push_back(of_a == 1 ? of_b : of_a);
  }
  y.push_back(a[a.rank() - (ta ? 1 : 2)]);
  y.push_back(b[b.rank() - (tb ? 2 : 1)]);
  s.output(y, s.dtype());
}

/// An operand that was broadcast gets the sum.
void matmul_gradient(GradientContext& c) {
  const auto [ta, tb] = c.attributes().get<MatmulAttributes>();
  const Operand g(c.gradient(), c.where());
  const auto give = [&](int i, const NDArray& gradient) {
    c.set(i, sum_to({gradient, c.where()}, c.input_spec(i).shape));
  };
  if (c.wanted(0))
    give(0, ta ? matmul({c.input(1), c.where()}, g, {.transpose_a = tb, .transpose_b = true})
               : matmul(g, c.input(1), {.transpose_b = !tb}));
  if (c.wanted(1))
    give(1, tb ? matmul(g, c.input(0), {.transpose_a = true, .transpose_b = ta})
               : matmul({c.input(0), c.where()}, g, {.transpose_a = !ta}));
}

void place_product(Placing& p) {
  const auto& a = p.attributes<MatmulAttributes>();
  const Dims &x = p.shape(0), &y = p.shape(1), &out = p.output_shape();
  constexpr const char* kLetters[2][2] = {{"...mk,...kn->...mn", "...mk,...nk->...mn"},
                                          {"...km,...kn->...mn", "...km,...nk->...mn"}};
  p.letters(kLetters[a.transpose_a][a.transpose_b]);
  for (int i = 0; i < 2; ++i) {  // stacks broadcast
    const Dims& shape = i == 0 ? x : y;
    for (int k = 0; k + 2 < shape.rank(); ++k) {
      if (shape[k] != out[out.rank() - shape.rank() + k]) p.input(i, k, 0);
    }
  }
  p.adds(ReduceOp::sum);
  p.linear(Linear::each);
}

Cost matmul_cost(const Signature& s) {
  const Dims& a = s.shape(0);
  const std::int64_t k = a[a.rank() - (s.attributes<MatmulAttributes>().transpose_a ? 2 : 1)];
  return costs::of(2 * static_cast<double>(k) * costs::count(s.outputs()[0].shape), s);
}

Cost linear_cost(const Signature& s) {
  const double terms = 2 * static_cast<double>(s.shape(1)[1]) + (s.inputs() == 3 ? 1 : 0);
  return costs::of(terms * costs::count(s.outputs()[0].shape), s);
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
  const NDArray& g = with_relu ? c.common(builtin::relu_gradient) : c.gradient();
  if (c.wanted(0)) c.set(0, matmul({g, c.where()}, c.input(1)));
  if (c.wanted(1)) c.set(1, matmul({g, c.where()}, c.input(0), {.transpose_a = true}));
  if (c.inputs() == 3 && c.wanted(2)) c.set(2, sum({g, c.where()}, 0));
}

template <bool with_relu>
void linear_row(Operator& op) {
  op.shown = "linear";
  op.min_inputs = 2;
  op.max_inputs = 3;
  op.place = [](Placing& p) {
    p.letters(with_relu ? "m_,n_,n->mn" : "mk,nk,n->mn");
    if (!with_relu) p.adds(ReduceOp::sum);
    if (!with_relu && p.inputs() == 2) p.linear(Linear::each);
  };
  op.infer = infer_linear;
  op.cost = linear_cost;
  const Needs y = with_relu ? needs::output() : Needs();
  op.needs = {needs::input(1) | y, needs::input(0) | y, y};
  op.common_needs = y;
  op.gradient = linear_gradient<with_relu>;
}

}  // namespace

void builtin::add_matrix_rows(Registry& registry) {
  add_operator(registry, "matmul", [](Operator& op) {
    op.place = place_product;
    op.cost = matmul_cost;
    op.min_inputs = op.max_inputs = 2;
    op.infer = infer_matmul;
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = matmul_gradient;
  });
  // Stacks of matrices (..., m, k) x (..., k, n), which broadcast.
  add_operator(registry, "batch_matmul", [](Operator& op) {
    op.place = place_product;
    op.cost = matmul_cost;
    op.min_inputs = op.max_inputs = 2;
    op.infer = infer_batch_matmul;
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = matmul_gradient;
  });
  add_operator(registry, "linear", linear_row<false>);
  add_operator(registry, "linear_relu", linear_row<true>);
  add_linear_rows(registry);
}

namespace {

/// matmul where an operand is no matrix.
NDArray matmul_of_any(const Operand& a, const Operand& b, const MatmulOptions& options) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("batch_matmul"); });
  const builtin::Composition made("matmul", a);
  b.array.checked("matmul", made.where());
  made.require(a.array.rank() > 0 && b.array.rank() > 0, "a scalar is no matrix; use *");
  const bool from_row = a.array.rank() == 1, to_column = b.array.rank() == 1;
  const NDArray x = from_row ? a.array.unsqueeze(0) : a.array, y = to_column ? b.array.unsqueeze(1) : b.array;
  const bool ta = options.transpose_a && !from_row, tb = options.transpose_b && !to_column;
  NDArray product;
  if (x.rank() == 2 && y.rank() == 2) {
    product = matmul(x, y, {.transpose_a = ta, .transpose_b = tb});
  } else if (y.rank() == 2 && !ta && is_floating(x.dtype()) && builtin::cut_inside(x)) {
    const NDArray weight = tb ? y : y.transpose();
    product = builtin::linear_rows(x, weight, {}, made.where());
  } else if (y.rank() == 2 && !ta && x.is_contiguous()) {  // one product of a taller matrix
    Dims shape = x.shape();
    const std::int64_t k = shape.back();
    std::int64_t rows = 1;
    for (int i = 0; i < shape.rank() - 1; ++i) rows *= shape[i];
    if (k != y.shape()[tb ? 1 : 0])
      made.fail(to_string(x.shape()) + " x " + to_string(y.shape()) + ": inner sizes differ");
    shape[shape.rank() - 1] = y.shape()[tb ? 0 : 1];
    product = matmul(x.reshape({rows, k}), y, {.transpose_b = tb}).reshape(shape);
  } else {
    product = apply(row, {&x, &y}, MatmulAttributes{ta, tb}, {.where = a.where});
  }
  if (to_column) product = product.squeeze(-1);
  return from_row ? product.squeeze(to_column ? -1 : -2) : product;
}

}  // namespace

NDArray matmul(const Operand& a, const Operand& b, const MatmulOptions& options) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("matmul"); });
  if (a.array.rank() != 2 || b.array.rank() != 2) [[unlikely]]
    return matmul_of_any(a, b, options);
  return apply(row, {&a.array, &b.array}, MatmulAttributes{options.transpose_a, options.transpose_b},
               {.where = a.where});
}

NDArray dot(const Operand& a, const Operand& b) {
  const builtin::Composition made("dot", a);
  b.array.checked("dot", made.where());
  if (a.array.rank() != 1 || !(a.array.shape() == b.array.shape())) {
    made.fail(to_string(a.array.shape()) + " x " + to_string(b.array.shape()) + ": needs two vectors of one size");
  }
  return matmul(a, b);
}

NDArray outer(const Operand& a, const Operand& b) {
  const builtin::Composition made("outer", a);
  b.array.checked("outer", made.where());
  if (a.array.rank() != 1 || b.array.rank() != 1) {
    made.fail(to_string(a.array.shape()) + " x " + to_string(b.array.shape()) + ": needs two vectors");
  }
  return mul(a.array.unsqueeze(1), b);
}

NDArray linear(const Operand& x, const Operand& weight, const NDArray& bias, const LinearOptions& options) {
  const Operator& plain = detail::first_use([] { return &Registry::instance().get("linear"); });
  const Operator& with_relu = detail::first_use([] { return &Registry::instance().get("linear_relu"); });
  const int rank = x.array.rank();
  if (rank != 2 && rank != 0) {  // the rows of all axes before the last
    const builtin::Composition made("linear", x.where);
    Dims shape = x.array.shape();
    weight.array.checked("linear", made.where());
    const Dims& w = weight.array.shape();
    if (w.rank() == 2 && w[1] != shape[rank - 1]) {
      made.fail(to_string(shape) + " x " + to_string(w) + ": x has " + std::to_string(shape[rank - 1]) +
                " columns, weight " + std::to_string(w[1]));
    }
    if (builtin::cut_inside(x.array)) {
      const NDArray y = builtin::linear_rows(x.array, weight.array, bias, made.where());
      return options.relu ? relu(y) : y;
    }
    const NDArray y = linear(builtin::rows_of(x.array), weight, bias, options);
    shape[rank - 1] = y.shape()[1];
    return y.reshape(shape);
  }
  const Operator& row = options.relu ? with_relu : plain;
  const LinearAttributes attributes{options.relu};
  if (bias.defined()) return apply(row, {&x.array, &weight.array, &bias}, attributes, {.where = x.where});
  return apply(row, {&x.array, &weight.array}, attributes, {.where = x.where});
}

}  // namespace sluice
