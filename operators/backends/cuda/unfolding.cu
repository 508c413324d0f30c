// Windows of images: a thread for each element of the windows and, of the gradient, for each of the image.
#include "sluice/operators/backends/cuda/elementwise.h"
#include "sluice/operators/backends/cuda/kernels.h"
#include "sluice/operators/unfolding.h"

namespace sluice::cuda {
namespace {

constexpr Kernel kDense{.dense_inputs = true, .dense_outputs = true};

struct UnfoldSizes {
  std::int64_t height, width, kernel_h, kernel_w, out_h, out_w, stride_h, stride_w, padding_h, padding_w, dilation_h,
      dilation_w;
  UnfoldSizes(const Dims& image, const Dims& windows, const UnfoldAttributes& a)
      : height(image[2]),
        width(image[3]),
        kernel_h(windows[2]),
        kernel_w(windows[3]),
        out_h(windows[4]),
        out_w(windows[5]),
        stride_h(a.stride[0]),
        stride_w(a.stride[1]),
        padding_h(a.padding[0]),
        padding_w(a.padding[1]),
        dilation_h(a.dilation[0]),
        dilation_w(a.dilation[1]) {}
};

template <class T>
struct UnfoldAt {
  T* y;
  const T* x;
  UnfoldSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(y);
    visit(x);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t ox = i % s.out_w, oy = i / s.out_w % s.out_h, tap = i / (s.out_w * s.out_h);
    const std::int64_t kx = tap % s.kernel_w, ky = tap / s.kernel_w % s.kernel_h,
                       plane = tap / (s.kernel_w * s.kernel_h);
    const std::int64_t row = oy * s.stride_h + ky * s.dilation_h - s.padding_h,
                       column = ox * s.stride_w + kx * s.dilation_w - s.padding_w;
    const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
    y[i] = inside ? x[(plane * s.height + row) * s.width + column] : T(0);
  }
};

/// The sum over the places of the windows that show the element, in the kernel's order.
template <class T>
struct FoldAt {
  T* dx;
  const T* g;
  UnfoldSizes s;
  template <class Visit>
  void each_pointer(Visit visit) {
    visit(dx);
    visit(g);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t column = i % s.width, row = i / s.width % s.height, plane = i / (s.width * s.height);
    compute_of<T> sum = 0;
    for (std::int64_t ky = 0; ky < s.kernel_h; ++ky)
      for (std::int64_t kx = 0; kx < s.kernel_w; ++kx) {
        const std::int64_t y = row + s.padding_h - ky * s.dilation_h, x = column + s.padding_w - kx * s.dilation_w;
        if (y < 0 || x < 0 || y % s.stride_h != 0 || x % s.stride_w != 0) continue;
        const std::int64_t oy = y / s.stride_h, ox = x / s.stride_w;
        if (oy >= s.out_h || ox >= s.out_w) continue;
        sum += number(g[(((plane * s.kernel_h + ky) * s.kernel_w + kx) * s.out_h + oy) * s.out_w + ox]);
      }
    dx[i] = T(sum);
  }
};

template <class T>
struct Unfold {
  static void run(ArrayContext& c) {
    const TensorView &x = c.input(0), &y = c.output();
    for_index(Issue(c), y.count(),
              UnfoldAt<T>{y.as<T>(), x.as<T>(), UnfoldSizes(x.shape, y.shape, c.attributes<UnfoldAttributes>())});
  }
};
template <class T>
struct UnfoldGrad {
  static void run(ArrayContext& c) {
    const TensorView &g = c.input(0), &dx = c.output();
    for_index(Issue(c), dx.count(),
              FoldAt<T>{dx.as<T>(), g.as<T>(), UnfoldSizes(dx.shape, g.shape, c.attributes<UnfoldAttributes>())});
  }
};

}  // namespace

void add_unfolding_kernels(const Rows& rows) {
  rows.add<Unfold>("unfold2d", backends::Floating{}, kDense);
  rows.add<UnfoldGrad>("unfold2d_grad", backends::Floating{}, kDense);
}

}  // namespace sluice::cuda
