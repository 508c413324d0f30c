// The operators of networks that add many numbers, and all cases together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "long_sums_cases.h"

namespace sluice::testing {

inline void add_long_networks(LongSums& list) {
  using A = const Arrays&;
  constexpr double of_y = 1e-5, of_weight = 1e-6;
  const auto few = [](std::int64_t) { return Dims{4}; };
  // Rows of n elements, and n rows of 4.
  for (const Numbers& numbers : {kUniform, kFar}) {
    const auto long_rows = [](std::int64_t n) { return Dims{2, n}; };
    const auto many_rows = [](std::int64_t n) { return Dims{n, 4}; };
    list.of(
        "layer_norm of long rows, " + numbers.name, {{numbers, long_rows}}, [](A x) { return layer_norm(x[0]); }, of_y,
        of_y);
    list.of(
        "rms_norm of long rows, " + numbers.name, {{numbers, long_rows}}, [](A x) { return rms_norm(x[0]); }, of_y,
        of_y);
    list.of(
        "layer_norm of many rows, " + numbers.name, {{numbers, many_rows}, {kUniform, few}, {kUniform, few}},
        [](A x) { return layer_norm(x[0].detach(), x[1], x[2]); }, of_y, of_weight);
    list.of(
        "rms_norm of many rows, " + numbers.name, {{numbers, many_rows}, {kUniform, few}},
        [](A x) { return rms_norm(x[0].detach(), x[1]); }, of_y, of_weight);
    const auto images = [](std::int64_t n) { return Dims{n / 100, 4, 100}; };
    // The gradient of the weight is what is left of numbers that nearly cancel, and were rounded.
    constexpr double of_rest = 1e-4;
    const auto groups = [](std::int64_t n) { return Dims{2, 4, n / 2}; };
    const auto by_batch = [](A x) { return batch_norm(x[0], {}, x[1], x[2]); };
    const auto by_group = [](A x) { return group_norm(x[0], 2, x[1], x[2]); };
    list.of("batch_norm, " + numbers.name, {{numbers, images}, {kUniform, few}, {kUniform, few}}, by_batch, of_y,
            of_rest);
    list.of("group_norm, " + numbers.name, {{numbers, groups}, {kUniform, few}, {kUniform, few}}, by_group, of_y,
            of_rest);
    const auto small_images = [](std::int64_t n) { return Dims{n / 2, 4, 2}; };
    list.of("batch_norm of small images, " + numbers.name, {{numbers, small_images}, {kUniform, few}, {kUniform, few}},
            by_batch, of_y, of_rest);
    // Here they do not cancel.
    list.of(
        "square of batch_norm, " + numbers.name, {{numbers, images}, {kUniform, few}, {kUniform, few}},
        [=](A x) {
          return square(by_batch({x[0].detach(), x[1], x[2]}));
        },
        of_y, of_weight);
    list.of(
        "square of group_norm, " + numbers.name, {{numbers, groups}, {kUniform, few}, {kUniform, few}},
        [=](A x) {
          return square(by_group({x[0].detach(), x[1], x[2]}));
        },
        of_y, of_weight);
  }
  for (const Numbers& numbers : {kUniform, kEqual}) {
    const auto one_image = [](std::int64_t n) { return Dims{1, 2, n / 100, 100}; };
    const auto many_images = [](std::int64_t n) { return Dims{n / 64, 2, 8, 8}; };
    const auto kernel = [](std::int64_t out, std::int64_t in, std::int64_t size) {
      return [=](std::int64_t) { return Dims{out, in, size, size}; };
    };
    const auto conv = [](A x) { return conv2d(x[0].detach(), x[1], x[2], {.padding = 1}); };
    const auto bias_of = [](std::int64_t out) { return [=](std::int64_t) { return Dims{out}; }; };
    list.of("conv2d of an image, " + numbers.name,
            {{numbers, one_image}, {numbers, kernel(3, 2, 3)}, {numbers, bias_of(3)}}, conv, of_y, of_y);
    list.of("conv2d of many images, " + numbers.name,
            {{numbers, many_images}, {numbers, kernel(3, 2, 3)}, {numbers, bias_of(3)}}, conv, of_y, of_y);
    list.of("conv2d of 32 channels, " + numbers.name,
            {{numbers,
              [](std::int64_t n) {
                return Dims{n / 64, 32, 8, 8};
              }},
             {numbers, kernel(32, 32, 3)},
             {numbers, bias_of(32)}},
            conv, of_y, of_y, 100'000);
    list.of("conv2d of an image of 32 channels, " + numbers.name,
            {{numbers,
              [](std::int64_t n) {
                return Dims{1, 32, n / 100, 100};
              }},
             {numbers, kernel(16, 32, 3)},
             {numbers, bias_of(16)}},
            conv, of_y, of_y, 100'000);
    list.of(
        "avg_pool2d, " + numbers.name, {{numbers, one_image}},
        [](A x) {
          return avg_pool2d(x[0], {x[0].size(2), x[0].size(3)});
        },
        1e-6, 1e-6);
  }
  // The scores' gradients add to 0: of numbers around 0 what is left is no difference of large sums.
  const auto few_heads = [](std::int64_t) { return Dims{3, 8}; };
  const auto many = [](std::int64_t n) { return Dims{n, 8}; };
  const auto attend = [](A x) { return attention(x[0], x[1], x[2]); };
  for (const Numbers& numbers : {kUniform, kEqual, kAroundZero}) {
    const bool centred = numbers.name == kAroundZero.name;
    const std::size_t before = list.cases.size();
    list.of("attention of many keys, " + numbers.name, {{numbers, few_heads}, {numbers, many}, {numbers, many}}, attend,
            centred ? 1e-5 : 1e-6, 1e-5, 100'000);
    list.of("attention of many queries, " + numbers.name, {{numbers, many}, {numbers, few_heads}, {numbers, few_heads}},
            attend, 1e-6, 1e-5, 100'000);
    for (std::size_t i = before; i < list.cases.size(); ++i) list.cases[i].gradient = centred;
  }
  // n equal indices, and n indices of few.
  for (const auto& [name, rows] : {std::pair<const char*, std::int64_t>("one", 1), {"seven", 7}}) {
    for (const std::int64_t size : {std::int64_t{9}, std::int64_t{1'000'000}}) {
      const std::string of = std::string(" of ") + name + " of " + std::to_string(size);
      const auto indices = [distinct = rows](std::int64_t n) { return remainder(arange(0, n), distinct); };
      list.add(
          "embedding" + of,
          [=](std::int64_t n) {
            return Arrays{between(0, 1, {size, 3}, 8), indices(n)};
          },
          [](A x) { return embedding(x[0], x[1]); }, 1e-6, 1e-6);
      list.add(
          "index_add" + of,
          [=](std::int64_t n) {
            return Arrays{between(0, 1, {size}, 8), between(0, 1, {n}, 9), indices(n)};
          },
          [](A x) { return index_add(x[0], 0, x[2], x[1]); }, 1e-6, 1e-6);
    }
  }
}

inline std::vector<LongSum> long_sums() {
  LongSums list;
  add_long_reductions(list);
  add_long_losses(list);
  add_long_products(list);
  add_long_networks(list);
  return list.cases;
}

/// Of numbers below 1, so that sums fit f16.
inline std::vector<LongSum> long_sums_of_halves() {
  using A = const Arrays&;
  LongSums list;
  const Numbers small{"", [](const Dims& s, std::uint64_t seed) { return between(0, 1, s, seed); }};
  const auto rows = [](std::int64_t n) { return Dims{n, 3}; };
  const auto middle = [](std::int64_t n) { return Dims{2, n, 2}; };
  const auto row = [](std::int64_t n) { return Dims{1, n}; };
  const auto two = [](std::int64_t n) { return Dims{2, n}; };
  list.of(
      "sum first", {{small, rows}}, [](A x) { return sum(x[0], 0); }, 0, 0);
  list.of(
      "sum middle", {{small, middle}}, [](A x) { return sum(x[0], 1); }, 0, 0);
  list.of(
      "mean last", {{small, two}}, [](A x) { return mean(x[0], -1); }, 0, 0);
  list.of(
      "variance", {{small, two}}, [](A x) { return variance(x[0], -1); }, 0, 0);
  list.of(
      "softmax", {{small, two}}, [](A x) { return softmax(x[0] * 8, -1); }, 0, 0);
  list.of(
      "layer_norm", {{small, two}}, [](A x) { return layer_norm(x[0]); }, 0, 0);
  list.of(
      "matmul of a row", {{small, row}, {small, rows}}, [](A x) { return matmul(x[0], x[1]); }, 0, 0);
  list.of(
      "matmul", {{small, two}, {small, rows}}, [](A x) { return matmul(x[0], x[1]); }, 0, 0);
  for (LongSum& c : list.cases) c.gradient = false;
  return list.cases;
}

}  // namespace sluice::testing
