// What kernels of the row normalize_rows and of its gradients share.
#pragma once

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

/// The second output, for each row: the mean, what the mean lost when it was rounded to C, 1 / sqrt(variance + eps),
/// and the variance: the mean square of what is left. The gradients use the first three. Where a row lies far from 0
/// the rounding of its mean is much of its deviation.
template <class C>
struct RowStatistics {
  static constexpr int kNumbers = 4;
  C mean, rest, scale, variance;

  SLUICE_HD C off(C x) const { return (x - mean) - rest; }
  SLUICE_HD C normal(C x) const { return off(x) * scale; }
};

}  // namespace sluice
