#include "sluice/operators/add_n.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/placement.h"

namespace sluice {
namespace {

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

}  // namespace

void builtin::add_add_n_rows(Registry& registry) {
  add_operator(registry, "add_n", [](Operator& op) {
    op.place = place_linear<Linear::together>;
    op.cost = costs::each_of_all;
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
    op.place = place_linear<Linear::together>;
    op.cost = [](const Signature& s) {
      return Cost{costs::each_of_all(s).flops, costs::moves(s).bytes + costs::bytes_of_outputs(s)};
    };
    op.max_inputs = Operator::kAnyNumber;
    op.elementwise = true;
    op.infer = infer_terms;
  });
}

void accumulate(const NDArray& target, const NDArrays& terms, std::source_location where) {
  target.checked("accumulate", where);
  if (terms.empty()) return;
  const NoGrad no_grad;
  const Operator& row = detail::first_use([] { return &Registry::instance().get("accumulate"); });
  apply_all(row, pointers(terms), {}, {.where = where, .into = std::span(&target, 1), .updates = Updates::all()});
}

NDArray add_n(const NDArrays& terms, std::source_location where) {
  if (terms.empty()) throw ArrayError("add_n", where, "no terms");
  if (terms.size() == 1) {
    terms[0].checked("add_n", where);
    return terms[0].copy(where);
  }
  const Operator& row = detail::first_use([] { return &Registry::instance().get("add_n"); });
  return apply_all(row, pointers(terms), {}, {.where = where})[0];
}

}  // namespace sluice
