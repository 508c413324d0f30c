// Windows of images of the CPU backend: a thread has whole planes.
#include <algorithm>

#include "sluice/engine/loops.h"
#include "sluice/operators/backends/cpu/kernels.h"
#include "sluice/operators/unfolding.h"

namespace sluice::cpu_backend {
namespace {

using namespace backends;

/// Calls f(row of windows, row of the image or null, step, ox begin, ox end) for each row of windows of some planes:
/// element ox of the row is the image's element ox * step, for begin <= ox < end, and padding elsewhere.
template <class Window, class Image, class F>
void each_row(Window* windows, Image* image, const Dims& w, const Dims& x, const UnfoldAttributes& a,
              std::int64_t first, std::int64_t last, F f) {
  for (std::int64_t plane = first; plane < last; ++plane) {
    Window* row = windows + plane * w[2] * w[3] * w[4] * w[5];
    for (std::int64_t ky = 0; ky < w[2]; ++ky) {
      for (std::int64_t kx = 0; kx < w[3]; ++kx) {
        const std::int64_t shift = kx * a.dilation[1] - a.padding[1], step = a.stride[1];
        const std::int64_t begin = std::min(w[5], shift >= 0 ? 0 : (-shift + step - 1) / step);
        const std::int64_t end = std::max(begin, std::min(w[5], shift >= x[3] ? 0 : (x[3] - 1 - shift) / step + 1));
        for (std::int64_t oy = 0; oy < w[4]; ++oy, row += w[5]) {
          const std::int64_t y = oy * a.stride[0] + ky * a.dilation[0] - a.padding[0];
          const bool inside = y >= 0 && y < x[2];
          f(row, image + (plane * x[2] + (inside ? y : 0)) * x[3] + shift, step, inside ? begin : 0, inside ? end : 0);
        }
      }
    }
  }
}

std::int64_t planes_of(const Dims& windows) {
  const std::int64_t elements = windows[2] * windows[3] * windows[4] * windows[5];
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, elements));
}

template <class T>
struct Unfold {
  static void run(ArrayContext& c) {
    const TensorView &x = c.input(0), &y = c.output();
    const auto& a = c.attributes<UnfoldAttributes>();
    const std::int64_t width = y.shape[5];
    parallel_for(y.shape[0] * y.shape[1], planes_of(y.shape), [&](std::int64_t first, std::int64_t last) {
      each_row(y.as<T>(), static_cast<const T*>(x.as<T>()), y.shape, x.shape, a, first, last,
               [=](T* row, const T* from, std::int64_t step, std::int64_t begin, std::int64_t end) {
                 std::fill(row, row + begin, T(0));
                 for (std::int64_t i = begin; i < end; ++i) row[i] = from[i * step];
                 std::fill(row + end, row + width, T(0));
               });
    });
  }
};

template <class T>
struct UnfoldGrad {
  static void run(ArrayContext& c) {
    const TensorView &g = c.input(0), &dx = c.output();
    const auto& a = c.attributes<UnfoldAttributes>();
    const std::int64_t plane = dx.shape[2] * dx.shape[3];
    parallel_for(g.shape[0] * g.shape[1], planes_of(g.shape), [&](std::int64_t first, std::int64_t last) {
      std::fill(dx.as<T>() + first * plane, dx.as<T>() + last * plane, T(0));
      each_row(static_cast<const T*>(g.as<T>()), dx.as<T>(), g.shape, dx.shape, a, first, last,
               [](const T* row, T* to, std::int64_t step, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) to[i * step] += row[i];
               });
    });
  }
};

}  // namespace

void add_unfolding_kernels(Registry& registry) {
  add<Unfold>(registry.get("unfold2d"), kCpu, Direct<Floating>{}, kDense);
  add<UnfoldGrad>(registry.get("unfold2d_grad"), kCpu, Direct<Floating>{}, kDense);
}

}  // namespace sluice::cpu_backend
