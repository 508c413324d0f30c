#include "sluice/ndarray/formats/resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sluice::formats {
namespace {

/// What an output of one axis is made of: the inputs from `begin` to before `end`, by a triangle around `middle`, with
/// weights whose sum is 1.
struct Mix {
  std::int64_t begin, end;
  double middle, reach, sum = 0;

  double triangle(std::int64_t k) const {
    return std::max(0.0, 1 - std::abs((static_cast<double>(k) + 0.5 - middle) / reach));
  }
  float weight(std::int64_t k) const { return static_cast<float>(triangle(k) / sum); }
};

std::vector<Mix> mixes(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(scale, 1.0);
  std::vector<Mix> all;
  for (std::int64_t i = 0; i < to; ++i) {
    const double middle = (static_cast<double>(i) + 0.5) * scale;
    Mix mix{std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(middle - reach))),
            std::min(from, static_cast<std::int64_t>(std::ceil(middle + reach))), middle, reach};
    for (std::int64_t k = mix.begin; k < mix.end; ++k) mix.sum += mix.triangle(k);
    all.push_back(mix);
  }
  return all;
}

}  // namespace

void resize(const std::uint8_t* from, const Planes& of, std::uint8_t* to, std::int64_t to_height,
            std::int64_t to_width) {
  const std::vector<Mix> down = mixes(of.height, to_height), across = mixes(of.width, to_width);
  const std::size_t columns = across.size();
  std::vector<float> weights;  // of `across`, behind one another
  for (const Mix& mix : across) {
    for (std::int64_t k = mix.begin; k < mix.end; ++k) weights.push_back(mix.weight(k));
  }
  std::vector<float> row(columns), sums(down.size() * columns);
  for (std::int64_t plane = 0; plane < of.planes; ++plane) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    std::size_t first = 0;  // of the outputs that still want rows
    for (std::int64_t i = 0; i < of.height; ++i) {
      const float* weight = weights.data();
      for (std::size_t j = 0; j < columns; ++j) {
        const std::uint8_t* const at = from + plane * of.plane_stride + i * of.stride;
        float sum = 0;
        for (std::int64_t k = across[j].begin; k < across[j].end; ++k) sum += *weight++ * static_cast<float>(at[k]);
        row[j] = sum;
      }
      while (first < down.size() && down[first].end <= i) ++first;
      for (std::size_t r = first; r < down.size() && down[r].begin <= i; ++r) {
        const float part = down[r].weight(i);
        float* const sum = sums.data() + r * columns;
        for (std::size_t j = 0; j < columns; ++j) sum[j] += part * row[j];
      }
    }
    to = std::transform(sums.begin(), sums.end(), to,
                        [](float x) { return static_cast<std::uint8_t>(std::clamp(x + 0.5F, 0.0F, 255.0F)); });
  }
}

}  // namespace sluice::formats
