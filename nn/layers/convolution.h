// Convolutions, and pooling beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>

#include "sluice/nn/layers/linear.h"

namespace sluice::nn {

/// n / groups. Throws ArrayError with the layer's name and line where there is no group, or they do not divide n and
/// the channels of the other side.
std::int64_t parts_of(std::int64_t n, std::int64_t other, std::int64_t groups, const char* layer,
                      const std::source_location& where);

/// Maps (n, in, height, width) to (n, out, ...) by square kernels (operators/convolution.h has others).
struct Conv2d {
  Size in, out, kernel;
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool use_bias = true;
  bool relu = false;  ///< negative results become 0 in the same pass
  std::source_location where = std::source_location::current();
  Parameter weight{{out, parts_of(in, out, groups, "Conv2d", where), kernel, kernel}, fan_in(), where};
  std::optional<Parameter> bias = optional_parameter(use_bias, {out}, fan_in(weight), where);
  NDArray operator()(const NDArray& x) const;
};

/// Maps (n, in, length) to (n, out, ...).
struct Conv1d {
  Size in, out, kernel;
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool use_bias = true;
  std::source_location where = std::source_location::current();
  Parameter weight{{out, parts_of(in, out, groups, "Conv1d", where), kernel}, fan_in(), where};
  std::optional<Parameter> bias = optional_parameter(use_bias, {out}, fan_in(weight), where);
  NDArray operator()(const NDArray& x) const;
};

/// The transposed convolution: the gradient of Conv2d with respect to its input, with this weight.
struct ConvTranspose2d {
  Size in, out, kernel;
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
  bool use_bias = true;
  std::source_location where = std::source_location::current();
  Parameter weight{{in, parts_of(out, in, groups, "ConvTranspose2d", where), kernel, kernel}, fan_in(), where};
  std::optional<Parameter> bias = optional_parameter(use_bias, {out}, fan_in(weight), where);
  NDArray operator()(const NDArray& x) const;
};

struct ConvTranspose1d {
  Size in, out, kernel;
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
  bool use_bias = true;
  std::source_location where = std::source_location::current();
  Parameter weight{{in, parts_of(out, in, groups, "ConvTranspose1d", where), kernel}, fan_in(), where};
  std::optional<Parameter> bias = optional_parameter(use_bias, {out}, fan_in(weight), where);
  NDArray operator()(const NDArray& x) const;
};

/// Of windows of (n, channels, height, width); stride 0 means `kernel`.
struct MaxPool2d {
  Size kernel;
  std::int64_t stride = 0, padding = 0;
  std::source_location where = std::source_location::current();
  NDArray operator()(const NDArray& x) const;
};
struct AvgPool2d {
  Size kernel;
  std::int64_t stride = 0, padding = 0;
  std::source_location where = std::source_location::current();
  NDArray operator()(const NDArray& x) const;
};
/// To (n, channels, height, width) of these sizes.
struct AdaptiveAvgPool2d {
  Size height, width;
  std::source_location where = std::source_location::current();
  NDArray operator()(const NDArray& x) const;
};
struct AdaptiveMaxPool2d {
  Size height, width;
  std::source_location where = std::source_location::current();
  NDArray operator()(const NDArray& x) const;
};
/// Maps (n, a, b, ...) to (n, a b ...).
struct Flatten {
  std::source_location where = std::source_location::current();
  NDArray operator()(const NDArray& x) const { return x.flatten(1, where); }
};

}  // namespace sluice::nn
