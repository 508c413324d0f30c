// What kernels of the row normalize_rows and of its gradients share.
#pragma once

#include <cstdint>

#include "sluice/ndarray/dims.h"
#include "sluice/operators/attributes.h"

namespace sluice {

/// x as rows: `size` elements of the last axes, which are normalised together, and the number of such rows.
struct NormalizedRows {
  std::int64_t rows = 1, size = 1;

  NormalizedRows(const Dims& shape, const NormalizeAttributes& a) {
    for (int i = 0; i < shape.rank(); ++i) (i < shape.rank() - a.axes ? rows : size) *= shape[i];
  }
};

}  // namespace sluice
