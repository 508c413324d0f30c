// Rows and functions that update arrays in place: optimiser steps and their gate, accumulation; and add_n.
#include "sluice/operators/optimizer_steps.h"

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"

namespace sluice {
namespace {

/// For each gradient the parameter and `states` arrays like it; with `counts`, and a counter of steps.
void infer_steps(Signature& s, int states, bool counts) {
  const bool gated = s.inputs() > 1 && s.dtype(s.inputs() - 1) == DType::u8;
  const int gradients = s.inputs() - gated;
  if (gated && s.shape(gradients).count() != 1) s.fail("a gate has one element");
  s.floating();
  for (int i = 0; i < gradients; ++i) {
    if (s.dtype(i) != s.dtype()) s.fail("gradients of different dtypes");
    for (int k = 0; k <= states; ++k) s.output(s.shape(i), s.dtype());
    if (counts) s.output({}, DType::i64);
  }
}

template <int states>
void step_row(Operator& op) {
  op.max_inputs = Operator::kAnyNumber;
  op.infer = [](Signature& s) { infer_steps(s, states, false); };
}

void infer_terms(Signature& s) {
  s.same_dtypes();
  s.sums();
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
  add_operator(registry, "sgd_step", step_row<0>);
  add_operator(registry, "sgd_momentum_step", step_row<1>);
  add_operator(registry, "adam_step", [](Operator& op) {
    op.max_inputs = Operator::kAnyNumber;
    op.infer = [](Signature& s) { infer_steps(s, 2, s.attributes<AdamStep>().step == 0); };
  });
  add_operator(registry, "gate", [](Operator& op) {
    op.max_inputs = Operator::kAnyNumber;
    op.key = -1;
    op.infer = [](Signature& s) { s.output({1}, DType::u8); };
  });
  add_operator(registry, "add_n", [](Operator& op) {
    op.max_inputs = Operator::kAnyNumber;
    op.elementwise = true;
    op.infer = infer_terms;
    op.gradient = [](GradientContext& c) {
      for (int i = 0; i < c.inputs(); ++i) {
        if (c.wanted(i)) c.set(i, c.gradient());
      }
    };
  });
  add_operator(registry, "accumulate", [](Operator& op) {
    op.max_inputs = Operator::kAnyNumber;
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
  apply_all(
      v.defined() ? with_momentum : plain, inputs, SgdAttributes{lr, momentum, weight_decay},
      {.where = gradient.where, .into = std::span(targets).first(v.defined() ? 2 : 1), .updates = Updates::all()});
}

void adam_step(const NDArray& w, const NDArray& m, const NDArray& v, const Operand& gradient, const AdamStep& step) {
  const Unrecorded scope;
  static const Operator& row = Registry::instance().get("adam_step");
  const NDArray* inputs[] = {&gradient.array};
  const NDArray targets[] = {w, m, v};
  apply_all(row, inputs, step, {.where = gradient.where, .into = targets, .updates = Updates::all()});
}

void accumulate(const NDArray& target, const NDArrays& terms, std::source_location where) {
  target.checked("accumulate", where);
  if (terms.empty()) return;
  const Unrecorded scope;
  static const Operator& row = Registry::instance().get("accumulate");
  apply_all(row, pointers(terms), {}, {.where = where, .into = std::span(&target, 1), .updates = Updates::all()});
}

NDArray add_n(const NDArrays& terms, std::source_location where) {
  if (terms.empty()) throw ArrayError("add_n", where, "no terms");
  if (terms.size() == 1) {
    terms[0].checked("add_n", where);
    return terms[0].copy(where);
  }
  static const Operator& row = Registry::instance().get("add_n");
  return apply_all(row, pointers(terms), {}, {.where = where})[0];
}

}  // namespace sluice
