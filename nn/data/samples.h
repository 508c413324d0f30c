// Samples that are read one by one when a batch needs them, because all of them together are too many to keep.
#pragma once

#include <cstdint>
#include <memory>

#include "sluice/ndarray/nd_array.h"
#include "sluice/nn/data/map.h"

namespace sluice::nn {

/// For data of one's own: files, a data base, samples that are computed.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual std::int64_t size() const = 0;
  /// What each sample is. The same at every call.
  virtual Map::Result sample() const = 0;
  /// Writes all of sample i, 0 <= i < size(), to `out`, row-major in host memory. It may block. Called by several
  /// threads at once, on the lane that makes batches. An exception comes out where the program waits for the batch.
  virtual void read(std::int64_t i, const TensorView& out) const = 0;
};

/// As nn::Table, but for where x comes from: a Loader takes either. y is an array of cpu(0).
struct LazyTable {
  LazyTable(std::shared_ptr<const Samples> x_, NDArray y_) : x(std::move(x_)), y(std::move(y_)) {}
  std::shared_ptr<const Samples> x;
  NDArray y;
};

}  // namespace sluice::nn
