// Maps of pictures, (channels, height, width).
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sluice/engine/errors.h"
#include "sluice/engine/number_text.h"
#include "sluice/ndarray/formats/resize.h"
#include "sluice/nn/data/map.h"

namespace sluice::nn {
namespace {

void require(bool fine, const char* map, const std::string& message) {
  if (!fine) throw UsageError("[nn::" + std::string(map) + "] " + message);
}

void require_picture(const char* map, const Dims& shape, DType dtype) {
  require(shape.rank() == 3 && dtype == DType::u8, map,
          "samples " + to_string(shape) + " of " + std::string(name_of(dtype)) +
              ": u8 images (channels, height, width) are wanted");
}

double drawn(const ElementKey& key, std::uint64_t i, double low, double high) {
  return low + (high - low) * uniform01_f64(key, i);
}

struct Part {
  std::int64_t top, left, height, width;
};

Part draw_part(const ElementKey& key, std::int64_t height, std::int64_t width, const ResizedCrop& o) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (std::uint64_t attempt = 0; attempt < 10; ++attempt) {
    const double of = area * drawn(key, 4 * attempt, o.least_area, o.most_area);
    const double ratio = std::exp(drawn(key, 4 * attempt + 1, std::log(o.least_ratio), std::log(o.most_ratio)));
    const double w = std::round(std::sqrt(of * ratio)), h = std::round(std::sqrt(of / ratio));
    if (w < 1 || h < 1 || w > static_cast<double>(width) || h > static_cast<double>(height)) continue;
    const auto rows = static_cast<std::int64_t>(h), columns = static_cast<std::int64_t>(w);
    return {uniform_int(key, 4 * attempt + 2, 0, height - rows + 1),
            uniform_int(key, 4 * attempt + 3, 0, width - columns + 1), rows, columns};
  }
  const double ratio =
      std::clamp(static_cast<double>(width) / static_cast<double>(height), o.least_ratio, o.most_ratio);
  const auto within = [](double x, std::int64_t most) {
    return std::clamp(static_cast<std::int64_t>(std::min(std::round(x), static_cast<double>(most))), std::int64_t{1},
                      most);
  };
  const std::int64_t columns = within(static_cast<double>(height) * ratio, width);
  const std::int64_t rows = within(static_cast<double>(columns) / ratio, height);
  return {(height - rows) / 2, (width - columns) / 2, rows, columns};
}

}  // namespace

Map pixels_by_channel(std::vector<double> means, std::vector<double> deviations) {
  require(!means.empty() && means.size() == deviations.size(), "pixels_by_channel",
          std::to_string(means.size()) + " means and " + std::to_string(deviations.size()) +
              " deviations: as many as channels are wanted, of each");
  std::vector<Map> channels;
  for (std::size_t c = 0; c < means.size(); ++c) {
    require(deviations[c] != 0, "pixels_by_channel", "the deviation of channel " + std::to_string(c) + " is 0");
    channels.push_back(pixels(means[c], deviations[c]));
  }
  const auto n = static_cast<std::int64_t>(channels.size());
  return {[n](const Dims& shape, DType dtype) {
            require_picture("pixels_by_channel", shape, dtype);
            require(shape[0] == n, "pixels_by_channel",
                    "images " + to_string(shape) + ", and " + std::to_string(n) + " means");
            return Map::Result{shape, DType::f32};
          },
          [channels = std::move(channels)](const TensorView& in, const TensorView& out, const RandomKey& key) {
            const Dims plane{in.shape[1], in.shape[2]};
            TensorView from{in.data, in.dtype, plane, row_major(plane)}, to{out.data, out.dtype, plane, from.strides};
            for (const Map& channel : channels) {
              channel.apply(from, to, key);
              from.data += plane.count();
              to.data += plane.count() * static_cast<std::int64_t>(sizeof(float));
            }
          }};
}

