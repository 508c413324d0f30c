// Rows and functions that update arrays in place: optimiser steps, accumulation; and add_n.
#include "sluice/operators/optimizer_steps.h"

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"

namespace sluice {
namespace {

template <int outputs>
void step_row(Operator& op) {
  op.infer = [](Signature& s) {
    s.floating();
    for (int i = 0; i < outputs; ++i) s.output(s.shape(0), s.dtype());
  };
}

void infer_terms(Signature& s) {
  s.same_dtypes();
  s.arithmetic();
  for (int i = 1; i < s.inputs(); ++i) {
    if (!(s.shape(i) == s.shape(0))) s.fail("shapes differ");
  }
  s.output(s.shape(0), s.dtype());
}

std::vector<const NDArray*> pointers(std::span<const NDArray> arrays) {
  std::vector<const NDArray*> list;
  for (const NDArray& x : arrays) list.push_back(&x);
  return list;
}

/// Updates are not recorded: what they overwrite is nobody's function.
class Unrecorded : ScopeGuard {
 public:
  Unrecorded() { current_scope().flags |= kNoGradFlag; }
};

}  // namespace

void builtin::add_optimizer_rows(Registry& registry) {
  add_operator(registry, "sgd_step", step_row<1>);
  add_operator(registry, "sgd_momentum_step", step_row<2>);
  add_operator(registry, "adam_step", step_row<3>);
  add_operator(registry, "add_n", [](Operator& op) {
    op.max_inputs = 1 << 16;
    op.elementwise = true;
    op.infer = infer_terms;
    op.gradient = [](GradientContext& c) {
      for (int i = 0; i < c.inputs(); ++i) {
        if (c.wanted(i)) c.set(i, c.gradient());
      }
    };
  });
  add_operator(registry, "accumulate", [](Operator& op) {
    op.max_inputs = 1 << 16;
    op.elementwise = true;
    op.infer = infer_terms;
  });
}

void sgd_step(const NDArray& w, const NDArray& v, const Operand& gradient, double lr, double momentum,
              double weight_decay) {
  const Unrecorded scope;
  static const Operator& plain = Registry::instance().get("sgd_step");
  static const Operator& with_momentum = Registry::instance().get("sgd_momentum_step");
  const NDArray* inputs[] = {&gradient.array};
  const NDArray targets[] = {w, v};
  apply_all(v ? with_momentum : plain, inputs, SgdAttributes{lr, momentum, weight_decay},
            {.where = gradient.where, .into = std::span(targets).first(v ? 2 : 1), .updates = v ? 3U : 1U});
}

void adam_step(const NDArray& w, const NDArray& m, const NDArray& v, const Operand& gradient, const AdamStep& step) {
  const Unrecorded scope;
  static const Operator& row = Registry::instance().get("adam_step");
  const NDArray* inputs[] = {&gradient.array};
  const NDArray targets[] = {w, m, v};
  apply_all(row, inputs, step, {.where = gradient.where, .into = targets, .updates = 7});
}

void accumulate(const NDArray& target, std::span<const NDArray> terms, std::source_location where) {
  if (terms.empty()) return;
  const Unrecorded scope;
  static const Operator& row = Registry::instance().get("accumulate");
  apply_all(row, pointers(terms), {}, {.where = where, .into = std::span(&target, 1), .updates = 1});
}

NDArray add_n(std::span<const NDArray> terms, std::source_location where) {
  if (terms.empty()) throw ArrayError("add_n", where, "no terms");
  if (terms.size() == 1) return terms[0];
  static const Operator& row = Registry::instance().get("add_n");
  return apply_all(row, pointers(terms), {}, {.where = where})[0];
}

}  // namespace sluice
