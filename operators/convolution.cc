// Rows and functions of convolution and pooling.
#include "sluice/operators/convolution.h"

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/along_axis.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/by_unfolding.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/fused_relu.h"
#include "sluice/operators/placement.h"

namespace sluice {
namespace {

/// What an image may be padded with: sizes with it can be counted.
constexpr std::int64_t kMostPadding = std::int64_t{1} << 32;

std::int64_t out_size(std::int64_t n, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return (n + 2 * padding - kernel) / stride + 1;
}

void infer_conv(Signature& s) {
  s.same_dtypes();
  s.floating();
  s.rank(0, 4);
  s.rank(1, 4);
  const auto& a = s.attributes<ConvAttributes>();
  const Dims& x = s.shape(0);
  const Dims& w = s.shape(1);
  if (x[1] != w[1]) s.fail(std::to_string(x[1]) + " channels, weight for " + std::to_string(w[1]));
  if (a.stride < 1 || a.padding < 0 || a.padding > kMostPadding) {
    s.fail("stride " + std::to_string(a.stride) + " and padding " + std::to_string(a.padding) +
           "; stride must be at least 1, padding from 0 to 2^32");
  }
  if (w[2] < 1 || w[3] < 1 || x[2] + 2 * a.padding < w[2] || x[3] + 2 * a.padding < w[3]) {
    s.fail("the kernel does not fit the image");
  }
  if (s.inputs() == 3 && !(s.shape(2) == Dims{w[0]})) s.fail("bias does not fit");
  s.output({x[0], w[0], out_size(x[2], w[2], a.stride, a.padding), out_size(x[3], w[3], a.stride, a.padding)},
           s.dtype());
}

const Operator& named(const char* name) { return Registry::instance().get(name); }

NDArray input_grad(const NDArray& g, const NDArray& w, ConvAttributes a, const Dims& x_shape,
                   const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &named("conv2d_input_grad"); });
  a.wanted = x_shape;
  return apply(row, {&g, &w}, a, {.where = where});
}

NDArray weight_grad(const NDArray& x, const NDArray& g, ConvAttributes a, const Dims& w_shape,
                    const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &named("conv2d_weight_grad"); });
  a.wanted = w_shape;
  return apply(row, {&x, &g}, a, {.where = where});
}

NDArray plain_conv(const NDArray& x, const NDArray& w, const ConvAttributes& a, const std::source_location& where) {
  return conv2d({x, where}, w, {}, {.stride = a.stride, .padding = a.padding, .winograd = a.winograd});
}

template <bool with_relu>
void conv_gradient(GradientContext& c) {
  const ConvAttributes a = c.attributes().get<ConvAttributes>();
  const NDArray& g = with_relu ? c.common(builtin::relu_gradient) : c.gradient();
  if (c.wanted(0)) c.set(0, input_grad(g, c.input(1), a, c.input_spec(0).shape, c.where()));
  if (c.wanted(1)) c.set(1, weight_grad(c.input(0), g, a, c.input_spec(1).shape, c.where()));
  if (c.inputs() == 3 && c.wanted(2)) {
    const Operator& row = detail::first_use([] { return &named("conv2d_bias_grad"); });
    c.set(2, apply(row, {&g}, {}, {.where = c.where()}));
  }
}

Cost conv_cost(const Signature& s) {
  const Dims& w = s.shape(1);
  const double terms = 2 * costs::count(w) / static_cast<double>(std::max<std::int64_t>(w[0], 1));
  return costs::of(costs::count(s.outputs()[0].shape) * (terms + (s.inputs() == 3 ? 1 : 0)), s);
}

/// As many products as forward has, whichever gradient it is. Input `of_g` is the result's gradient.
template <int of_g>
Cost conv_gradient_cost(const Signature& s) {
  const Dims &g = s.shape(of_g), &w = of_g == 0 ? s.shape(1) : s.outputs()[0].shape;
  return costs::of(2 * costs::count(w) * static_cast<double>(g[0] * g[2] * g[3]), s);
}

