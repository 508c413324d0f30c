#include "sluice/nn/data/map.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "sluice/engine/errors.h"
#include "sluice/resources/random.h"

namespace sluice::nn {
namespace {

std::int64_t bytes_of(const TensorView& view) { return view.count() * static_cast<std::int64_t>(size_of(view.dtype)); }

void apply(const Map& map, const TensorView& in, const TensorView& out, const RandomKey& key) {
  if (map.apply) {
    map.apply(in, out, key);
  } else {
    std::memcpy(out.data, in.data, static_cast<std::size_t>(bytes_of(in)));
  }
}

}  // namespace

Map pixels(double mean, double deviation) {
  if (deviation == 0) throw UsageError("[nn::pixels] the deviation is 0");
  std::array<float, 256> table;
  for (std::size_t i = 0; i < 256; ++i) {
    table[i] = static_cast<float>((static_cast<double>(i) / 255 - mean) / deviation);
  }
  return {[](const Dims& shape, DType dtype) {
            if (dtype != DType::u8) {
              throw UsageError("[nn::pixels] samples of " + std::string(name_of(dtype)) + ", not u8");
            }
            return Map::Result{shape, DType::f32};
          },
          [table](const TensorView& in, const TensorView& out, const RandomKey&) {
            const auto* const from = in.as<std::uint8_t>();
            std::transform(from, from + in.count(), out.as<float>(), [&](std::uint8_t pixel) { return table[pixel]; });
          }};
}

Map random_crop(std::int64_t pad) {
  if (pad < 0) throw UsageError("[nn::random_crop] a pad of " + std::to_string(pad));
  return {[](const Dims& shape, DType dtype) {
            if (shape.rank() < 2) throw UsageError("[nn::random_crop] samples " + to_string(shape) + " are no images");
            return Map::Result{shape, dtype};
          },
          [pad](const TensorView& in, const TensorView& out, const RandomKey& key) {
            const ElementKey elements(key);
            const std::int64_t down = uniform_int(elements, 0, -pad, pad + 1);
            const std::int64_t right = uniform_int(elements, 1, -pad, pad + 1);
            const int rank = in.shape.rank();
            const std::int64_t height = in.shape[rank - 2], width = in.shape[rank - 1];
            const std::int64_t images = height * width > 0 ? in.count() / (height * width) : 0;
            const auto size = static_cast<std::int64_t>(size_of(in.dtype));
            std::memset(out.data, 0, static_cast<std::size_t>(bytes_of(out)));
            const std::int64_t first = std::max<std::int64_t>(0, -right), last = std::min(width, width - right);
            for (std::int64_t row = 0; row < images * height; ++row) {
              const std::int64_t from = row % height + down;
              if (from < 0 || from >= height || first >= last) continue;
              const std::int64_t source = (row / height * height + from) * width + first + right;
              std::memcpy(out.data + (row * width + first) * size, in.data + source * size,
                          static_cast<std::size_t>((last - first) * size));
            }
          }};
}

Map random_flip() {
  return {[](const Dims& shape, DType dtype) {
            if (shape.rank() < 1) throw UsageError("[nn::random_flip] samples that are scalars");
            return Map::Result{shape, dtype};
          },
          [](const TensorView& in, const TensorView& out, const RandomKey& key) {
            if (uniform_int(ElementKey(key), 0, 0, 2) == 0) {
              std::memcpy(out.data, in.data, static_cast<std::size_t>(bytes_of(in)));
              return;
            }
            const std::int64_t width = in.shape.back();
            const auto size = static_cast<std::int64_t>(size_of(in.dtype));
            for (std::int64_t i = 0; i < in.count(); ++i) {
              const std::int64_t mirror = i - i % width + width - 1 - i % width;
              std::memcpy(out.data + i * size, in.data + mirror * size, static_cast<std::size_t>(size));
            }
          }};
}

Map then(Map first, Map second) {
  const auto result = [first, second](const Dims& shape, DType dtype) { return second.of(first.of({shape, dtype})); };
  const auto both = [first, second](const TensorView& in, const TensorView& out, const RandomKey& key) {
    const Map::Result between = first.of({in.shape, in.dtype});
    std::vector<std::byte> bytes(between.bytes());
    const TensorView middle{bytes.data(), between.dtype, between.shape, row_major(between.shape)};
    apply(first, in, middle, key);
    RandomKey other = key;  // derived once for each part, so that all of them draw apart
    for (int i = 0; i < first.parts; ++i) other = RandomStream(other.seed, other.stream).derive(1).state();
    other.draw = key.draw;
    apply(second, middle, out, other);
  };
  Map map(result, both);
  map.parts = first.parts + second.parts;
  return map;
}

}  // namespace sluice::nn
