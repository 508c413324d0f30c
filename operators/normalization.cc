// Normalisation: the row of the last axes with its gradients, and functions made of it and of other operators.
#include "sluice/operators/normalization.h"

#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/in_range.h"
#include "sluice/operators/normalization_parts.h"
#include "sluice/operators/normalize_rows.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/shaping.h"

namespace sluice {

// ---- what is shared with batch_norm.cc

namespace builtin {

const Operator& normalizing_row() {
  return detail::first_use([] { return &Registry::instance().get("normalize_rows"); });
}

NDArray statistic(const NDArray& statistics, std::int64_t rows, int RowStatistics<int>::*number,
                  const std::source_location& where) {
  static constexpr RowStatistics<int> place{0, 1, 2, 3};
  return statistics.reshape({rows, RowStatistics<int>::kNumbers}, where)
      .narrow(1, place.*number, place.*number + 1, where);
}

NormalRows::NormalRows(const NDArray& x, const NDArray& statistics, double eps, bool with_mean,
                       const std::source_location& where)
    : centred(with_mean) {
  const NDArray off = centred ? builtin::less_mean(x, mean(x, 1, {.keep = true}), 1, where) : x;
  // Near 1 before it is squared, by a number that is a constant to the gradients of these gradients.
  const NDArray near = statistic(statistics.detach(where), x.shape()[0], &RowStatistics<int>::scale, where);
  const NDArray close = off * near, rest = reciprocal(sqrt(mean(square(close), 1, {.keep = true}) + near * eps * near));
  scale = near * rest;
  normal = close * rest;
}

NDArray NormalRows::gradient(const NDArray& of_normal) const {
  NDArray inner = of_normal - normal * mean(of_normal * normal, 1, {.keep = true});
  if (centred) inner = inner - mean(of_normal, 1, {.keep = true});
  return scale * inner;
}

DType wide_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void check_floating(const Composition& made, const NDArray& x) {
  if (!is_floating(x.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.dtype())));
}

NDArray wide(const Composition& made, const NDArray& x) {
  check_floating(made, x);
  return x.to(wide_of(x.dtype()));
}

void check_shape_of(const Composition& made, const char* what, const NDArray& x, const Dims& wanted) {
  if (x.defined() && !(x.shape() == wanted)) {
    made.fail(std::string(what) + " has shape " + to_string(x.shape()) + ", not " + to_string(wanted));
  }
}

NDArray finished(NDArray y, const NDArray& weight, const NDArray& bias, DType dtype) {
  if (weight.defined()) y = y * weight;
  if (bias.defined()) y = y + bias;
  return y.to(dtype);
}

NDArray by_channel(const NDArray& parameter, const NDArray& x) {
  if (!parameter.defined()) return parameter;
  Dims shape{parameter.count()};
  for (int i = 2; i < x.rank(); ++i) shape.push_back(1);
  return parameter.reshape(shape);
}

}  // namespace builtin