template <bool with_relu>
void conv_row(Operator& op) {
  op.shown = "conv2d";
  op.min_inputs = 2;
  op.max_inputs = 3;
  op.place = [](Placing& p) {
    p.letters(with_relu ? "n___,o___,o->no__" : "nc__,oc__,o->no__");
    if (!with_relu) p.adds(ReduceOp::sum);
    if (!with_relu && p.inputs() == 2) p.linear(Linear::each);
  };
  op.infer = infer_conv;
  op.cost = conv_cost;
  const Needs y = with_relu ? needs::output() : Needs();
  op.needs = {needs::input(1) | y, needs::input(0) | y, y};
  op.common_needs = y;
  op.gradient = conv_gradient<with_relu>;
}

void wanted_shape(Signature& s) { s.output(s.attributes<ConvAttributes>().wanted, s.dtype()); }

/// The windows along an axis of n elements; 0 where not one fits. Each has an element of the image.
std::int64_t windows(std::int64_t n, const PoolAttributes& a) {
  const std::int64_t steps = n + 2 * a.padding - a.kernel;
  if (n < 1 || (steps < 0 && (!a.ceil_mode || steps < 1 - a.stride))) return 0;
  const std::int64_t count = (steps < 0 ? 0 : steps / a.stride + (a.ceil_mode && steps % a.stride != 0)) + 1;
  return (count - 1) * a.stride >= n + a.padding ? count - 1 : count;
}

void infer_pool(Signature& s) {
  s.floating();
  s.rank(0, 4);
  const auto& a = s.attributes<PoolAttributes>();
  const Dims& x = s.shape(0);
  if (a.kernel < 1 || a.stride < 1 || a.padding < 0 || a.padding >= a.kernel || a.padding > kMostPadding) {
    s.fail("kernel " + std::to_string(a.kernel) + ", stride " + std::to_string(a.stride) + ", padding " +
           std::to_string(a.padding));
  }
  const Dims y{x[0], x[1], windows(x[2], a), windows(x[3], a)};
  if (y[2] < 1 || y[3] < 1) s.fail("the window does not fit the image");
  s.output(y, s.dtype());
  s.output(y, DType::i32);
}

}  // namespace

void builtin::add_convolution_rows(Registry& registry) {
  add_operator(registry, "conv2d", conv_row<false>);
  add_operator(registry, "conv2d_relu", conv_row<true>);
  add_operator(registry, "conv2d_input_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("no__,oc__->nc__");
      p.adds(ReduceOp::sum);
      p.linear(Linear::each);
      p.local(local_extent<ConvAttributes, &ConvAttributes::wanted>);
    };
    op.cost = conv_gradient_cost<0>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = wanted_shape;
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<ConvAttributes>();
      if (c.wanted(0)) c.set(0, plain_conv(c.gradient(), c.input(1), a, c.where()));
      if (c.wanted(1)) c.set(1, weight_grad(c.gradient(), c.input(0), a, c.input_spec(1).shape, c.where()));
    };
  });
  add_operator(registry, "conv2d_weight_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("nc__,no__->oc__");
      p.adds(ReduceOp::sum);
      p.linear(Linear::each);
      p.local(local_extent<ConvAttributes, &ConvAttributes::wanted>);
    };
    op.cost = conv_gradient_cost<1>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = wanted_shape;
    op.needs = {needs::input(1), needs::input(0)};
    op.gradient = [](GradientContext& c) {
      const auto& a = c.attributes().get<ConvAttributes>();
      if (c.wanted(0)) c.set(0, input_grad(c.input(1), c.gradient(), a, c.input_spec(0).shape, c.where()));
      if (c.wanted(1)) c.set(1, plain_conv(c.input(0), c.gradient(), a, c.where()));
    };
  });
  add_operator(registry, "conv2d_bias_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("no__->o");
      p.adds(ReduceOp::sum);
      p.linear(Linear::together);
    };
    op.cost = costs::each_input<>;
    op.infer = [](Signature& s) { s.output({s.shape(0)[1]}, s.dtype()); };
    op.gradient = [](GradientContext& c) {
      c.set(0, c.gradient().reshape({1, -1, 1, 1}).broadcast_to(c.input_spec(0).shape));
    };
  });
  // Outputs: the largest elements, and their places, which the gradient needs.
  add_operator(registry, "max_pool2d", [](Operator& op) {
    op.place = [](Placing& p) { p.letters("nc__->nc__,nc__"); };
    op.cost = [](const Signature& s) {
      const double size = s.attributes<PoolAttributes>().kernel;
      return costs::of(size * size * costs::count(s.outputs()[0].shape), s);
    };
    op.infer = infer_pool;
    op.needs = {needs::output(1)};
    op.gradient = [](GradientContext& c) {
      const NDArray &g = c.gradient(), &places = c.output(1);
      if (c.create_graph()) {  // the same by an operator that has a gradient
        const Dims &x = c.input_spec(0).shape, &y = g.shape();
        const Dims windows{y[0], y[1], y[2] * y[3]}, planes{x[0], x[1], x[2] * x[3]};
        c.set(0, builtin::add_along_axis(g.reshape(windows), places.reshape(windows), 2, planes, c.where()).reshape(x));
        return;
      }
      const Operator& row = detail::first_use([] { return &named("max_pool2d_grad"); });
      PoolAttributes a = c.attributes().get<PoolAttributes>();
      a.wanted = c.input_spec(0).shape;
      c.set(0, apply(row, {&g, &places}, a, {.where = c.where()}));
    };
  });
  add_operator(registry, "max_pool2d_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("nc__,nc__->nc__");
      p.local(local_extent<PoolAttributes, &PoolAttributes::wanted>);
    };
    op.cost = costs::each_input<>;
    op.min_inputs = op.max_inputs = 2;
    op.infer = [](Signature& s) { s.output(s.attributes<PoolAttributes>().wanted, s.dtype()); };
  });
}

