// Maps: what is done to each sample while its batch is made, on a worker thread.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/philox.h"

namespace sluice::nn {

/// Reads `in` and writes all of `out`, both row-major in host memory. `key` belongs to (seed, epoch, sample), so that
/// random changes are the same on every machine and however many threads make batches; draw from it by
/// uniform_int(key, i, low, high) and its like (resources/philox.h), with another i each time. Called by several
/// threads at once. An exception comes out where the program waits for the batch.
using SampleMap = std::function<void(const TensorView& in, const TensorView& out, const RandomKey& key)>;

/// A SampleMap, and what it makes of a sample's shape and dtype.
struct Map {
  struct Result {
    Dims shape;
    DType dtype;
  };
  Map() = default;
  /// Of a function that leaves shape and dtype as they are.
  template <class F>
  requires std::is_invocable_v<const F&, const TensorView&, const TensorView&, const RandomKey&> Map(F f)  // NOLINT
      : apply(std::move(f)) {}
  Map(std::function<Result(const Dims&, DType)> result_, SampleMap apply_)
      : result(std::move(result_)), apply(std::move(apply_)) {}

  std::function<Result(const Dims& shape, DType dtype)> result;  ///< empty: as they are. May throw UsageError
  SampleMap apply;                                               ///< empty: samples are copied
};

/// u8 pixels to f32: (pixel / 255 - mean) / deviation, computed in f64 and rounded once. Throws UsageError for samples
/// of another dtype, and for a deviation of 0.
Map pixels(double mean = 0, double deviation = 1);
/// Moves an image (..., height, width) by up to `pad` pixels in each direction; what comes in is 0. Of any dtype.
Map random_crop(std::int64_t pad);
/// Turns every second image (..., width) left to right. Of any dtype.
Map random_flip();
/// One after the other.
Map then(Map first, Map second);

}  // namespace sluice::nn
