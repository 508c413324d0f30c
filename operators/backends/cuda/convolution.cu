// Convolutions: cuDNN's deterministic algorithms; what it does not take, plain kernels compute. Pooling is plain
// kernels, because the library does not tell the places of the largest elements.
#include <algorithm>

#include "sluice/operators/attributes.h"
#include "sluice/operators/backends/cuda/add_bias.h"
#include "sluice/operators/backends/cuda/convolution_library.h"
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/fold.h"
#include "sluice/operators/backends/cuda/kernels.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

/// One element of a result, as a sum in a fixed order.
template <class T>
struct Forward {
  const T *x, *w;
  T* y;
  ConvolutionSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(w);
    visit(y);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t ox = i % s.out_w, oy = i / s.out_w % s.out_h, o = i / (s.out_w * s.out_h) % s.out_channels;
    const std::int64_t image = i / (s.out_w * s.out_h * s.out_channels);
    double sum = 0;
    for (std::int64_t c = 0; c < s.channels; ++c)
      for (std::int64_t ky = 0; ky < s.kernel_h; ++ky)
        for (std::int64_t kx = 0; kx < s.kernel_w; ++kx) {
          const std::int64_t iy = oy * s.stride + ky - s.padding, ix = ox * s.stride + kx - s.padding;
          if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
          sum += number(x[((image * s.channels + c) * s.height + iy) * s.width + ix]) *
                 number(w[((o * s.channels + c) * s.kernel_h + ky) * s.kernel_w + kx]);
        }
    y[i] = T(static_cast<compute_of<T>>(sum));
  }
};
template <class T>
struct InputGrad {
  const T *dy, *w;
  T* dx;
  ConvolutionSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(dy);
    visit(w);
    visit(dx);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t ix = i % s.width, iy = i / s.width % s.height, c = i / (s.width * s.height) % s.channels;
    const std::int64_t image = i / (s.width * s.height * s.channels);
    double sum = 0;
    for (std::int64_t o = 0; o < s.out_channels; ++o)
      for (std::int64_t ky = 0; ky < s.kernel_h; ++ky)
        for (std::int64_t kx = 0; kx < s.kernel_w; ++kx) {
          const std::int64_t ty = iy + s.padding - ky, tx = ix + s.padding - kx;
          if (ty < 0 || tx < 0 || ty % s.stride != 0 || tx % s.stride != 0) continue;
          const std::int64_t oy = ty / s.stride, ox = tx / s.stride;
          if (oy >= s.out_h || ox >= s.out_w) continue;
          sum += number(dy[((image * s.out_channels + o) * s.out_h + oy) * s.out_w + ox]) *
                 number(w[((o * s.channels + c) * s.kernel_h + ky) * s.kernel_w + kx]);
        }
    dx[i] = T(static_cast<compute_of<T>>(sum));
  }
};
template <class T>
struct WeightGrad {
  const T *x, *dy;
  T* dw;
  ConvolutionSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(dy);
    visit(dw);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t kx = i % s.kernel_w, ky = i / s.kernel_w % s.kernel_h;
    const std::int64_t c = i / (s.kernel_w * s.kernel_h) % s.channels, o = i / (s.kernel_w * s.kernel_h * s.channels);
    double sum = 0;
    for (std::int64_t image = 0; image < s.batch; ++image)
      for (std::int64_t oy = 0; oy < s.out_h; ++oy)
        for (std::int64_t ox = 0; ox < s.out_w; ++ox) {
          const std::int64_t iy = oy * s.stride + ky - s.padding, ix = ox * s.stride + kx - s.padding;
          if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
          sum += number(x[((image * s.channels + c) * s.height + iy) * s.width + ix]) *
                 number(dy[((image * s.out_channels + o) * s.out_h + oy) * s.out_w + ox]);
        }
    dw[i] = T(static_cast<compute_of<T>>(sum));
  }
};

ConvolutionSizes sizes_of(const Dims& x, const Dims& w, const Dims& y, const ConvAttributes& a) {
  return {x[0], x[1], x[2], x[3], w[0], w[2], w[3], a.stride, a.padding, y[2], y[3]};
}

template <class T>
struct Conv2d {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const auto& a = c.attributes<ConvAttributes>();
    const TensorView &x = c.input(0), &w = c.input(1), &y = c.output();
    const ConvolutionSizes s = sizes_of(x.shape, w.shape, y.shape, a);
    if (y.count() == 0) return;
    if (s.channels == 0 || !convolve(issue, dtype_of<T>, ConvolutionPass::forward, s, x.data, w.data, y.data)) {
      for_index(issue, y.count(), Forward<T>{x.as<T>(), w.as<T>(), y.as<T>(), s});
    }
    const T* const bias = c.inputs() == 3 ? c.input(2).template as<T>() : nullptr;
    if (bias || a.relu) {
      for_index(issue, y.count(), AddBias<T>{y.as<T>(), bias, s.out_channels, s.out_h * s.out_w, a.relu});
    }
  }
};
template <class T>
struct Conv2dInputGrad {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const TensorView &dy = c.input(0), &w = c.input(1), &dx = c.output();
    const ConvolutionSizes s = sizes_of(dx.shape, w.shape, dy.shape, c.attributes<ConvAttributes>());
    if (dx.count() == 0) return;
    if (dy.count() == 0 || !convolve(issue, dtype_of<T>, ConvolutionPass::input_grad, s, dy.data, w.data, dx.data)) {
      for_index(issue, dx.count(), InputGrad<T>{dy.as<T>(), w.as<T>(), dx.as<T>(), s});
    }
  }
};
template <class T>
struct Conv2dWeightGrad {
  static void run(ArrayContext& c) {
    const Issue issue(c);
    const TensorView &x = c.input(0), &dy = c.input(1), &dw = c.output();
    const ConvolutionSizes s = sizes_of(x.shape, dw.shape, dy.shape, c.attributes<ConvAttributes>());
    if (dw.count() == 0) return;
    if (dy.count() == 0 || !convolve(issue, dtype_of<T>, ConvolutionPass::weight_grad, s, x.data, dy.data, dw.data)) {
      for_index(issue, dw.count(), WeightGrad<T>{x.as<T>(), dy.as<T>(), dw.as<T>(), s});
    }
  }
};

