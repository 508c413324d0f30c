// Convolutions and pooling.
#pragma once

#include "sluice/operators/registry.h"

namespace sluice {

struct Conv2dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool relu = false;  ///< negative results become 0 in the same pass
};
/// Convolution of x (n, in, height, width) with weight (out, in, kernel, kernel) and bias (out,) or an empty handle, of
/// floating dtypes. The gradients of input, weight and bias are separate ops.
NDArray conv2d(const Operand& x, const Operand& weight, const NDArray& bias = {}, const Conv2dOptions& options = {});

/// The largest element of each kernel x kernel window of x (n, channels, height, width), of floating dtypes. Stride 0
/// means `kernel`. Of equal elements the first gets the gradient. The gradient has no gradient: asking for one throws.
NDArray max_pool2d(const Operand& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);

}  // namespace sluice
