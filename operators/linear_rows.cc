// Products of rows that are in more than one axis, of which one is cut over a mesh. Each place has some rows of each
// matrix then, which it takes for a single axis. The two rows have no kernels: they are made of linear and matmul.
#include "sluice/operators/linear_rows.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/compose.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

void infer_linear_rows(Signature& s) {
  s.same_dtypes();
  s.floating();
  s.rank(1, 2);
  Dims shape = s.shape(0);
  const Dims& weight = s.shape(1);
  if (shape.rank() == 0 || shape.back() != weight[1]) s.fail("x has other columns than weight");
  if (s.inputs() == 3 && !(s.shape(2) == Dims{weight[0]})) s.fail("bias does not fit");
  shape[shape.rank() - 1] = weight[0];
  s.output(shape, s.dtype());
}

void compose_linear_rows(ComposeContext& c) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("linear"); });
  const NDArray &x = c.input(0), rows = builtin::rows_of(x), &weight = c.input(1), bias = c.input_or_none(2);
  const NDArray y = bias.defined() ? apply(row, {&rows, &weight, &bias}, LinearAttributes{})
                                   : apply(row, {&rows, &weight}, LinearAttributes{});
  Dims shape = x.shape();
  shape[shape.rank() - 1] = y.shape()[1];
  c.set(0, y.reshape(shape));
}

/// The product of matrices, of g transposed.
NDArray product_of(const NDArray& g, const NDArray& x, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("matmul"); });
  const NDArray of_g = builtin::rows_of(g), of_x = builtin::rows_of(x);
  return apply(row, {&of_g, &of_x}, MatmulAttributes{true, false}, {.where = where});
}

NDArray weight_row(const NDArray& g, const NDArray& x, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("linear_rows_weight"); });
  return apply(row, {&g, &x}, {}, {.where = where});
}

void linear_rows_gradient(GradientContext& c) {
  const NDArray& g = c.gradient();
  if (c.wanted(0)) c.set(0, builtin::linear_rows(g, c.input(1).transpose(), {}, c.where()));
  if (c.wanted(1)) c.set(1, weight_row(g, c.input(0), c.where()));
  if (c.inputs() < 3 || !c.wanted(2)) return;
  Dims axes;
  for (int i = 0; i + 1 < g.rank(); ++i) axes.push_back(i);
  c.set(2, sum({g, c.where()}, axes));
}

void infer_weight(Signature& s) {
  s.same_dtypes();
  s.floating();
  Dims rows = s.shape(1);
  if (rows.rank() == 0 || s.shape(0).rank() == 0) s.fail("needs rows");
  rows[rows.rank() - 1] = s.shape(0).back();
  if (!(rows == s.shape(0))) s.fail("they differ in more than the last axis");
  s.output({s.shape(0).back(), s.shape(1).back()}, s.dtype());
}

/// It is linear in both: with the gradient for a weight the two are the rows of products again.
void weight_gradient(GradientContext& c) {
  const NDArray& g = c.gradient();
  if (c.wanted(0)) c.set(0, builtin::linear_rows(c.input(1), g, {}, c.where()));
  if (c.wanted(1)) c.set(1, builtin::linear_rows(c.input(0), g.transpose(), {}, c.where()));
}

Cost cost_of_product(const Signature& s, double columns) {
  return costs::of(2 * costs::count(s.shape(0)) * columns, s);
}

}  // namespace

NDArray builtin::rows_of(const NDArray& x) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.shape()[i];
  return x.reshape({rows, x.shape().back()});
}

bool builtin::cut_inside(const NDArray& x) {
  for (int axis = 1; axis + 1 < x.rank(); ++axis) {
    if (is_cut(x, axis)) return true;
  }
  return false;
}

NDArray builtin::linear_rows(const NDArray& x, const NDArray& weight, const NDArray& bias,
                             const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("linear_rows"); });
  if (bias.defined()) return apply(row, {&x, &weight, &bias}, {}, {.where = where});
  return apply(row, {&x, &weight}, {}, {.where = where});
}

NDArray builtin::rows_product(const NDArray& g, const NDArray& x, const std::source_location& where) {
  if (cut_inside(g) || cut_inside(x)) return weight_row(g, x, where);
  return product_of(g, x, where);
}

void builtin::add_linear_rows(Registry& registry) {
  add_operator(registry, "linear_rows", [](Operator& op) {
    op.shown = "linear";
    op.min_inputs = 2;
    op.max_inputs = 3;
    op.place = [](Placing& p) {
      p.letters("...k,nk,n->...n");
      p.adds(ReduceOp::sum);
      if (p.inputs() == 2) p.linear(Linear::each);
    };
    op.infer = infer_linear_rows;
    op.cost = [](const Signature& s) { return cost_of_product(s, static_cast<double>(s.shape(1)[0])); };
    op.needs = {needs::input(1), needs::input(0), Needs()};
    op.gradient = linear_rows_gradient;
    op.compose = compose_linear_rows;
  });
  // g (.., out) and x (.., in): the gradient of the weight (out, in).
  add_operator(registry, "linear_rows_weight", [](Operator& op) {
    op.min_inputs = op.max_inputs = 2;
    op.place = [](Placing& p) {
      p.letters("...n,...k->nk");
      p.adds(ReduceOp::sum);
      p.linear(Linear::each);
    };
    op.infer = infer_weight;
    op.cost = [](const Signature& s) { return cost_of_product(s, static_cast<double>(s.shape(1).back())); };
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = weight_gradient;
    op.compose = [](ComposeContext& c) { c.set(0, product_of(c.input(0), c.input(1), c.where())); };
  });
}

}  // namespace sluice