namespace {

using namespace builtin;  // NOLINT: normalization_parts.h

// ---- the row

void infer_normalize_rows(Signature& s) {
  const auto& a = s.attributes<NormalizeAttributes>();
  const Dims& shape = s.shape(0);
  s.same_dtypes();
  s.floating();
  if (a.axes < 1 || a.axes > shape.rank()) s.fail("has no " + std::to_string(a.axes) + " axes to normalise");
  Dims last, statistics;
  for (int i = 0; i < shape.rank(); ++i) (i < shape.rank() - a.axes ? statistics : last).push_back(shape[i]);
  for (int i = 1; i < s.inputs(); ++i) {
    if (!(s.shape(i) == last)) s.fail("weight and bias have the shape " + to_string(last));
  }
  statistics.push_back(RowStatistics<float>::kNumbers);
  s.output(shape, s.dtype());
  s.output(statistics, wide_of(s.dtype()));
}

/// The axes that are not normalised may be cut: of an input, and of an output unless that is -1.
void place_rows(Placing& p, int input, int output) {
  const int rows = p.shape(0).rank() - p.attributes<NormalizeAttributes>().axes;
  for (int k = 0; k < rows; ++k) {
    p.input(input, k, static_cast<char>('A' + k));
    if (output >= 0) p.output(output, k, static_cast<char>('A' + k));
  }
}

/// Of the bias: over the axes as they are, of which a mesh may cut any, and not all can become one then.
NDArray of_bias(const NDArray& g, int axes) {
  Dims rows;
  for (int i = 0; i < g.rank() - axes; ++i) rows.push_back(i);
  return rows.empty() ? g : sum(g, rows);
}

/// The sum of g (rows, size) over the rows, in the shape of the last axes.
NDArray over_rows(GradientContext& c, const NDArray& g) {
  return sum(g, 0).reshape(c.input_spec(1).shape, c.where()).to(c.input_spec(1).dtype, c.where());
}

/// The gradients by operators.
void set_composed_gradients(GradientContext& c) {
  const auto& a = c.attributes().get<NormalizeAttributes>();
  const Spec& of_x = c.input_spec(0);
  const NormalizedRows s(of_x.shape, a);
  const auto matrix = [&](const NDArray& x) {
    return x.to(wide_of(of_x.dtype), c.where()).reshape({s.rows, s.size}, c.where());
  };
  const bool weighted = c.inputs() > 1;
  if (c.inputs() > 2 && c.wanted(2)) c.set(2, of_bias(c.gradient(0), a.axes));
  if (!c.wanted(0) && !(weighted && c.wanted(1))) return;
  const NDArray g = matrix(c.gradient(0));
  const NormalRows rows(matrix(c.input(0)), c.output(1), a.eps, a.centred, c.where());
  if (weighted && c.wanted(1)) c.set(1, over_rows(c, g * rows.normal));
  if (!c.wanted(0)) return;
  const NDArray of_normal =
      weighted ? g * c.input(1).to(wide_of(of_x.dtype), c.where()).reshape({s.size}, c.where()) : g;
  c.set(0, rows.gradient(of_normal).reshape(of_x.shape, c.where()).to(of_x.dtype, c.where()));
}

void normalize_rows_gradient(GradientContext& c) {
  if (c.create_graph()) return set_composed_gradients(c);
  const auto& a = c.attributes().get<NormalizeAttributes>();
  const Operator& of_rows = detail::first_use([] { return &Registry::instance().get("normalize_rows_grad"); });
  const Operator& of_weight = detail::first_use([] { return &Registry::instance().get("normalize_rows_weight_grad"); });
  const NDArray& g = c.gradient(0);
  const bool bias_wanted = c.inputs() > 2 && c.wanted(2);
  if (c.wanted(0)) {
    std::vector<const NDArray*> inputs{&c.input(0), &c.output(1), &g};
    if (c.inputs() > 1) inputs.push_back(&c.input(1));
    c.set(0, apply_all(of_rows, inputs, a, {.where = c.where()})[0]);
  }
  if (c.inputs() > 1 && c.wanted(1)) {
    const NDArray* const inputs[] = {&c.input(0), &c.output(1), &g};
    const std::vector<NDArray> gradients = apply_all(of_weight, inputs, a, {.where = c.where()});
    c.set(1, gradients[0]);
    if (bias_wanted) c.set(2, gradients[1]);
  } else if (bias_wanted) {
    c.set(2, of_bias(g, a.axes));
  }
}

/// The row. weight and bias have the shape of the last axes and the dtype of x, or are empty; no bias without weight.
NDArray normalize_rows(const NDArray& x, const NDArray& weight, const NDArray& bias, const NormalizeAttributes& a) {
  if (bias.defined()) return apply(normalizing_row(), {&x, &weight, &bias}, a);
  if (weight.defined()) return apply(normalizing_row(), {&x, &weight}, a);
  return apply(normalizing_row(), {&x}, a);
}

// ---- what the functions share

/// The shape of the last axes.
Dims last_axes(const builtin::Composition& made, const NDArray& x, int axes) {
  if (axes < 1 || axes > x.rank()) {
    made.fail(to_string(x.shape()) + " has no " + std::to_string(axes) + " axes to normalise");
  }
  Dims shape;
  for (int i = x.rank() - axes; i < x.rank(); ++i) shape.push_back(x.shape()[i]);
  return shape;
}

/// The last axes of x normalised, then times weight and plus bias, where they are: in one pass, if both can have the
/// dtype of x or that of its statistics.
NDArray normalised(const NDArray& x, const NDArray& weight, const NDArray& bias, const NormalizeAttributes& a) {
  const DType dtype = x.dtype(), inside = wide_of(dtype);
  const auto all_of = [&](auto fits) {
    return (!weight.defined() || fits(weight.dtype())) && (!bias.defined() || fits(bias.dtype()));
  };
  if (weight.defined() || !bias.defined()) {
    if (all_of([&](DType t) { return t == dtype; })) return normalize_rows(x, weight, bias, a);
    if (all_of([&](DType t) { return promote(inside, t) == inside; })) {
      const auto converted = [&](const NDArray& y) { return y.defined() ? y.to(inside) : y; };
      return normalize_rows(x.to(inside), converted(weight), converted(bias), a).to(dtype);
    }
  }
  return finished(normalize_rows(x.to(inside), {}, {}, a), weight, bias, dtype);
}

}  // namespace

