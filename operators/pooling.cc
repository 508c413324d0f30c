// Pooling that is made of other operators: windows of any shape, averages, windows that follow the result's size. The
// row max_pool2d is in convolution.cc.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "sluice/operators/by_unfolding.h"
#include "sluice/operators/composition.h"
#include "sluice/operators/convolution.h"
#include "sluice/operators/creation.h"
#include "sluice/operators/elementwise.h"
#include "sluice/operators/indexing.h"
#include "sluice/operators/linear_algebra.h"
#include "sluice/operators/rearranging.h"
#include "sluice/operators/reduction.h"

namespace sluice {
namespace {

/// The windows of a pooling along one axis.
struct PoolAxis {
  std::int64_t n, kernel, stride, padding, dilation;
  std::int64_t count = 0;   ///< of the windows
  std::int64_t behind = 0;  ///< elements that the last window needs behind the axis

  PoolAxis(const builtin::Composition& made, std::int64_t size, std::int64_t k, std::int64_t s, std::int64_t p,
           std::int64_t d, bool ceil_mode)
      : n(size), kernel(k), stride(s), padding(p), dilation(d) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    if (kernel < 1 || stride < 1 || dilation < 1 || padding < 0 || std::max({kernel, stride, dilation}) > most) {
      made.fail("kernel, stride and dilation must be at least 1, padding 0, and all at most 2^31");
    }
    if (padding >= kernel) made.fail("padding must be smaller than the kernel");
    const std::int64_t extent = (kernel - 1) * dilation + 1, steps = n + 2 * padding - extent;
    if (n < 1 || steps + (ceil_mode ? stride - 1 : 0) < 0) made.fail("the window does not fit the image");
    count = (steps + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    if (ceil_mode && (count - 1) * stride >= n + padding) --count;  // it would start in the padding behind
    behind = std::max<std::int64_t>(0, (count - 1) * stride + extent - n - padding);
  }
};

struct PoolAxes {
  PoolAxis down, right;
  std::vector<Padding> padding() const {
    return {{0, 0}, {0, 0}, {down.padding, down.behind}, {right.padding, right.behind}};
  }
  /// The windows of an image that was padded.
  NDArray unfolded(const NDArray& padded) const {
    return unfold2d(padded, {down.kernel, right.kernel},
                    {{down.stride, right.stride}, 0, {down.dilation, right.dilation}});
  }
};

const Dims& image_of(const builtin::Composition& made, const Operand& x) {
  const Dims& s = x.array.shape();
  if (s.rank() != 4 || s[2] < 1 || s[3] < 1) made.fail(to_string(s) + " is not (n, channels, height, width)");
  if (!is_floating(x.array.dtype())) made.fail("needs a floating dtype, not " + std::string(name_of(x.array.dtype())));
  return s;
}

Size2d stride_or(Size2d stride, Size2d kernel) {
  return {stride.height != 0 ? stride.height : kernel.height, stride.width != 0 ? stride.width : kernel.width};
}

}  // namespace

NDArray builtin::max_pool_by_unfolding(const Operand& x, Size2d kernel, const MaxPool2dOptions& o) {
  const Composition made("max_pool2d", x);
  const Dims& s = image_of(made, x);
  const Size2d stride = stride_or(o.stride, kernel);
  const PoolAxes axes{{made, s[2], kernel.height, stride.height, o.padding.height, o.dilation.height, o.ceil_mode},
                      {made, s[3], kernel.width, stride.width, o.padding.width, o.dilation.width, o.ceil_mode}};
  return max(axes.unfolded(pad(x, axes.padding(), {.value = -std::numeric_limits<double>::infinity()})), {2, 3});
}

NDArray avg_pool2d(const Operand& x, Size2d kernel, const AvgPool2dOptions& o) {
  const builtin::Composition made("avg_pool2d", x);
  const Size2d stride = stride_or(o.stride, kernel);
  if (x.array.rank() == 4 && !o.ceil_mode && (o.count_padding || o.padding == Size2d(0))) {
    if (o.padding.height >= std::max<std::int64_t>(kernel.height, 1) ||
        o.padding.width >= std::max<std::int64_t>(kernel.width, 1)) {
      made.fail("padding must be smaller than the kernel");
    }
    return mean(unfold2d(x.array, kernel, {stride, o.padding, 1}), {2, 3});
  }
  const Dims& s = image_of(made, x);
  const PoolAxes axes{{made, s[2], kernel.height, stride.height, o.padding.height, 1, o.ceil_mode},
                      {made, s[3], kernel.width, stride.width, o.padding.width, 1, o.ceil_mode}};
  // What counts: the image, and the padding, but nothing behind it.
  const auto counted = [&](const PoolAxis& axis) {
    return o.count_padding ? std::min(axis.padding, axis.behind) : std::int64_t{0};
  };
  const std::int64_t before_h = o.count_padding ? o.padding.height : 0,
                     before_w = o.count_padding ? o.padding.width : 0, behind_h = counted(axes.down),
                     behind_w = counted(axes.right);
  const NDArray counts = ones({1, 1, s[2] + before_h + behind_h, s[3] + before_w + behind_w}, x.array.dtype());
  const NDArray numbers = sum(axes.unfolded(pad(counts, {{0, 0},
                                                         {0, 0},
                                                         {o.padding.height - before_h, axes.down.behind - behind_h},
                                                         {o.padding.width - before_w, axes.right.behind - behind_w}})),
                              {2, 3});
  return sum(axes.unfolded(pad(x, axes.padding())), {2, 3}) / numbers;
}

namespace {

/// The windows of adaptive pooling along an axis: window i has the elements [i in / out, (i + 1) in / out), rounded
/// outwards.
struct AdaptiveAxis {
  std::int64_t in, out;

