// Batch normalisation: a row, and a function made of other operators for a batch that is cut over a mesh.
#include <array>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/compose.h"
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
  s.output({channels, RowStatistics<float>::kNumbers}, wide_of(s.dtype()));
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

/// A row for each channel.
void compose_batch_norm(ComposeContext& c) {
  const ChannelsFirst turned(c.input(0).shape());
  const NDArray rows = turned.rows(c.input(0));
  const NormalizeAttributes a{1, c.attributes<BatchNormAttributes>().eps, true};
  const std::vector<NDArray> outputs = apply_all(normalizing_row(), std::array{&rows}, a, {.where = c.where()});
  NDArray y = outputs[0];
  if (c.inputs() > 1) y = y * c.input(1).unsqueeze(1);
  if (c.inputs() > 2) y = y + c.input(2).unsqueeze(1);
  c.set(0, turned.back(y));
  c.set(1, outputs[1]);
}

void compose_batch_norm_grad(ComposeContext& c) {
  const NDArray &x = c.input(0), &statistics = c.input(1), weight = c.input_or_none(3);
  const DType dtype = x.dtype(), inside = wide_of(dtype);
  const ChannelsFirst turned(x.shape());
  const NormalizeAttributes a{1, c.attributes<BatchNormAttributes>().eps, true};
  const NDArray rows = turned.rows(x).to(inside), g = turned.rows(c.input(2)).to(inside);
  const NDArray of_normal = weight.defined() ? g * weight.to(inside).unsqueeze(1) : g;
  NDArray of_rows, normal;
  if (grad_mode()) {  // by rows that have gradients
    const NormalRows made(rows, statistics, a.eps, true, c.where());
    of_rows = made.gradient(of_normal);
    normal = made.normal;
  } else {
    const Operator& row = detail::first_use([] { return &Registry::instance().get("normalize_rows_grad"); });
    of_rows = apply(row, {&rows, &statistics, &of_normal}, a, {.where = c.where()});
    normal = apply_all(normalizing_row(), std::array{&rows}, a, {.where = c.where()})[0];
  }
  c.set(0, turned.back(of_rows).to(dtype));
  c.set(1, sum(g * normal, 1).to(dtype));
  c.set(2, sum(g, 1).to(dtype));
}

void batch_norm_gradient(GradientContext& c) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("batch_norm_grad"); });
  std::vector<const NDArray*> inputs{&c.input(0), &c.output(1), &c.gradient(0)};
  if (c.inputs() > 1) inputs.push_back(&c.input(1));
  const std::vector<NDArray> gradients = gradient_by(row, inputs, c.attributes(), c);
  for (int i = 0; i < c.inputs(); ++i) {
    if (c.wanted(i)) c.set(i, gradients[static_cast<std::size_t>(i)]);
  }
}

const Operator& batch_norm_row() {
  return detail::first_use([] { return &Registry::instance().get("batch_norm"); });
}

NDArray inverse_root(const NDArray& variance, double eps) { return reciprocal(sqrt(variance + eps)); }

// ---- without the row

struct Normalised {
  NDArray y, mean, variance;  ///< of each channel
};

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
Normalised normalised_by(const NDArray& x, const NDArray& weight, const NDArray& bias, double eps,
                         const std::source_location& where) {
  std::vector<const NDArray*> inputs{&x};
  for (const NDArray* parameter : {&weight, &bias}) {
    if (parameter->defined()) inputs.push_back(parameter);
  }
  const std::vector<NDArray> outputs = apply_all(batch_norm_row(), inputs, BatchNormAttributes{eps}, {});
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
    op.compose = compose_batch_norm;
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
    op.compose = compose_batch_norm_grad;
    op.min_inputs = 3;
    op.max_inputs = 4;
    op.infer = [](Signature& s) {
      for (int i = 2; i < s.inputs(); ++i) {
        if (s.dtype(i) != s.dtype()) s.fail("the gradient or the weight has another dtype than x");
      }
      if (s.dtype(1) != wide_of(s.dtype())) s.fail("the statistics are another x's");
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
    if (!cut) {
      // Parameters whose channels are cut where those of x are not would cut the statistics too.
      const auto fits = [&](const NDArray& p) {
        return !p.defined() || (promote(values.dtype(), p.dtype()) == values.dtype() &&
                                (!builtin::is_cut(p, 0) || builtin::is_cut(values, 1)));
      };
      weighted = weight.defined() && fits(weight) && fits(bias);
      const auto given = [&](const NDArray& p) { return weighted && p.defined() ? p.to(values.dtype()) : NDArray(); };
      normal = normalised_by(values, given(weight), given(bias), options.eps, made.where());
    } else {
      normal = normalised_parts(values, n, options.eps);
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
