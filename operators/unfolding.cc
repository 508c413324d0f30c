// The rows unfold2d and its gradient, and convolutions that are made of them.
#include "sluice/operators/unfolding.h"

#include <algorithm>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/by_unfolding.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/convolution.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/placement.h"

namespace sluice {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 32;  // of an option: sizes with it can be counted

void infer_unfold(Signature& s) {
  s.floating();
  s.rank(0, 4);
  const auto& a = s.attributes<UnfoldAttributes>();
  const Dims& x = s.shape(0);
  Dims y{x[0], x[1], a.kernel[0], a.kernel[1]};
  for (int i = 0; i < 2; ++i) {
    for (const Dims* option : {&a.kernel, &a.stride, &a.padding, &a.dilation}) {
      if ((*option)[i] < (option == &a.padding ? 0 : 1) || (*option)[i] > kMost) {
        s.fail("kernel, stride and dilation must be at least 1, padding 0, and all at most 2^32");
      }
    }
    std::int64_t extent = 0;
    if (__builtin_mul_overflow(a.kernel[i] - 1, a.dilation[i], &extent) || extent >= x[2 + i] + 2 * a.padding[i]) {
      s.fail("the kernel does not fit the image");
    }
    y.push_back((x[2 + i] + 2 * a.padding[i] - extent - 1) / a.stride[i] + 1);
  }
  s.output(y, s.dtype());
}

NDArray folded(const NDArray& g, UnfoldAttributes a, const Dims& shape, const std::source_location& where) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("unfold2d_grad"); });
  a.wanted = shape;
  return apply(row, {&g}, a, {.where = where});
}

}  // namespace

void builtin::add_unfolding_rows(Registry& registry) {
  add_operator(registry, "unfold2d", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("nc__->nc____");
      p.linear(Linear::together);
    };
    op.cost = costs::moves;
    op.infer = infer_unfold;
    op.gradient = [](GradientContext& c) {
      c.set(0, folded(c.gradient(), c.attributes().get<UnfoldAttributes>(), c.input_spec(0).shape, c.where()));
    };
  });
  // Each element gets the sum of those that it was unfolded to.
  add_operator(registry, "unfold2d_grad", [](Operator& op) {
    op.place = [](Placing& p) {
      p.letters("nc____->nc__");
      p.linear(Linear::together);
      p.local(local_extent<UnfoldAttributes, &UnfoldAttributes::wanted>);
    };
    op.cost = costs::each_input<>;
    op.infer = [](Signature& s) { s.output(s.attributes<UnfoldAttributes>().wanted, s.dtype()); };
    op.gradient = [](GradientContext& c) {
      const Operator& row = detail::first_use([] { return &Registry::instance().get("unfold2d"); });
      const NDArray y = apply(row, {&c.gradient()}, c.attributes(), {.where = c.where()});
      // Padding of a transposed convolution's result may have room for windows that there were none of.
      const Dims& shape = c.input_spec(0).shape;
      c.set(0, y.narrow(4, 0, shape[4], c.where()).narrow(5, 0, shape[5], c.where()));
    };
  });
}

NDArray unfold2d(const Operand& x, Size2d kernel, const UnfoldOptions& o) {
  const Operator& row = detail::first_use([] { return &Registry::instance().get("unfold2d"); });
  const UnfoldAttributes a{{kernel.height, kernel.width},
                           {o.stride.height, o.stride.width},
                           {o.padding.height, o.padding.width},
                           {o.dilation.height, o.dilation.width},
                           {}};
  return apply(row, {&x.array}, a, {.where = x.where});
}

/// A product of the unfolded image and the weight, for each group.
NDArray builtin::convolution_by_unfolding(const Operand& x, const Operand& weight, const NDArray& bias,
                                          const Conv2dOptions& o) {
  const Composition made("conv2d", x);
  weight.array.checked("conv2d", made.where());
  const Dims &image = x.array.shape(), &w = weight.array.shape();
  const std::string shapes = to_string(image) + " x " + to_string(w) + ": ";
  if (image.rank() != 4 || w.rank() != 4) made.fail(shapes + "needs an image and a weight of 4 axes");
  if (o.groups < 1 || image[1] % o.groups != 0 || image[1] / o.groups != w[1] || w[0] % o.groups != 0) {
    made.fail(shapes + "channels do not fit " + std::to_string(o.groups) + " groups");
  }
  if (x.array.dtype() != weight.array.dtype()) made.fail(shapes + "dtypes differ; use to(dtype)");
  if (bias.defined() && !(bias.shape() == Dims{w[0]})) made.fail(shapes + "bias does not fit");
  const NDArray windows = unfold2d(x.array, {w[2], w[3]}, {o.stride, o.padding, o.dilation});
  const std::int64_t out_h = windows.shape()[4], out_w = windows.shape()[5], taps = w[1] * w[2] * w[3];
  const NDArray y = matmul(weight.array.reshape({o.groups, w[0] / o.groups, taps}),
                           windows.reshape({image[0], o.groups, taps, out_h * out_w}));
  NDArray result = y.reshape({image[0], w[0], out_h, out_w});
  if (bias.defined()) result = result + bias.reshape({w[0], 1, 1});
  return o.relu ? relu(result) : result;
}

