// Windows of images of the reference backend.
#include <vector>

#include "sluice/operators/backends/reference/kernels.h"
#include "sluice/operators/backends/reference/plain_loops.h"
#include "sluice/operators/unfolding.h"

namespace sluice::reference {
namespace {

using namespace backends;

/// Calls f(place in the windows, place in the image) for each element of the windows that is not padding.
template <class F>
void each_place(const Dims& windows, const Dims& image, const UnfoldAttributes& a, F f) {
  std::int64_t at = 0;
  for (std::int64_t plane = 0; plane < windows[0] * windows[1]; ++plane)
    for (std::int64_t ky = 0; ky < windows[2]; ++ky)
      for (std::int64_t kx = 0; kx < windows[3]; ++kx)
        for (std::int64_t oy = 0; oy < windows[4]; ++oy)
          for (std::int64_t ox = 0; ox < windows[5]; ++ox, ++at) {
            const std::int64_t y = oy * a.stride[0] + ky * a.dilation[0] - a.padding[0],
                               x = ox * a.stride[1] + kx * a.dilation[1] - a.padding[1];
            if (y < 0 || y >= image[2] || x < 0 || x >= image[3]) continue;
            f(at, (plane * image[2] + y) * image[3] + x);
          }
}

template <class T>
struct Unfold {
  static void run(ArrayContext& c) {
    const TensorView &x = c.input(0), &y = c.output();
    for (std::int64_t i = 0; i < y.count(); ++i) y.as<T>()[i] = T(0);
    each_place(y.shape, x.shape, c.attributes<UnfoldAttributes>(),
               [&](std::int64_t at, std::int64_t from) { y.as<T>()[at] = x.as<T>()[from]; });
  }
};

template <class T>
struct UnfoldGrad {
  static void run(ArrayContext& c) {
    const TensorView &g = c.input(0), &dx = c.output();
    std::vector<Sum<T>> sums(static_cast<std::size_t>(dx.count()));
    each_place(g.shape, dx.shape, c.attributes<UnfoldAttributes>(),
               [&](std::int64_t at, std::int64_t to) { sums[static_cast<std::size_t>(to)] += term(g.as<T>()[at]); });
    for (std::size_t i = 0; i < sums.size(); ++i) dx.as<T>()[i] = element<T>(sums[i]);
  }
};

}  // namespace

void add_unfolding_kernels(Registry& registry) {
  add<Unfold>(registry.get("unfold2d"), kReference, Floating{}, kDense);
  add<UnfoldGrad>(registry.get("unfold2d_grad"), kReference, Floating{}, kDense);
}

}  // namespace sluice::reference
