// Copies between strided windows, against a walk over the indices.
#include "sluice/ndarray/strided_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

constexpr unsigned kSeed = 7;

/// Axes in an order of memory, with gaps between their steps: the strides of each axis, and how many elements that is.
std::int64_t lay_out(const Dims& shape, const std::vector<int>& order, std::int64_t gap, Dims& strides) {
  strides = shape;
  std::int64_t step = 1;
  for (const int axis : order) {
    strides[axis] = step;
    step = step * shape[axis] + gap;
  }
  return step;
}

/// Transpositions above all: axes in another order of memory on each side, with sizes around those of the squares that
/// are turned at once. What lies between the elements stays as it is.
TEST(StridedCopy, TurnsAxes) {
  std::mt19937 random(kSeed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const std::vector<std::vector<int>> orders{{2, 1, 0}, {2, 0, 1}, {1, 2, 0}, {1, 0, 2}, {0, 1, 2}, {0, 2, 1}};
  for (int round = 0; round < 600; ++round) {
    const DType dtype = std::vector{DType::u8, DType::bf16, DType::f32, DType::f64}[round % 4];
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    Dims shape{pick(1, 3), pick(1, round % 3 ? 20 : 200), pick(1, round % 3 ? 20 : 200)};
    if (round % 5 == 0) shape[2] = 64 * pick(1, 2);
    if (round % 5 == 1) shape[1] = 32 * pick(1, 3);
    Dims from_strides, to_strides;
    const std::int64_t from_count =
        lay_out(shape, orders[static_cast<std::size_t>(pick(0, 5))], pick(0, 2), from_strides);
    const std::int64_t to_count = lay_out(shape, orders[static_cast<std::size_t>(pick(0, 5))], pick(0, 2), to_strides);
    std::vector<std::byte> from(static_cast<std::size_t>(from_count * size));
    for (std::byte& b : from) b = static_cast<std::byte>(pick(0, 255));
    std::vector<std::byte> to(static_cast<std::size_t>(to_count * size), std::byte{0xAB}), wanted = to;
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        for (std::int64_t k = 0; k < shape[2]; ++k) {
          const std::int64_t a = i * from_strides[0] + j * from_strides[1] + k * from_strides[2];
          const std::int64_t b = i * to_strides[0] + j * to_strides[1] + k * to_strides[2];
          std::memcpy(wanted.data() + b * size, from.data() + a * size, static_cast<std::size_t>(size));
        }
      }
    }
    strided_copy({from.data(), dtype, shape, from_strides}, {to.data(), dtype, shape, to_strides});
    EXPECT_TRUE(to == wanted) << "seed " << kSeed << " round " << round << ": " << to_string(shape) << " of " << size
                              << " bytes, strides " << to_string(from_strides) << " to " << to_string(to_strides);
  }
}

}  // namespace
}  // namespace sluice