namespace {

/// An option of a transposed convolution along one axis, and the size of the result there.
std::int64_t transposed_size(const builtin::Composition& made, std::int64_t n, std::int64_t kernel, std::int64_t stride,
                             std::int64_t padding, std::int64_t output_padding, std::int64_t dilation) {
  if (stride < 1 || dilation < 1 || padding < 0 || output_padding < 0 ||
      std::max({stride, dilation, padding, output_padding}) > kMost) {
    made.fail("stride and dilation must be at least 1, padding and output_padding 0, and all at most 2^32");
  }
  if (output_padding >= std::max(stride, dilation)) made.fail("output_padding must be smaller than stride or dilation");
  std::int64_t size = 0, extent = 0;
  if (n < 1 || kernel < 1) made.fail("an image and a kernel have an element at least");
  if (__builtin_mul_overflow(n - 1, stride, &size) || __builtin_mul_overflow(kernel - 1, dilation, &extent) ||
      __builtin_add_overflow(size, extent, &size) ||
      __builtin_add_overflow(size, 1 - 2 * padding + output_padding, &size)) {
    made.fail("sizes that cannot be counted");
  }
  if (size < 1) made.fail("nothing is left of the result inside of the padding");
  return size;
}

}  // namespace

/// The sums, at each place, of the products that a convolution of the result would take from there.
NDArray conv_transpose2d(const Operand& x, const Operand& weight, const NDArray& bias,
                         const ConvTranspose2dOptions& o) {
  const builtin::Composition made("conv_transpose2d", x);
  weight.array.checked("conv_transpose2d", made.where());
  const Dims &image = x.array.shape(), &w = weight.array.shape();
  const std::string shapes = to_string(image) + " x " + to_string(w) + ": ";
  if (image.rank() != 4 || w.rank() != 4) made.fail(shapes + "needs an image and a weight of 4 axes");
  if (o.groups < 1 || image[1] != w[0] || w[0] % o.groups != 0) {
    made.fail(shapes + "channels do not fit " + std::to_string(o.groups) + " groups");
  }
  if (x.array.dtype() != weight.array.dtype()) made.fail(shapes + "dtypes differ; use to(dtype)");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  std::int64_t channels = 0;
  if (__builtin_mul_overflow(w[1], o.groups, &channels)) {
    made.fail(shapes + std::to_string(o.groups) + " groups have more channels than can be counted");
  }
  if (bias.defined() && !(bias.shape() == Dims{channels})) made.fail(shapes + "bias does not fit");
  const Dims result{
      image[0], channels,
      transposed_size(made, image[2], w[2], o.stride.height, o.padding.height, o.output_padding.height,
                      o.dilation.height),
      transposed_size(made, image[3], w[3], o.stride.width, o.padding.width, o.output_padding.width, o.dilation.width)};
  check_shape("conv_transpose2d", result, x.array.dtype(), made.where());
  NDArray y;
  if (o.stride.height == o.stride.width && o.padding.height == o.padding.width && o.groups == 1 &&
      o.dilation == Size2d(1)) {
    const Operator& row = detail::first_use([] { return &Registry::instance().get("conv2d_input_grad"); });
    const ConvAttributes attributes{o.stride.height, o.padding.height, false, result};
    y = apply(row, {&x.array, &weight.array}, attributes);
  } else {
    const std::int64_t per_group = w[0] / o.groups, taps = w[1] * w[2] * w[3];
    const NDArray products =
        matmul(weight.array.reshape({o.groups, per_group, taps}),
               x.array.reshape({image[0], o.groups, per_group, image[2] * image[3]}), {.transpose_a = true});
    const UnfoldAttributes windows{{w[2], w[3]},
                                   {o.stride.height, o.stride.width},
                                   {o.padding.height, o.padding.width},
                                   {o.dilation.height, o.dilation.width},
                                   {}};
    y = folded(products.reshape({image[0], channels, w[2], w[3], image[2], image[3]}), windows, result, made.where());
  }
  return bias.defined() ? y + bias.reshape({channels, 1, 1}) : y;
}

NDArray conv_transpose1d(const Operand& x, const Operand& weight, const NDArray& bias,
                         const ConvTranspose1dOptions& o) {
  const builtin::Composition made("conv_transpose1d", x);
  weight.array.checked("conv_transpose1d", made.where());
  if (x.array.rank() != 3 || weight.array.rank() != 3) {
    made.fail(to_string(x.array.shape()) + " x " + to_string(weight.array.shape()) +
              ": needs x (n, in, length) and weight (in, out / groups, kernel)");
  }
  return conv_transpose2d(x.array.unsqueeze(2), weight.array.unsqueeze(2), bias,
                          {.stride = {1, o.stride},
                           .padding = {0, o.padding},
                           .output_padding = {0, o.output_padding},
                           .dilation = {1, o.dilation},
                           .groups = o.groups})
      .squeeze(2);
}

NDArray conv1d(const Operand& x, const Operand& weight, const NDArray& bias, const Conv1dOptions& o) {
  const builtin::Composition made("conv1d", x);
  weight.array.checked("conv1d", made.where());
  if (x.array.rank() != 3 || weight.array.rank() != 3) {
    made.fail(to_string(x.array.shape()) + " x " + to_string(weight.array.shape()) +
              ": needs x (n, in, length) and weight (out, in / groups, kernel)");
  }
  // An image of height 1. Any stride along the height is right there.
  return conv2d(x.array.unsqueeze(2), weight.array.unsqueeze(2), bias,
                {.stride = o.stride,
                 .padding = {0, o.padding},
                 .relu = o.relu,
                 .dilation = {1, o.dilation},
                 .groups = o.groups})
      .squeeze(2);
}

}  // namespace sluice