void builtin::add_normalization_rows(Registry& registry) {
  // Inputs: x, and weight, and bias. Outputs: the result, and RowStatistics of each row.
  add_operator(registry, "normalize_rows", [](Operator& op) {
    op.place = [](Placing& p) {
      place_rows(p, 0, 0);
      for (int k = 0; k + 1 < p.output_shape(1).rank(); ++k) p.output(1, k, static_cast<char>('A' + k));
    };
    op.cost = costs::each_output<7>;
    op.max_inputs = 3;
    op.infer = infer_normalize_rows;
    const Needs of_weight = needs::input(0) | needs::output(1);
    op.needs = {of_weight | needs::input(1), of_weight, Needs()};
    op.gradient = normalize_rows_gradient;
  });
  // Inputs: x, the statistics, the result's gradient, and weight. Output: the gradient of x.
  add_operator(registry, "normalize_rows_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      for (const int i : {0, 1, 2}) place_rows(p, i, i == 0 ? 0 : -1);
    };
    op.cost = costs::each_output<9>;
    op.min_inputs = 3;
    op.max_inputs = 4;
    op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
  });
  // Inputs: x, the statistics, the result's gradient. Outputs: the gradients of weight and of bias.
  add_operator(registry, "normalize_rows_weight_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      for (const int i : {0, 1, 2}) place_rows(p, i, -1);
      p.adds(ReduceOp::sum);
    };
    op.cost = costs::each_input<5>;
    op.min_inputs = op.max_inputs = 3;
    op.infer = [](Signature& s) {
      const Dims& shape = s.shape(0);
      const int axes = s.attributes<NormalizeAttributes>().axes;
      if (axes > shape.rank()) s.fail("fewer axes than are normalized");
      Dims last;
      for (int i = shape.rank() - axes; i < shape.rank(); ++i) {
        last.push_back(shape[i]);
      }
      s.output(last, s.dtype());
      s.output(last, s.dtype());
    };
  });
  add_batch_norm_rows(registry);
}

NDArray layer_norm(const Operand& x, const NDArray& weight, const NDArray& bias, const LayerNormOptions& options) {
  const builtin::Composition made("layer_norm", x);
  check_floating(made, x.array);
  const Dims last = last_axes(made, x.array, options.axes);
  check_shape_of(made, "weight", weight, last);
  check_shape_of(made, "bias", bias, last);
  return normalised(x.array, weight, bias, {options.axes, options.eps, true});
}

NDArray rms_norm(const Operand& x, const NDArray& weight, const RmsNormOptions& options) {
  const builtin::Composition made("rms_norm", x);
  check_floating(made, x.array);
  check_shape_of(made, "weight", weight, last_axes(made, x.array, options.axes));
  return normalised(x.array, weight, {}, {options.axes, options.eps, false});
}

NDArray group_norm(const Operand& x, std::int64_t groups, const NDArray& weight, const NDArray& bias, double eps) {
  const builtin::Composition made("group_norm", x);
  check_floating(made, x.array);
  const Dims& shape = x.array.shape();
  if (shape.rank() < 2 || groups < 1 || shape[1] % groups != 0) {
    made.fail(to_string(shape) + " is not (n, channels, ...) with channels for " + std::to_string(groups) + " groups");
  }
  check_shape_of(made, "weight", weight, {shape[1]});
  check_shape_of(made, "bias", bias, {shape[1]});
  // What follows on it is rounded once, with it.
  const NDArray values = weight.defined() || bias.defined() ? wide(made, x.array) : x.array;
  std::int64_t size = shape[1] / groups;
  for (int i = 2; i < shape.rank(); ++i) size *= shape[i];
  const NDArray y = normalize_rows(values.reshape({shape[0], groups, size}), {}, {}, {1, eps, true}).reshape(shape);
  return finished(y, by_channel(weight, values), by_channel(bias, values), x.array.dtype());
}

}  // namespace sluice
