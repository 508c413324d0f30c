// Batch normalisation: a row where there is a kernel for it, and a function made of other operators elsewhere and for a
// batch that is cut over a mesh.
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/normalization.h"
#include "sluice/operators/normalization_parts.h"
#include "sluice/operators/placed.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/operators/placement.h"
#include "sluice/operators/reduction.h"
#include "sluice/operators/shaping.h"

namespace sluice {
namespace {

using namespace builtin;  // NOLINT: normalization_parts.h

// ---- the row

void infer_batch_norm(Signature& s) {
  s.same_dtypes();
  s.floating();
  if (s.shape(0).rank() < 2) s.fail(to_string(s.shape(0)) + " is not (n, channels, ...)");
  const std::int64_t channels = s.shape(0)[1];
  for (int i = 1; i < s.inputs(); ++i) {
    if (!(s.shape(i) == Dims{channels})) s.fail("weight and bias have the shape " + to_string(Dims{channels}));
  }
  s.output(s.shape(0), s.dtype());
  s.output({channels, RowStatistics<float>::kNumbers}, s.dtype());
}

/// The axes of x with the channels first, and the sizes of x so.
struct ChannelsFirst {
  Dims order{1, 0}, shape;
  explicit ChannelsFirst(const Dims& x) : shape{x[1], x[0]} {
    for (int i = 2; i < x.rank(); ++i) {
      order.push_back(i);
      shape.push_back(x[i]);
    }
  }
  /// Each channel is a row; and back.
  NDArray rows(const NDArray& x) const {
    return x.permute(order).reshape({shape[0], ChannelPlanes(x.shape()).of_each()});
  }
  NDArray back(const NDArray& rows) const { return rows.reshape(shape).permute(order); }
};

/// The gradients by operators, for gradients of gradients.
void set_composed_gradients(GradientContext& c) {
  const ChannelsFirst turned(c.input_spec(0).shape);
  const NormalRows rows(turned.rows(c.input(0)), c.output(1), c.attributes().get<BatchNormAttributes>().eps, true,
                        c.where());
  const NDArray g = turned.rows(c.gradient(0));
  if (c.inputs() > 2 && c.wanted(2)) c.set(2, sum(g, 1));
  if (c.inputs() > 1 && c.wanted(1)) c.set(1, sum(g * rows.normal, 1));
  if (!c.wanted(0)) return;
  c.set(0, turned.back(rows.gradient(c.inputs() > 1 ? g * c.input(1).unsqueeze(1) : g)));
}

void batch_norm_gradient(GradientContext& c) {
  if (c.create_graph()) return set_composed_gradients(c);
  const Operator& row = detail::first_use([] { return &Registry::instance().get("batch_norm_grad"); });
  std::vector<const NDArray*> inputs{&c.input(0), &c.output(1), &c.gradient(0)};
  if (c.inputs() > 1) inputs.push_back(&c.input(1));
  const std::vector<NDArray> gradients =
      apply_all(row, inputs, c.attributes().get<BatchNormAttributes>(), {.where = c.where()});
  for (int i = 0; i < c.inputs(); ++i) {
    if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
  }
}

/// The row; null where x's device has no kernel for it.
const Operator* row_for(const NDArray& x) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("batch_norm"); });
  return row.kernel(x.device().kind, x.dtype()) ? &row : nullptr;
}

NDArray inverse_root(const NDArray& variance, double eps) { return reciprocal(sqrt(variance + eps)); }

// ---- without the row

struct Normalised {
  NDArray y, mean, variance;  ///< of each channel
};

Normalised normalised_channels(const NDArray& x, double eps, const std::source_location& where) {
  const ChannelsFirst turned(x.shape());
  const NDArray rows = turned.rows(x);
  const NDArray* const inputs[] = {&rows};
  const std::vector<NDArray> outputs = apply_all(normalizing_row(), inputs, NormalizeAttributes{1, eps, true}, {});
  const NoGrad no_grad;
  return {turned.back(outputs[0]), statistic(outputs[1], x.shape()[1], &RowStatistics<int>::mean, where),
          statistic(outputs[1], x.shape()[1], &RowStatistics<int>::variance, where)};
}

/// Of n elements of each channel, which places of a mesh have parts of: a layout does not change what they are divided
/// by. Sums of elements are added up first, then those of what is left and of its squares: all-reduces of one number
/// and of two for each channel.
Normalised normalised_parts(const NDArray& x, std::int64_t n, double eps) {
  Dims others;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != 1) others.push_back(i);
  }
  const auto average = [&](const NDArray& values, const NDArray& more = {}) {
    NDArray terms = sum(values, others, {.keep = true});
    if (more.defined()) terms = concat({terms, sum(more, others, {.keep = true})}, 0);
    Placements added;
    const Layout layout = layout_of(terms);
    for (int m = 0; m < layout.mesh().axes(); ++m) {
      if (layout.on(m).kind == Placement::Kind::partial) added.emplace_back(layout.mesh().name(m), replicate);
    }
    return reshard(terms, added) * (1 / static_cast<double>(n));
  };
  const NDArray mean = average(x), off = x - mean;
  // With what is left of the mean after its rounding, which is much where a channel lies far from 0.
  const NDArray both = average(off, square(off));
  const NDArray rest = both.narrow(0, 0, 1), variance = both.narrow(0, 1, 2) - square(rest);
  return {(off - rest) * inverse_root(variance, eps), mean + rest, variance};
}

