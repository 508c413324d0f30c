// Convolutions by cuDNN.
#pragma once

#include "sluice/operators/backends/cuda/kernel.h"

namespace sluice::cuda {

struct ConvolutionSizes {
  std::int64_t batch, channels, height, width, out_channels, kernel_h, kernel_w, stride, padding, out_h, out_w;
};

/// What is computed from what: y from x and w; the gradient of x from dy and w; the gradient of w from x and dy.
enum class ConvolutionPass : std::uint8_t { forward, input_grad, weight_grad };

/// Issues a convolution of contiguous images. Returns false, and has issued nothing, if the library has no
/// deterministic algorithm for it that fits into the workspace. Throws CudaError.
bool convolve(const Issue& issue, DType dtype, ConvolutionPass pass, const ConvolutionSizes& sizes, const void* first,
              const void* second, void* result);

}  // namespace sluice::cuda