  AdaptiveAxis(const builtin::Composition& made, std::int64_t size, std::int64_t wanted) : in(size), out(wanted) {
    made.require(out >= 1, "the result must have a row and a column at least");
    std::int64_t product = 0;
    if (__builtin_mul_overflow(in, out, &product)) made.fail(std::to_string(out) + " windows cannot be counted");
  }
  bool divides() const { return in % out == 0; }
  std::int64_t begin(std::int64_t i) const { return i * in / out; }
  std::int64_t end(std::int64_t i) const { return ((i + 1) * in + out - 1) / out; }
  /// The size of the longest window: of all places between two elements that windows begin at, it has the last.
  std::int64_t longest() const { return 1 + (in - std::gcd(in, out) + out - 1) / out; }
  /// The first and the last elements of all windows: i64, (out,).
  NDArray firsts() const { return floor_div(arange(0, in * out, in), out); }
  NDArray lasts() const { return floor_div(arange(in - 1, in * out, in), out); }

  /// (out, in): row i averages the elements of window i.
  NDArray averages(DType dtype, const std::source_location& where) const {
    std::vector<double> rows = detail::host_list<double>("adaptive_avg_pool2d", in * out, where);
    for (std::int64_t i = 0; i < out; ++i) {
      for (std::int64_t k = begin(i); k < end(i); ++k)
        rows[static_cast<std::size_t>(i * in + k)] = 1.0 / static_cast<double>(end(i) - begin(i));
    }
    return from(rows, {out, in}).to(dtype);
  }
  /// Where element k of window i is: (out * longest(),), row by row. Shorter windows have their last element several
  /// times.
  NDArray places() const {
    const std::int64_t most = longest();
    return minimum(firsts().unsqueeze(1) + arange(0, most), lasts().unsqueeze(1)).reshape({out * most});
  }
};

/// Averages of windows along axis 2 or 3, for more windows than elements or as many as divide them.
NDArray averaged(const NDArray& x, int axis, const AdaptiveAxis& windows, const std::source_location& where) {
  if (windows.divides()) {
    Dims shape = x.shape();
    shape.push_back(windows.in / windows.out);
    shape[axis] = windows.out;
    for (int i = 4; i > axis + 1; --i) std::swap(shape[i], shape[i - 1]);
    return mean(x.reshape(shape), axis + 1);
  }
  if (windows.out < windows.in) {
    const NDArray averages = windows.averages(x.dtype(), where);
    return axis == 2 ? matmul(averages, x) : matmul(x, averages, {.transpose_b = true});
  }
  // A window has one element or two.
  const NDArray firsts = windows.firsts(), lasts = windows.lasts();
  const NDArray a = index_select(x, axis, firsts), b = index_select(x, axis, lasts), one = firsts == lasts;
  return sluice::where(axis == 2 ? one.unsqueeze(1) : one, a, a * 0.5 + b * 0.5);
}

/// The result's shape, which is one that an array can have.
void check_result(const char* name, const Operand& x, Size2d out) {
  const Dims& s = x.array.shape();
  check_shape(name, {s[0], s[1], out.height, out.width}, x.array.dtype(), x.where);
}

}  // namespace

NDArray adaptive_avg_pool2d(const Operand& x, Size2d out) {
  const builtin::Composition made("adaptive_avg_pool2d", x);
  const Dims& s = image_of(made, x);
  const AdaptiveAxis down(made, s[2], out.height), right(made, s[3], out.width);
  check_result("adaptive_avg_pool2d", x, out);
  if (down.divides() && right.divides()) {
    return mean(x.array.reshape({s[0], s[1], out.height, s[2] / out.height, out.width, s[3] / out.width}), {3, 5});
  }
  if (down.out <= down.in && right.out <= right.in) {
    // Windows of several sizes: their averages are products with matrices.
    const DType dtype = x.array.dtype();
    return matmul(down.averages(dtype, x.where),
                  matmul(x.array, right.averages(dtype, x.where), {.transpose_b = true}));
  }
  return averaged(averaged(x.array, 3, right, x.where), 2, down, x.where);
}

NDArray adaptive_max_pool2d(const Operand& x, Size2d out) {
  const builtin::Composition made("adaptive_max_pool2d", x);
  const Dims& s = image_of(made, x);
  const AdaptiveAxis down(made, s[2], out.height), right(made, s[3], out.width);
  check_result("adaptive_max_pool2d", x, out);
  NDArray windows = x.array;
  if (!down.divides()) windows = index_select(windows, 2, down.places());
  if (!right.divides()) windows = index_select(windows, 3, right.places());
  const std::int64_t h = windows.shape()[2] / out.height, w = windows.shape()[3] / out.width;
  return max(windows.reshape({s[0], s[1], out.height, h, out.width, w}), {3, 5});
}

}  // namespace sluice
