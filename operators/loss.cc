// Cross-entropy: softmax and loss in one pass.
#include "sluice/operators/loss.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/shaping.h"

namespace sluice {

namespace {

/// A place's parts: those that it has of the operand or result `of_parts`.
Attributes local_parts(const Attributes& whole, const Layout& of_parts, int rank) {
  auto own = whole.get<ClassPartsAttributes>();
  own.first += of_parts.begin(rank)[0];
  own.here = of_parts.extent(rank)[0];
  return own;
}

void check_parts(Signature& s) {
  const auto& a = s.attributes<ClassPartsAttributes>();
  if (s.dtype(1) != DType::i64) s.fail("labels are i64");
  if (s.shape(0).rank() != 2 || s.shape(1).rank() != 1 || s.shape(0)[0] != s.shape(1)[0]) {
    s.fail("needs logits (n, classes) and labels (n,)");
  }
  if (s.shape(0)[1] != a.begin(a.here) - a.begin(0)) s.fail("logits of other parts of the classes");
}

}  // namespace

void builtin::add_loss_rows(Registry& registry) {
  // Outputs: the loss and the probabilities, which the gradient needs.
  add_operator(registry, "cross_entropy", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("r_,r->,r_");
      p.adds(ReduceOp::sum);
    };
    op.cost = costs::each_input<5>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.floating();
      if (s.dtype(1) != DType::i64) s.fail("labels are i64, i32 or u8, not " + std::string(name_of(s.dtype(1))));
      if (s.shape(0).rank() != 2 || s.shape(1).rank() != 1 || s.shape(0)[0] != s.shape(1)[0] || s.shape(0)[1] < 1) {
        s.fail("needs logits (n, classes) and labels (n,)");
      }
      s.output({}, s.dtype());
      s.output(s.shape(0), s.dtype());
    };
    op.needs = {needs::output(1) | needs::input(1)};
    op.gradient = [](GradientContext& c) {
      const NDArray& p = c.output(1);
      const double scale = c.attributes().get<LossAttributes>().scale;
      NDArray total;
      if (c.has_gradient(0)) {
        if (c.create_graph()) {
          total = (p - one_hot(c.input(1), p.size(1), p.dtype())) * (c.gradient(0) * scale);
        } else {
          const Operator& row = detail::first_use([] { return &Registry::instance().get("cross_entropy_grad"); });
          total = apply(row, {&p, &c.input(1), &c.gradient(0)}, c.attributes(), {.where = c.where()});
        }
      }
      if (c.has_gradient(1)) {
        const NDArray& g = c.gradient(1);
        const NDArray part = p * (g - sum(g * p, -1, {.keep = true}));
        total = total.defined() ? total + part : part;
      }
      c.set(0, total);
    };
  });
  // Labels as i64, 0 for those that are ignored. Another one outside of [0, classes) fails the op.
  add_operator(registry, "class_labels", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("...->..."); };
    op.cost = costs::moves;
    op.infer = [](Signature& s) {
      const DType t = s.dtype();
      if (t != DType::i64 && t != DType::i32 && t != DType::u8) {
        s.fail("labels are i64, i32 or u8, not " + std::string(name_of(t)));
      }
      s.output(s.shape(0), DType::i64);
    };
  });
  // Numbers of each row and part of the classes, (parts, rows, 2 or 3): the logarithm of the sum of exp(logits), the
  // label's logit (0 if it is in another part), and the sum of the logits. So the cross-entropy of logits that are cut
  // by classes takes one gather of these. They are f64: the loss is a difference of the first two, and a rounding of
  // a large logit would be much of it.
  add_operator(registry, "class_parts", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("rv,r->_r_");
      p.output_parts(0, 0, 'v');
      p.local([](const Attributes& whole, const PlacedCall& placed, int rank) {
        return local_parts(whole, placed.outputs[0], rank);
      });
    };
    op.cost = costs::each_input<4>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) {
      s.floating();
      check_parts(s);
      const auto& a = s.attributes<ClassPartsAttributes>();
      if (a.numbers != 2 && a.numbers != 3) s.fail("two or three numbers of a row");
      s.output({a.here, s.shape(0)[0], a.numbers}, DType::f64);
    };
    op.needs = {needs::input(0) | needs::input(1) | needs::output(0)};
    op.gradient = [](GradientContext& c) {
      if (c.create_graph()) {
        throw ArrayError("class_parts", c.where(),
                         "the gradient of a cross-entropy over classes that are cut has no gradient: reshard the "
                         "logits first");
      }
      const Operator& row = detail::first_use([] { return &Registry::instance().get("class_parts_grad"); });
      c.set(0,
            apply(row, {&c.input(0), &c.input(1), &c.output(0), &c.gradient()}, c.attributes(), {.where = c.where()}));
    };
  });
  add_operator(registry, "class_parts_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("rv,r,_r_,_r_->rv");
      p.input_parts(2, 0, 'v');
      p.input_parts(3, 0, 'v');
      p.local([](const Attributes& whole, const PlacedCall& placed, int rank) {
        return local_parts(whole, placed.inputs[2], rank);
      });
    };
    op.cost = costs::each_output<4>;
    op.min_inputs = op.max_inputs = 4;
    op.infer = [](Signature& s) {
      s.floating();
      check_parts(s);
      if (s.dtype(2) != DType::f64 || s.dtype(3) != DType::f64) s.fail("numbers and their gradients are f64");
      s.output(s.shape(0), s.dtype());
    };
  });
  // (probabilities - one_hot(labels)) * scale * g.
  add_operator(registry, "cross_entropy_grad", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("r_,r,->r_"); };
    op.cost = costs::each_output<3>;
    op.min_inputs = op.max_inputs = 3;
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
  });
}

NDArray cross_entropy(const Operand& logits, const Operand& labels, double divisor) {
  logits.array.checked("cross_entropy", logits.where);
  const DType t = labels.array.checked("cross_entropy", logits.where).dtype();
  if (logits.array.rank() > 2 || builtin::is_cut(logits.array, 1))
    return cross_entropy(logits, labels, CrossEntropyOptions{.divisor = divisor});
  const NDArray wide = t == DType::i32 || t == DType::u8 ? labels.array.to(DType::i64, labels.where) : labels.array;
  const double rows = logits.array.rank() > 0 ? static_cast<double>(logits.array.shape()[0]) : 1;
  const Operator& row = detail::first_use([] { return &Registry::instance().get("cross_entropy"); });
  return apply(row, {&logits.array, &wide}, LossAttributes{1 / (divisor != 0 ? divisor : rows)},
               {.where = logits.where});
}

}  // namespace sluice
