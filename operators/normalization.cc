// Normalisation, made of operators.
#include "sluice/operators/normalization.h"

#include "sluice/operators/composition.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

/// x in the dtype in which statistics are computed. Throws for dtypes that are not floating.
NDArray wide(const builtin::Composition& made, const NDArray& x) {
  if (!is_floating(x.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.dtype())));
  return x.dtype() == DType::f64 ? x : x.to(DType::f32);
}

void check_shape_of(const builtin::Composition& made, const char* what, const NDArray& x, const Dims& wanted) {
  if (x.defined() && !(x.shape() == wanted)) {
    made.fail(std::string(what) + " has shape " + to_string(x.shape()) + ", not " + to_string(wanted));
  }
}

/// The shape of the last axes, and their numbers.
struct LastAxes {
  Dims shape, numbers;
  LastAxes(const builtin::Composition& made, const NDArray& x, int axes) {
    if (axes < 1 || axes > x.rank()) {
      made.fail(to_string(x.shape()) + " has no " + std::to_string(axes) + " axes to normalise");
    }
    for (int i = x.rank() - axes; i < x.rank(); ++i) {
      shape.push_back(x.shape()[i]);
      numbers.push_back(i);
    }
  }
};

NDArray inverse_root(const NDArray& variance, double eps) { return reciprocal(sqrt(variance + eps)); }

/// (x - mean) / sqrt(variance + eps) over these axes.
NDArray normalised(const NDArray& x, const Dims& axes, double eps) {
  const NDArray centred = x - mean(x, axes, {.keep = true});
  return centred * inverse_root(mean(square(centred), axes, {.keep = true}), eps);
}

/// y * weight + bias, where they are, in the dtype that the program gave.
NDArray finished(NDArray y, const NDArray& weight, const NDArray& bias, DType dtype) {
  if (weight.defined()) y = y * weight;
  if (bias.defined()) y = y + bias;
  return y.to(dtype);
}

/// (channels,) as x (n, channels, ...) sees it; an empty handle stays empty.
NDArray by_channel(const NDArray& parameter, const NDArray& x) {
  if (!parameter.defined()) return parameter;
  Dims shape{parameter.count()};
  for (int i = 2; i < x.rank(); ++i) shape.push_back(1);
  return parameter.reshape(shape);
}

}  // namespace

NDArray layer_norm(const Operand& x, const NDArray& weight, const NDArray& bias, const LayerNormOptions& options) {
  const builtin::Composition made("layer_norm", x);
  const NDArray values = wide(made, x.array);
  const LastAxes last(made, values, options.axes);
  check_shape_of(made, "weight", weight, last.shape);
  check_shape_of(made, "bias", bias, last.shape);
  return finished(normalised(values, last.numbers, options.eps), weight, bias, x.array.dtype());
}

NDArray rms_norm(const Operand& x, const NDArray& weight, const RmsNormOptions& options) {
  const builtin::Composition made("rms_norm", x);
  const NDArray values = wide(made, x.array);
  const LastAxes last(made, values, options.axes);
  check_shape_of(made, "weight", weight, last.shape);
  const NDArray scale = inverse_root(mean(square(values), last.numbers, {.keep = true}), options.eps);
  return finished(values * scale, weight, {}, x.array.dtype());
}

NDArray group_norm(const Operand& x, std::int64_t groups, const NDArray& weight, const NDArray& bias, double eps) {
  const builtin::Composition made("group_norm", x);
  const NDArray values = wide(made, x.array);
  const Dims& shape = values.shape();
  if (shape.rank() < 2 || groups < 1 || shape[1] % groups != 0) {
    made.fail(to_string(shape) + " is not (n, channels, ...) with channels for " + std::to_string(groups) + " groups");
  }
  check_shape_of(made, "weight", weight, {shape[1]});
  check_shape_of(made, "bias", bias, {shape[1]});
  std::int64_t size = shape[1] / groups;
  for (int i = 2; i < shape.rank(); ++i) size *= shape[i];
  const NDArray y = normalised(values.reshape({shape[0], groups, size}), {2}, eps).reshape(shape);
  return finished(y, by_channel(weight, values), by_channel(bias, values), x.array.dtype());
}

NDArray batch_norm(const Operand& x, const RunningStatistics& running, const NDArray& weight, const NDArray& bias,
                   const BatchNormOptions& options) {
  const builtin::Composition made("batch_norm", x);
  const NDArray values = wide(made, x.array);
  const Dims& shape = values.shape();
  if (shape.rank() < 2) made.fail(to_string(shape) + " is not (n, channels, ...)");
  for (const auto& [what, array] :
       {std::pair("weight", &weight), std::pair("bias", &bias), std::pair("the running mean", &running.mean),
        std::pair("the running variance", &running.variance)}) {
    check_shape_of(made, what, *array, {shape[1]});
  }
  made.require(running.mean.defined() == running.variance.defined(), "needs both running statistics or none");
  NDArray y;
  if (options.training) {
    Dims axes{0};
    for (int i = 2; i < shape.rank(); ++i) axes.push_back(i);
    const std::int64_t n = shape[1] == 0 ? 2 : shape.count() / shape[1];
    if (n < 2) made.fail(to_string(shape) + " has fewer than two elements for each channel");
    const NDArray average = mean(values, axes, {.keep = true}), centred = values - average,
                  variance = mean(square(centred), axes, {.keep = true});
    y = centred * inverse_root(variance, options.eps);
    if (running.mean.defined()) {
      const ScopeGuard scope;
      current_scope().flags |= kNoGradFlag;
      const double part = options.momentum;
      const auto update = [&](const NDArray& kept, const NDArray& batch, double factor) {
        kept.assign(kept * (1 - part) + (batch.reshape(kept.shape()) * (part * factor)).to(kept.dtype()));
      };
      update(running.mean, average, 1);
      update(running.variance, variance, static_cast<double>(n) / static_cast<double>(n - 1));
    }
  } else {
    made.require(running.mean.defined(), "needs running statistics where it is not trained");
    const NDArray average = by_channel(running.mean, values).to(values.dtype()),
                  variance = by_channel(running.variance, values).to(values.dtype());
    y = (values - average) * inverse_root(variance, options.eps);
  }
  return finished(y, by_channel(weight, values), by_channel(bias, values), x.array.dtype());
}

}  // namespace sluice
