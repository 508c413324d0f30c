// Maps: what is done to each sample while its batch is made, on a worker thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/ndarray/tensor_view.h"
#include "sluice/resources/philox.h"

namespace sluice::nn {

/// Reads `in` and writes all of `out`, both row-major in host memory. `key` belongs to (seed, epoch, sample), so that
/// random changes are the same on every machine and however many threads make batches; draw from it by
/// uniform_int(key, i, low, high) and its like (resources/philox.h), with another i each time. The maps of a sample's x
/// and of its y get the same key: a picture and its mask are flipped alike, and noise on both is correlated. With
/// LoaderOptions::weights it belongs to the place in the epoch instead of the sample. Called by several threads at
/// once. An exception comes out where the program waits for the batch.
using SampleMap = std::function<void(const TensorView& in, const TensorView& out, const RandomKey& key)>;

/// A SampleMap, and what it makes of a sample's shape and dtype.
struct Map {
  struct Result {
    Dims shape;
    DType dtype;
    std::size_t bytes() const { return static_cast<std::size_t>(shape.count()) * size_of(dtype); }
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
  int parts = 1;                                                 ///< maps that `then` put behind one another

  /// What it makes of such a sample.
  Result of(const Result& sample) const { return result ? result(sample.shape, sample.dtype) : sample; }
};

/// u8 pixels to f32: (pixel / 255 - mean) / deviation, computed in f64 and rounded once. Throws UsageError for samples
/// of another dtype, and for a deviation of 0.
Map pixels(double mean = 0, double deviation = 1);
/// The same with a mean and a deviation for each channel of u8 images (channels, height, width), as many as there are:
/// pixels_by_channel({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}) for nets that were trained on ImageNet.
Map pixels_by_channel(std::vector<double> means, std::vector<double> deviations);
/// Moves an image (..., height, width) by up to `pad` pixels in each direction; what comes in is 0. Of any dtype.
Map random_crop(std::int64_t pad);
/// Turns every second image (..., width) left to right. Of any dtype.
Map random_flip();
struct ResizedCrop {
  double least_area = 0.08, most_area = 1;             ///< of the image's area
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;  ///< of width to height
};
/// A part of a u8 image (channels, h, w), resized to (channels, height, width) as ImageOptions say (bilinear with
/// antialiasing): its area uniform, its ratio uniform by the logarithm, its place uniform among those that fit; after
/// ten draws of a part that does not fit, the largest one in the middle whose ratio is allowed ("Inception's" crop:
/// Szegedy et al., "Going deeper with convolutions", 2015). Throws UsageError for sizes below 1 and ranges that are
/// empty or reach beyond (0, 1] for areas and above 0 for ratios.
Map random_resized_crop(std::int64_t height, std::int64_t width, const ResizedCrop& options = {});
struct ColourJitter {
  double brightness = 0, contrast = 0, saturation = 0;  ///< at least 0
};
/// Changes a u8 image (3, height, width) of red, green, blue, or (1, height, width). In this order: brightness, p = b
/// p; contrast, p = c p + (1 - c) times the image's mean grey; saturation, p = s p + (1 - s) times the pixel's grey (of
/// three channels alone), where grey is 0.299 R + 0.587 G + 0.114 B, and b is uniform in [max(0, 1 - brightness), 1 +
/// brightness], c and s likewise. After each p is kept in [0, 255]; in f64, rounded once at the end.
Map colour_jitter(const ColourJitter& options);
/// One after the other. Each draws from a key of its own, whichever way several are nested.
Map then(Map first, Map second);

}  // namespace sluice::nn