/// By the row, with weight and bias of the dtype of x where they are.
Normalised normalised_by(const Operator& row, const NDArray& x, const NDArray& weight, const NDArray& bias, double eps,
                         const std::source_location& where) {
  std::vector<const NDArray*> inputs{&x};
  for (const NDArray* parameter : {&weight, &bias}) {
    if (parameter->defined()) inputs.push_back(parameter);
  }
  const std::vector<NDArray> outputs = apply_all(row, inputs, BatchNormAttributes{eps}, {});
  const NoGrad no_grad;
  return {outputs[0], statistic(outputs[1], x.shape()[1], &RowStatistics<int>::mean, where),
          statistic(outputs[1], x.shape()[1], &RowStatistics<int>::variance, where)};
}

}  // namespace

void builtin::add_batch_norm_rows(Registry& registry) {
  // Inputs: x (n, channels, ...), and weight, and bias. Outputs: the result, and RowStatistics of each channel.
  add_operator(registry, "batch_norm", [](Operator& op) {
    op.place = [](Placing& p) {
      p.input(0, 1, 'A');
      p.output(0, 1, 'A');
      for (int i = 1; i < p.inputs(); ++i) p.input(i, 0, 'A');
      p.output(1, 0, 'A');
    };
    op.cost = costs::each_output<7>;
    op.max_inputs = 3;
    op.infer = infer_batch_norm;
    const Needs kept = needs::input(0) | needs::input(1) | needs::output(1);
    op.needs = {kept, kept, kept};
    op.joint_gradient = true;
    op.gradient = batch_norm_gradient;
  });
  // Inputs: x, the statistics, the result's gradient, and weight. Outputs: the gradients of x, weight and bias.
  add_operator(registry, "batch_norm_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      for (const int i : {0, 2}) p.input(i, 1, 'A');
      p.input(1, 0, 'A');
      if (p.inputs() > 3) p.input(3, 0, 'A');
      p.output(0, 1, 'A');
      for (const int i : {1, 2}) p.output(i, 0, 'A');
    };
    op.cost = costs::each_output<9>;
    op.min_inputs = 3;
    op.max_inputs = 4;
    op.infer = [](Signature& s) {
      s.same_dtypes();
      if (s.shape(0).rank() < 2) s.fail(to_string(s.shape(0)) + " is not (n, channels, ...)");
      const std::int64_t channels = s.shape(0)[1];
      if (!(s.shape(1) == Dims{channels, RowStatistics<float>::kNumbers})) s.fail("the statistics are another x's");
      if (!(s.shape(2) == s.shape(0))) s.fail("the gradient has another shape than x");
      if (s.inputs() > 3 && !(s.shape(3) == Dims{channels})) s.fail("the weight is not (channels,)");
      s.output(s.shape(0), s.dtype());
      for (int i = 0; i < 2; ++i) s.output({channels}, s.dtype());
    };
  });
}

NDArray batch_norm(const Operand& x, const RunningStatistics& running, const NDArray& weight, const NDArray& bias,
                   const BatchNormOptions& options) {
  const builtin::Composition made("batch_norm", x);
  const NDArray values = wide(made, x.array);
  const Dims& shape = values.shape();
  if (shape.rank() < 2) made.fail(to_string(shape) + " is not (n, channels, ...)");
  const std::int64_t channels = shape[1];
  for (const auto& [what, array] :
       {std::pair("weight", &weight), std::pair("bias", &bias), std::pair("the running mean", &running.mean),
        std::pair("the running variance", &running.variance)}) {
    check_shape_of(made, what, *array, {channels});
  }
  made.require(running.mean.defined() == running.variance.defined(), "needs both running statistics or none");
  NDArray y;
  bool weighted = false;  // y has weight and bias in it
  if (options.training) {
    std::int64_t n = 1;
    bool cut = false;
    for (int i = 0; i < shape.rank(); ++i) {
      if (i == 1) continue;
      n *= shape[i];
      cut = cut || builtin::is_cut(values, i);
    }
    if (n < 2 && channels > 0) made.fail(to_string(shape) + " has fewer than two elements for each channel");
    Normalised normal;
    if (const Operator* row = cut ? nullptr : row_for(values)) {
      // Parameters whose channels are cut where those of x are not would cut the statistics too.
      const auto fits = [&](const NDArray& p) {
        return !p.defined() || (promote(values.dtype(), p.dtype()) == values.dtype() &&
                                (!builtin::is_cut(p, 0) || builtin::is_cut(values, 1)));
      };
      weighted = weight.defined() && fits(weight) && fits(bias);
      const auto given = [&](const NDArray& p) { return weighted && p.defined() ? p.to(values.dtype()) : NDArray(); };
      normal = normalised_by(*row, values, given(weight), given(bias), options.eps, made.where());
    } else {
      normal = cut ? normalised_parts(values, n, options.eps) : normalised_channels(values, options.eps, made.where());
      if (!weight.defined() && !bias.defined()) normal.y = normal.y.contiguous();
    }
    y = normal.y;
    if (running.mean.defined()) {
      const NoGrad no_grad;
      const double part = options.momentum;
      const auto update = [&](const NDArray& kept, const NDArray& batch, double factor) {
        kept.assign(kept * (1 - part) + (batch.detach().reshape({channels}) * (part * factor)).to(kept.dtype()));
      };
      update(running.mean, normal.mean, 1);
      update(running.variance, normal.variance, static_cast<double>(n) / static_cast<double>(n - 1));
    }
  } else {
    made.require(running.mean.defined(), "needs running statistics where it is not trained");
    const NDArray average = by_channel(running.mean, values).to(values.dtype()),
                  variance = by_channel(running.variance, values).to(values.dtype());
    y = (values - average) * inverse_root(variance, options.eps);
  }
  if (weighted) return y.to(x.array.dtype());
  return finished(y, by_channel(weight, values), by_channel(bias, values), x.array.dtype());
}

}  // namespace sluice
