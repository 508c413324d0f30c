// Convolutions and pooling.
#pragma once

#include "sluice/operators/registry.h"
#include "sluice/operators/unfolding.h"

namespace sluice {

struct Conv2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;  ///< zeros on each side
  bool relu = false;   ///< negative results become 0 in the same pass
  Size2d dilation = 1;
  /// Channels of x and of the result are split into so many parts; each part of the result comes from one of x. With
  /// as many groups as channels it is a depthwise convolution.
  std::int64_t groups = 1;
  /// CPUs may compute f32 by Winograd's transforms, in the gradients too, where these are faster: 3x3 kernels with
  /// stride 1 and 32 channels or more, with AVX-512 and oneDNN 2. The error is up to 2.4e-6 of the largest result,
  /// where that of a direct computation is 5e-7. SLUICE_WINOGRAD=0 in the environment switches them off for all
  /// convolutions.
  bool winograd = true;
};
/// Convolution of x (n, in, height, width) with weight (out, in / groups, kernel height, kernel width) and bias (out,)
/// or an empty handle, of floating dtypes. It has gradients of all orders; those of input, weight and bias are separate
/// ops. One stride for both axes without dilation and groups is one op. Other options are made of unfold2d and matmul,
/// which take the unfolded image as memory: kernel height * kernel width times the result's places for each channel of
/// x.
NDArray conv2d(const Operand& x, const Operand& weight, const NDArray& bias = {}, const Conv2dOptions& options = {});

struct Conv1dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool relu = false;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// Convolution of x (n, in, length) with weight (out, in / groups, kernel) and bias (out,) or an empty handle: conv2d
/// of images of height 1.
NDArray conv1d(const Operand& x, const Operand& weight, const NDArray& bias = {}, const Conv1dOptions& options = {});

struct ConvTranspose2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;         ///< so many rows and columns of the result are left out on each side
  Size2d output_padding = 0;  ///< and so many are added behind; smaller than the stride or the dilation
  Size2d dilation = 1;
  std::int64_t groups = 1;
};
/// Transposed convolution of x (n, in, height, width) with weight (in, out / groups, kernel height, kernel width) and
/// bias (out,) or an empty handle, of floating dtypes: each element of x adds the kernel, times it, to the result. It
/// is the gradient of conv2d with the same weight and options with respect to its image, and has gradients of all
/// orders. The height of the result is (height - 1) stride - 2 padding + dilation (kernel height - 1) + output_padding
/// + 1.
NDArray conv_transpose2d(const Operand& x, const Operand& weight, const NDArray& bias = {},
                         const ConvTranspose2dOptions& options = {});

struct ConvTranspose1dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t output_padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// The same for x (n, in, length) and weight (in, out / groups, kernel).
NDArray conv_transpose1d(const Operand& x, const Operand& weight, const NDArray& bias = {},
                         const ConvTranspose1dOptions& options = {});

struct MaxPool2dOptions {
  Size2d stride = 0;   ///< 0: the kernel's size
  Size2d padding = 0;  ///< on each side, smaller than the kernel; it is never the largest
  /// Windows that reach beyond the right and lower padding count too, if they start in the image or in the padding
  /// before it. So the elements that else are left over at the end of an axis have a window.
  bool ceil_mode = false;
  Size2d dilation = 1;  ///< the distance of a window's elements
};
/// The largest element of each window of x (n, channels, height, width), of floating dtypes: max_pool2d(x, 2),
/// max_pool2d(x, {3, 2}, {.stride = 2}). Of equal elements the first gets the gradient. Square windows with one stride
/// and one padding, without dilation, are one op; others are made of unfold2d, and take its memory.
NDArray max_pool2d(const Operand& x, Size2d kernel, const MaxPool2dOptions& options);
NDArray max_pool2d(const Operand& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);

struct AvgPool2dOptions {
  Size2d stride = 0;          ///< 0: the kernel's size
  Size2d padding = 0;         ///< zeros on each side; smaller than the kernel
  bool count_padding = true;  ///< the zeros count as elements of a window; else it is divided by the others' number
  bool ceil_mode = false;     ///< as in MaxPool2dOptions; what is behind the padding never counts
};
/// The mean of each window of x (n, channels, height, width), of floating dtypes. Made of unfold2d, and takes its
/// memory.
NDArray avg_pool2d(const Operand& x, Size2d kernel, const AvgPool2dOptions& options = {});

/// Means of out.height x out.width windows that cover x (n, channels, height, width), of floating dtypes: window i goes
/// from row i height / out to row (i + 1) height / out, rounded outwards.
NDArray adaptive_avg_pool2d(const Operand& x, Size2d out);
/// The largest elements of these windows. Of equal elements the first gets the gradient.
NDArray adaptive_max_pool2d(const Operand& x, Size2d out);

}  // namespace sluice