namespace {

/// Options that the row does not have. Unequal padding alone is zeros around the image first.
NDArray conv2d_of_any(const Operand& x, const Operand& weight, const NDArray& bias, const Conv2dOptions& options) {
  const auto [h, w] = std::pair(options.padding.height, options.padding.width);
  const Size2d& stride = options.stride;
  const bool of_owner = x.array.checked("conv2d", x.where).kind() == Array::Kind::owned;  // it has no window
  if (of_owner || stride.height != stride.width || options.groups != 1 || !(options.dilation == Size2d(1)) ||
      x.array.rank() != 4 || h < 0 || w < 0 || std::max(h, w) > kMostPadding) {
    return builtin::convolution_by_unfolding(x, weight, bias, options);
  }
  const builtin::Composition made("conv2d", x);
  const Operator& scatter = detail::first_use([] { return &named("scatter"); });
  Dims shape = x.array.shape();
  shape[2] += 2 * h;
  shape[3] += 2 * w;
  const Dims strides = row_major(shape);
  const NDArray padded = apply(scatter, {&x.array}, WindowAttributes{shape, strides, h * strides[2] + w});
  return conv2d(padded, weight, bias, {.stride = stride, .relu = options.relu, .winograd = options.winograd});
}

}  // namespace

NDArray conv2d(const Operand& x, const Operand& weight, const NDArray& bias, const Conv2dOptions& options) {
  const Operator& plain = detail::first_use([] { return &named("conv2d"); });
  const Operator& with_relu = detail::first_use([] { return &named("conv2d_relu"); });
  const Size2d &stride = options.stride, &padding = options.padding;
  if (stride.height != stride.width || padding.height != padding.width || options.groups != 1 ||
      !(options.dilation == Size2d(1))) [[unlikely]]
    return conv2d_of_any(x, weight, bias, options);
  const Operator& row = options.relu ? with_relu : plain;
  const ConvAttributes a{stride.height, padding.height, options.relu, {}, options.winograd};
  if (bias.defined()) return apply(row, {&x.array, &weight.array, &bias}, a, {.where = x.where});
  return apply(row, {&x.array, &weight.array}, a, {.where = x.where});
}

NDArray max_pool2d(const Operand& x, Size2d kernel, const MaxPool2dOptions& o) {
  const Operator& row = detail::first_use([] { return &named("max_pool2d"); });
  if (kernel.height != kernel.width || o.stride.height != o.stride.width || o.padding.height != o.padding.width ||
      !(o.dilation == Size2d(1))) {
    return builtin::max_pool_by_unfolding(x, kernel, o);
  }
  const std::int64_t stride = o.stride.height != 0 ? o.stride.height : kernel.height;
  return apply(row, {&x.array}, PoolAttributes{kernel.height, stride, o.padding.height, {}, o.ceil_mode},
               {.where = x.where});
}
NDArray max_pool2d(const Operand& x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return max_pool2d(x, Size2d(kernel), MaxPool2dOptions{.stride = stride, .padding = padding});
}

}  // namespace sluice
