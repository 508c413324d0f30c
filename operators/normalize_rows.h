// What kernels of the rows normalize_rows and batch_norm and of their gradients share.
#pragma once

#include <array>
#include <cstdint>

#include "sluice/ndarray/dims.h"
#include "sluice/operators/attributes.h"
#include "sluice/resources/host_device.h"

namespace sluice {

/// x as rows: `size` elements of the last axes, which are normalised together, and the number of such rows.
struct NormalizedRows {
  std::int64_t rows = 1, size = 1;

  NormalizedRows(const Dims& shape, const NormalizeAttributes& a) {
    for (int i = 0; i < shape.rank(); ++i) (i < shape.rank() - a.axes ? rows : size) *= shape[i];
  }
};

/// For batch_norm and its gradient.
struct BatchNormAttributes {
  double eps = 0;
  static constexpr auto fields() { return std::array{field<&BatchNormAttributes::eps>("eps")}; }
  friend bool operator==(const BatchNormAttributes&, const BatchNormAttributes&) = default;
};

/// x (n, channels, ...) as n times `channels` times the `plane` elements of all further axes.
struct ChannelPlanes {
  std::int64_t n, channels, plane = 1;

  explicit ChannelPlanes(const Dims& shape) : n(shape[0]), channels(shape[1]) {
    for (int i = 2; i < shape.rank(); ++i) plane *= shape[i];
  }
  /// From an element to that of the same place for the next n.
  std::int64_t step() const { return channels * plane; }
  std::int64_t of_each() const { return n * plane; }
};

/// The second output, for each row or channel: the mean, what the mean lost when it was rounded to C, 1 / sqrt(variance
/// + eps), and the variance: the mean square of what is left. The gradients use the first three. Where a row lies far
/// from 0 the rounding of its mean is much of its deviation.
template <class C>
struct RowStatistics {
  static constexpr int kNumbers = 4;
  C mean, rest, scale, variance;

  SLUICE_HD C off(C x) const { return (x - mean) - rest; }
  SLUICE_HD C normal(C x) const { return off(x) * scale; }
};

}  // namespace sluice
