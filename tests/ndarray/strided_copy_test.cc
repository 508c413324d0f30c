// Copies between strided windows, against a walk over the indices.
#include "sluice/ndarray/strided_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"

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
/// are turned at once, broadcast and reversed ones too. What lies between the elements stays as it is.
TEST(StridedCopy, TurnsAxes) {
  Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = 4});
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
    std::byte *first = from.data(), *into = to.data(), *into_wanted = wanted.data();
    if (const auto axis = static_cast<int>(pick(0, 5)); axis < 3) {  // the same element along an axis, or its reverse
      if (pick(0, 1) == 0) {
        from_strides[axis] = 0;
      } else {
        first += (shape[axis] - 1) * from_strides[axis] * size;
        from_strides[axis] = -from_strides[axis];
      }
    } else {
      into += (shape[axis - 3] - 1) * to_strides[axis - 3] * size;
      into_wanted += (shape[axis - 3] - 1) * to_strides[axis - 3] * size;
      to_strides[axis - 3] = -to_strides[axis - 3];
    }
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        for (std::int64_t k = 0; k < shape[2]; ++k) {
          const std::int64_t a = i * from_strides[0] + j * from_strides[1] + k * from_strides[2];
          const std::int64_t b = i * to_strides[0] + j * to_strides[1] + k * to_strides[2];
          std::memcpy(into_wanted + b * size, first + a * size, static_cast<std::size_t>(size));
        }
      }
    }
    const auto copy = [&] { strided_copy({first, dtype, shape, from_strides}, {into, dtype, shape, to_strides}); };
    round % 10 == 0 ? engine.push(copy, {}, {.on = cpu(0)}).wait() : copy();
    EXPECT_TRUE(to == wanted) << "seed " << kSeed << " round " << round << ": " << to_string(shape) << " of " << size
                              << " bytes, strides " << to_string(from_strides) << " to " << to_string(to_strides);
  }
}

/// Few columns of many rows are cut along the rows, for several threads.
TEST(StridedCopy, TurnsLongOnes) {
  Engine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = 4});
  for (const std::int64_t columns : {8, 33, 64, 70}) {
    const std::int64_t rows = 20000;
    std::vector<float> from(static_cast<std::size_t>(rows * columns)), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
    const auto view = [&](std::vector<float>& of, const Dims& strides) {
      return TensorView{reinterpret_cast<std::byte*>(of.data()), DType::f32, {columns, rows}, strides};
    };
    engine.push([&] { strided_copy(view(from, {1, columns}), view(to, {rows, 1})); }, {}, {.on = cpu(0)}).wait();
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        ASSERT_EQ(to[static_cast<std::size_t>(j * rows + i)], static_cast<float>(i * columns + j)) << i << " " << j;
      }
    }
    std::vector<float> back(from.size());
    engine.push([&] { strided_copy(view(to, {rows, 1}), view(back, {1, columns})); }, {}, {.on = cpu(0)}).wait();
    EXPECT_TRUE(back == from) << columns;
  }
}

}  // namespace
}  // namespace sluice
