// Two-dimensional convolutions of the CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/engine/loops.h"

namespace sluice::cpu_backend {

/// The sizes of a convolution: x (batch, in_channels, height, width), w (out_channels, in_channels, kernel_h,
/// kernel_w), y (batch, out_channels, out_height, out_width); row-major and contiguous; the same zero padding on both
/// sides; no groups, no dilation.
struct Conv2dShape {
  std::int64_t batch = 0, in_channels = 0, height = 0, width = 0;
  std::int64_t out_channels = 0, kernel_h = 3, kernel_w = 3;
  std::int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;

  std::int64_t out_height() const { return (height + 2 * pad_h - kernel_h) / stride_h + 1; }
  std::int64_t out_width() const { return (width + 2 * pad_w - kernel_w) / stride_w + 1; }
  std::int64_t x_count() const { return batch * in_channels * height * width; }
  std::int64_t w_count() const { return out_channels * in_channels * kernel_h * kernel_w; }
  std::int64_t y_count() const { return batch * out_channels * out_height() * out_width(); }
  /// Multiply-adds of one image.
  std::int64_t work() const { return out_channels * in_channels * kernel_h * kernel_w * out_height() * out_width(); }
  friend bool operator==(const Conv2dShape&, const Conv2dShape&) = default;
};

/// relu: forward only; negative results become 0 (NaN stays), for the cost of almost nothing.
/// exact: no Winograd transforms (f32), whose error is larger: see conv2d_forward.
struct Conv2dOptions {
  bool relu = false;
  bool exact = false;
};

/// Where kernels take working memory: acquire(bytes) gives memory aligned to 64 bytes, release(memory, bytes) takes it
/// back. Called from several threads at once, and by each thread several times in one call; a caching pool fits. What
/// acquire throws passes through the kernel.
struct Workspace {
  FunctionRef<void*(std::size_t)> acquire;
  FunctionRef<void(void*, std::size_t)> release;
};

// All below: f32 and f64. Sizes must fit each other, out_height and out_width be at least 1; batch may be 0. Outputs
// are overwritten whole, must not overlap inputs, and may hold anything before. Split into chunks of the batch that
// depend on the shape alone, over parallel_for, and summed in chunk order: the same bits on any number of threads (they
// may differ between batch sizes). Any thread may call; blocking. f32: direct kernels of our own for few input
// channels, else oneDNN (Winograd or direct, by shape), else as f64: unfolding (im2col) and a matrix product.
// Largest error seen against sums in double, as a part of the largest result, for normally distributed data: Winograd
// (32 to 512 channels) 2.4e-6; direct 5e-7, its weight gradients, whose sums run over all images and places, 4e-6.

/// y = conv(x, w) + bias[out channel]; bias may be null.
template <class T>
void conv2d_forward(const Conv2dShape& shape, const T* x, const T* w, const T* bias, T* y, const Conv2dOptions& options,
                    const Workspace& workspace);

/// dx = the gradient of x.
template <class T>
void conv2d_input_grad(const Conv2dShape& shape, const T* dy, const T* w, T* dx, const Conv2dOptions& options,
                       const Workspace& workspace);

/// dw = the gradient of w.
template <class T>
void conv2d_weight_grad(const Conv2dShape& shape, const T* x, const T* dy, T* dw, const Conv2dOptions& options,
                        const Workspace& workspace);

/// db[c] = the sum of dy over all but its channel.
template <class T>
void conv2d_bias_grad(const Conv2dShape& shape, const T* dy, T* db);

/// The kernel that the rule chooses, for tests and reports: "few_channels", "winograd", "direct" or "unfold".
enum class Conv2dPass { forward, input_grad, weight_grad };
const char* conv2d_kernel_name(Conv2dPass pass, const Conv2dShape& shape, bool exact, bool is_f32);

}  // namespace sluice::cpu_backend
