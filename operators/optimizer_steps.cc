// Rows and functions of optimiser steps and their gate.
#include "sluice/operators/optimizer_steps.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/costs.h"

namespace sluice {
namespace {

/// For each gradient the parameter and `states` arrays like it; with `counts`, and a counter of steps.
void infer_steps(Signature& s, int states, bool counts) {
  const bool gated = s.inputs() > 1 && s.dtype(s.inputs() - 1) == DType::u8;
  const int gradients = s.inputs() - gated;
  if (gated && s.shape(gradients).count() != 1) s.fail("a gate has one element");
  for (int i = 0; i < gradients; ++i) {
    if (s.dtype(i) != s.dtype()) s.fail("gradients of different dtypes");
    for (int k = 0; k <= states; ++k) s.output(s.shape(i), s.dtype());
    if (counts) s.output({}, DType::i64);
  }
}

template <int states>
void step_row(Operator& op) {
  op.max_inputs = Operator::kAnyNumber;
  op.infer = [](Signature& s) {
    s.floating();
    infer_steps(s, states, false);
  };
  op.cost = costs::each_update<2>;
}

}  // namespace

void builtin::add_optimizer_rows(Registry& registry) {
  add_operator(registry, "sgd_step", step_row<0>);
  add_operator(registry, "sgd_momentum_step", step_row<1>);
  add_operator(registry, "adam_step", [](Operator& op) {
    op.cost = costs::each_update<4>;
    op.max_inputs = Operator::kAnyNumber;
    op.infer = [](Signature& s) {
      s.floating();
      infer_steps(s, 2, s.attributes<AdamStep>().step == 0);
    };
  });
  add_operator(registry, "commit", [](Operator& op) {
    op.cost = costs::each_update<0>;
    op.max_inputs = Operator::kAnyNumber;
    op.infer = [](Signature& s) {
      if (!is_floating(s.dtype()) && s.dtype() != DType::i64) s.fail("takes floating dtypes and i64");
      infer_steps(s, 0, false);
    };
  });
  add_operator(registry, "gate", [](Operator& op) {
    op.cost = costs::each_of_all;
    op.max_inputs = Operator::kAnyNumber;
    op.key = -1;
    op.infer = [](Signature& s) { s.output({1}, DType::u8); };
  });
}

void sgd_step(const NDArray& w, const NDArray& v, const Operand& gradient, double lr, double momentum,
              double weight_decay) {
  const NoGrad no_grad;  // what it overwrites is nobody's function
  const Operator& plain = detail::first_use([] { return &Registry::instance().get("sgd_step"); });
  const Operator& with_momentum = detail::first_use([] { return &Registry::instance().get("sgd_momentum_step"); });
  const NDArray* inputs[] = {&gradient.array};
  const NDArray targets[] = {w, v};
  apply_all(
      v.defined() ? with_momentum : plain, inputs, SgdAttributes{lr, momentum, weight_decay},
      {.where = gradient.where, .into = std::span(targets).first(v.defined() ? 2 : 1), .updates = Updates::all()});
}

void adam_step(const NDArray& w, const NDArray& m, const NDArray& v, const Operand& gradient, const AdamStep& step) {
  const NoGrad no_grad;  // what it overwrites is nobody's function
  const Operator& row = detail::first_use([] { return &Registry::instance().get("adam_step"); });
  const NDArray* inputs[] = {&gradient.array};
  const NDArray targets[] = {w, m, v};
  apply_all(row, inputs, step, {.where = gradient.where, .into = targets, .updates = Updates::all()});
}

}  // namespace sluice
