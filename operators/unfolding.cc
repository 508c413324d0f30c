// The rows unfold2d and its gradient, and what is made of them: convolutions with any options, average pooling.
#include "sluice/operators/unfolding.h"

#include "sluice/operators/builtin.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/convolution.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/reduction.h"

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
  static const Operator& row = Registry::instance().get("unfold2d_grad");
  a.wanted = shape;
  return apply(row, {&g}, a, {.where = where});
}

}  // namespace

void builtin::add_unfolding_rows(Registry& registry) {
  add_operator(registry, "unfold2d", [](Operator& op) {
    op.infer = infer_unfold;
    op.gradient = [](GradientContext& c) {
      c.set(0, folded(c.gradient(), c.attributes().get<UnfoldAttributes>(), c.input_spec(0).shape, c.where()));
    };
  });
  // Each element gets the sum of those that it was unfolded to.
  add_operator(registry, "unfold2d_grad", [](Operator& op) {
    op.infer = [](Signature& s) { s.output(s.attributes<UnfoldAttributes>().wanted, s.dtype()); };
    op.gradient = [](GradientContext& c) {
      static const Operator& row = Registry::instance().get("unfold2d");
      c.set(0, apply(row, {&c.gradient()}, c.attributes(), {.where = c.where()}));
    };
  });
}

NDArray unfold2d(const Operand& x, Size2d kernel, const UnfoldOptions& o) {
  static const Operator& row = Registry::instance().get("unfold2d");
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
  if (o.groups < 1 || image[1] != w[1] * o.groups || w[0] % o.groups != 0) {
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

NDArray avg_pool2d(const Operand& x, Size2d kernel, const AvgPool2dOptions& o) {
  const builtin::Composition made("avg_pool2d", x);
  const Size2d stride{o.stride.height != 0 ? o.stride.height : kernel.height,
                      o.stride.width != 0 ? o.stride.width : kernel.width};
  if (o.padding.height >= kernel.height || o.padding.width >= kernel.width) {
    made.fail("padding must be smaller than the kernel");
  }
  const UnfoldOptions windows{stride, o.padding, 1};
  const NDArray all_windows = unfold2d(x.array, kernel, windows);
  if (o.count_padding || o.padding == Size2d(0)) return mean(all_windows, {2, 3});
  const Dims& shape = x.array.shape();
  const NDArray counts = sum(unfold2d(ones({1, 1, shape[2], shape[3]}, x.array.dtype()), kernel, windows), {2, 3});
  return sum(all_windows, {2, 3}) / counts;
}

namespace {

/// (out, in): row i averages elements [i in / out, (i + 1) in / out), rounded outwards.
NDArray averages(std::int64_t in, std::int64_t out, DType dtype) {
  std::vector<double> rows(static_cast<std::size_t>(in * out));
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    for (std::int64_t k = begin; k < end; ++k)
      rows[static_cast<std::size_t>(i * in + k)] = 1.0 / static_cast<double>(end - begin);
  }
  return from(rows, {out, in}).to(dtype);
}

}  // namespace

NDArray adaptive_avg_pool2d(const Operand& x, Size2d out) {
  const builtin::Composition made("adaptive_avg_pool2d", x);
  const Dims& s = x.array.shape();
  if (s.rank() != 4 || s[2] < 1 || s[3] < 1) made.fail(to_string(s) + " is not (n, channels, height, width)");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  made.require(out.height >= 1 && out.width >= 1, "the result must have a row and a column at least");
  if (s[2] % out.height == 0 && s[3] % out.width == 0) {
    return mean(x.array.reshape({s[0], s[1], out.height, s[2] / out.height, out.width, s[3] / out.width}), {3, 5});
  }
  // Windows of several sizes: their averages are products with matrices.
  const DType dtype = x.array.dtype();
  return matmul(averages(s[2], out.height, dtype),
                matmul(x.array, averages(s[3], out.width, dtype), {.transpose_b = true}));
}

}  // namespace sluice
