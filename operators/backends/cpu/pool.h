// Max pooling of the CPU backend.
#pragma once

#include <cstdint>

namespace sluice::cpu_backend {

/// The sizes of a pooling over the last two axes of an NCHW array; planes = batch x channels. padding < kernel. There
/// are as many windows as fit, if out_h and out_w do not say a number; each has an element of the image.
struct PoolShape {
  std::int64_t planes = 0, height = 0, width = 0;
  std::int64_t kernel_h = 2, kernel_w = 2, stride_h = 2, stride_w = 2, pad_h = 0, pad_w = 0;
  std::int64_t out_h = -1, out_w = -1;

  std::int64_t out_height() const { return out_h >= 0 ? out_h : (height + 2 * pad_h - kernel_h) / stride_h + 1; }
  std::int64_t out_width() const { return out_w >= 0 ? out_w : (width + 2 * pad_w - kernel_w) / stride_w + 1; }
};

/// y[p, i, j] = the largest element of window (i, j) of plane p; padding never wins. NaN wins over all. Of equal
/// elements (or several NaN) the first in row-major order counts. where, if not null, gets the winner's place in its
/// plane (row * width + column), which the gradient needs. x is (planes, height, width), y and where are (planes,
/// out_height, out_width). f32, f64. Planes are split over parallel_for; any thread may call; blocking.
template <class T>
void max_pool2d(const PoolShape& shape, const T* x, T* y, std::int32_t* where);

/// dx = the gradient of max_pool2d: each dy goes to the element that won, all else is 0; where windows overlap, the
/// gradients are added in row-major order of the windows. Overwrites all of dx.
template <class T>
void max_pool2d_grad(const PoolShape& shape, const T* dy, const std::int32_t* where, T* dx);

}  // namespace sluice::cpu_backend