Map random_resized_crop(std::int64_t height, std::int64_t width, const ResizedCrop& o) {
  require(height >= 1 && width >= 1 && o.least_area > 0 && o.least_area <= o.most_area && o.most_area <= 1 &&
              o.least_ratio > 0 && o.least_ratio <= o.most_ratio && std::isfinite(o.most_ratio),
          "random_resized_crop",
          std::to_string(height) + " x " + std::to_string(width) + ", areas " + general_text(o.least_area, 6) + " to " +
              general_text(o.most_area, 6) + ", ratios " + general_text(o.least_ratio, 6) + " to " +
              general_text(o.most_ratio, 6) + ": sizes of at least 1, areas in (0, 1] and ratios above 0 are wanted");
  return {[height, width](const Dims& shape, DType dtype) {
            require_picture("random_resized_crop", shape, dtype);
            require(shape[1] >= 1 && shape[2] >= 1, "random_resized_crop", "images " + to_string(shape));
            return Map::Result{{shape[0], height, width}, dtype};
          },
          [height, width, o](const TensorView& in, const TensorView& out, const RandomKey& key) {
            const Part part = draw_part(ElementKey(key), in.shape[1], in.shape[2], o);
            formats::resize(in.as<std::uint8_t>() + part.top * in.shape[2] + part.left,
                            {in.shape[0], part.height, part.width, in.shape[2], in.shape[1] * in.shape[2]},
                            out.as<std::uint8_t>(), height, width);
          }};
}

Map colour_jitter(const ColourJitter& o) {
  require(o.brightness >= 0 && o.contrast >= 0 && o.saturation >= 0 && std::isfinite(o.brightness) &&
              std::isfinite(o.contrast) && std::isfinite(o.saturation),
          "colour_jitter",
          "brightness " + general_text(o.brightness, 6) + ", contrast " + general_text(o.contrast, 6) +
              ", saturation " + general_text(o.saturation, 6) + ": at least 0 is wanted of each");
  return {[](const Dims& shape, DType dtype) {
            require_picture("colour_jitter", shape, dtype);
            require(shape[0] == 1 || shape[0] == 3, "colour_jitter",
                    "images " + to_string(shape) + ": 1 or 3 channels");
            return Map::Result{shape, dtype};
          },
          [o](const TensorView& in, const TensorView& out, const RandomKey& key) {
            const ElementKey elements(key);
            const auto factor = [&](std::uint64_t i, double range) {
              return drawn(elements, i, std::max(0.0, 1 - range), 1 + range);
            };
            const double b = factor(0, o.brightness), c = factor(1, o.contrast), s = factor(2, o.saturation);
            const auto kept = [](double p) { return std::clamp(p, 0.0, 255.0); };
            const std::int64_t channels = in.shape[0], n = in.shape[1] * in.shape[2];
            const auto* const from = in.as<std::uint8_t>();
            const auto pixel = [&](std::int64_t i) {
              std::array<double, 3> p{};
              for (std::int64_t k = 0; k < 3; ++k) {
                p[static_cast<std::size_t>(k)] = kept(b * from[std::min(k, channels - 1) * n + i]);
              }
              return p;
            };
            const auto grey = [](const std::array<double, 3>& p) { return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]; };
            double mean = 0;
            for (std::int64_t i = 0; i < n; ++i) mean += grey(pixel(i));
            mean /= static_cast<double>(std::max<std::int64_t>(1, n));
            for (std::int64_t i = 0; i < n; ++i) {
              std::array<double, 3> p = pixel(i);
              for (double& x : p) x = kept(c * x + (1 - c) * mean);
              const double g = grey(p);
              for (std::int64_t k = 0; k < channels; ++k) {
                const double x = p[static_cast<std::size_t>(k)];
                out.as<std::uint8_t>()[k * n + i] =
                    static_cast<std::uint8_t>(std::lround(channels == 1 ? x : kept(s * x + (1 - s) * g)));
              }
            }
          }};
}

}  // namespace sluice::nn