template <class T>
struct SumOf {
  using Item = TotalOf<T>;
  __device__ Item load(T x, std::int64_t) const { return static_cast<Item>(number(x)); }
  __device__ static Item join(Item a, Item b) { return a + b; }
  __device__ static Item empty() { return 0; }
};
template <class T>
struct StoreSum {
  T* y;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
  }
  __device__ void operator()(std::int64_t group, TotalOf<T> total) const {
    y[group] = T(static_cast<compute_of<T>>(total));
  }
};
template <class T>
struct Conv2dBiasGrad {
  static void run(ArrayContext& c) {
    constexpr std::uint32_t all_but_channels = 0b1101;
    fold(Issue(c), SumOf<T>{}, c.input(0).template as<T>(), Groups::of(c.input(0), all_but_channels),
         StoreSum<T>{c.output().template as<T>()});
  }
};

struct PoolingSizes {
  std::int64_t height, width, kernel, stride, padding, out_h, out_w;
};
PoolingSizes sizes_of(const Dims& x, const Dims& y, const PoolAttributes& a) {
  return {x[2], x[3], a.kernel, a.stride, a.padding, y[2], y[3]};
}
/// The largest element of a window, the first of equal ones; NaN counts as largest.
template <class T>
struct Pool {
  const T* x;
  T* y;
  std::int32_t* places;
  PoolingSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(x);
    visit(y);
    visit(places);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t ox = i % s.out_w, oy = i / s.out_w % s.out_h;
    const T* const plane = x + i / (s.out_w * s.out_h) * s.height * s.width;
    std::int64_t best = -1;
    for (std::int64_t ky = 0; ky < s.kernel; ++ky)
      for (std::int64_t kx = 0; kx < s.kernel; ++kx) {
        const std::int64_t iy = oy * s.stride + ky - s.padding, ix = ox * s.stride + kx - s.padding;
        if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
        const std::int64_t here = iy * s.width + ix;
        if (best < 0) {
          best = here;
          continue;
        }
        const auto largest = number(plane[best]), value = number(plane[here]);
        if (largest == largest && (value != value || value > largest)) best = here;
      }
    y[i] = plane[best];
    places[i] = static_cast<std::int32_t>(best);
  }
};
/// An element's gradient: from those windows in which it is the largest, in their order.
template <class T>
struct PoolGrad {
  const T* dy;
  const std::int32_t* places;
  T* dx;
  PoolingSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(dy);
    visit(places);
    visit(dx);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t ix = i % s.width, iy = i / s.width % s.height, plane = i / (s.width * s.height);
    const auto first = [this](std::int64_t at) {
      const std::int64_t behind = at + s.padding - s.kernel + 1;
      return behind <= 0 ? 0 : (behind + s.stride - 1) / s.stride;
    };
    double sum = 0;
    for (std::int64_t oy = first(iy); oy < s.out_h && oy * s.stride - s.padding <= iy; ++oy)
      for (std::int64_t ox = first(ix); ox < s.out_w && ox * s.stride - s.padding <= ix; ++ox) {
        const std::int64_t from = (plane * s.out_h + oy) * s.out_w + ox;
        if (places[from] == iy * s.width + ix) sum += number(dy[from]);
      }
    dx[i] = T(static_cast<compute_of<T>>(sum));
  }
};
template <class T>
struct MaxPool2d {
  static void run(ArrayContext& c) {
    const TensorView &x = c.input(0), &y = c.output(0);
    for_index(Issue(c), y.count(),
              Pool<T>{x.as<T>(), y.as<T>(), c.output(1).template as<std::int32_t>(),
                      sizes_of(x.shape, y.shape, c.attributes<PoolAttributes>())});
  }
};
template <class T>
struct MaxPool2dGrad {
  static void run(ArrayContext& c) {
    const TensorView &dy = c.input(0), &dx = c.output();
    for_index(Issue(c), dx.count(),
              PoolGrad<T>{dy.as<T>(), c.input(1).template as<std::int32_t>(), dx.as<T>(),
                          sizes_of(dx.shape, dy.shape, c.attributes<PoolAttributes>())});
  }
};

}  // namespace

void add_convolution_kernels(const Rows& rows) {
  rows.add<Conv2d>("conv2d", backends::Floating{}, kDense);
  rows.add<Conv2d>("conv2d_relu", backends::Floating{}, kDense);
  rows.add<Conv2dInputGrad>("conv2d_input_grad", backends::Floating{}, kDense);
  rows.add<Conv2dWeightGrad>("conv2d_weight_grad", backends::Floating{}, kDense);
  rows.add<Conv2dBiasGrad>("conv2d_bias_grad", backends::Floating{}, kDense);
  rows.add<MaxPool2d>("max_pool2d", backends::Floating{}, kDense);
  rows.add<MaxPool2dGrad>("max_pool2d_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
