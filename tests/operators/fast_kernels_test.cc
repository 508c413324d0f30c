// Kernels of the CPU backend that do the same by quicker means, on sizes at which they are chosen, against the
// reference or plain loops: radix sorts, transposed copies, matmul of f16 and bf16, and functions in vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops_table.h"
#include "sluice/operators/backends/cpu/elementwise_rows.h"
#include "sluice/operators/backends/cpu/sort_keys.h"
#include "sluice/operators/lines.h"

namespace sluice::testing {
namespace {

using namespace cpu_backend;

constexpr std::uint32_t kSeed = 20261123;

/// Any bits: numbers of all sizes, infinities, NaN and zeros of both signs, with repetitions.
template <class T>
std::vector<T> any_bits(std::mt19937& random, std::size_t n) {
  std::vector<T> values(n);
  std::vector<unsigned char> bytes(sizeof(T));
  for (std::size_t i = 0; i < n; ++i) {
    if (i > 0 && random() % 4 == 0) {
      values[i] = values[random() % i];
    } else if (random() % 16 == 0) {
      values[i] = T(random() % 2 == 0 ? 0.0F : -0.0F);
    } else {
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
      if (random() % 16 == 0) std::fill(bytes.begin(), bytes.end(), 0xFF);  // NaN, or -1
      if constexpr (std::is_same_v<T, bool>) {
        values[i] = bytes[0] % 2 != 0;
      } else {
        std::memcpy(&values[i], bytes.data(), sizeof(T));
      }
    }
  }
  return values;
}

template <class T>
void keys_order_as_elements(std::mt19937& random) {
  const std::vector<T> values = any_bits<T>(random, 400);
  for (const bool descending : {false, true}) {
    for (const T& a : values) {
      for (const T& b : values) {
        const auto p = key_of_element(a), q = key_of_element(b);
        const auto i = sort_key(a, descending), j = sort_key(b, descending);
        ASSERT_EQ(i < j, comes_before(p, q, descending)) << name_of(dtype_of<T>) << ' ' << i << ' ' << j;
      }
    }
  }
}

TEST(FastKernels, SortKeysOrderAsElements) {
  std::mt19937 random(kSeed);
  keys_order_as_elements<float>(random);
  keys_order_as_elements<double>(random);
  keys_order_as_elements<Float16>(random);
  keys_order_as_elements<BFloat16>(random);
  keys_order_as_elements<std::int8_t>(random);
  keys_order_as_elements<std::uint8_t>(random);
  keys_order_as_elements<std::int32_t>(random);
  keys_order_as_elements<std::int64_t>(random);
}

template <class Entry>
void sorts_every_size(std::mt19937& random, int key_bits) {
  for (const std::int64_t n : {1, 2, 511, 512, 513, 5000}) {
    for (const std::int64_t wanted : {std::int64_t{1}, n / 9, n / 2, n}) {
      for (const std::uint64_t differ : {std::uint64_t{0}, std::uint64_t{7}, ~std::uint64_t{0}}) {
        if (wanted == 0) continue;
        std::vector<Entry> entries, other(static_cast<std::size_t>(n));
        const std::uint64_t all = key_bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << key_bits) - 1;
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint64_t bits = static_cast<std::uint64_t>(random()) << 32U | random();
          entries.push_back(Entry::of(bits & all & differ, i));
        }
        std::vector<Entry> expected = entries;
        std::sort(expected.begin(), expected.end());
        const Entry* got = sort_entries(entries.data(), other.data(), n, wanted, key_bits);
        for (std::int64_t i = 0; i < wanted; ++i) {
          ASSERT_EQ(got[i].place(), expected[static_cast<std::size_t>(i)].place()) << n << ' ' << wanted << ' ' << i;
        }
      }
    }
  }
}

TEST(FastKernels, EntriesAreSortedOfEverySize) {
  std::mt19937 random(kSeed);
  for (const int bits : {8, 16, 32}) sorts_every_size<PackedEntry>(random, bits);
  for (const int bits : {32, 64}) sorts_every_size<WideEntry>(random, bits);
}

template <class T>
void sorts_as_the_reference(std::mt19937& random) {
  SCOPED_TRACE(std::string(name_of(dtype_of<T>)));
  const NDArray x = from(any_bits<T>(random, 3 * 1500 * 2), {3, 1500, 2});
  for (const bool descending : {false, true}) {
    const auto both = [&](const auto& f) {
      const ValuesAndIndices got = f();
      const ValuesAndIndices wanted = by_reference(f);
      EXPECT_EQ(got.indices.template to_vector<std::int64_t>(), wanted.indices.template to_vector<std::int64_t>());
      const auto a = got.values.template to_vector<T>(), b = wanted.values.template to_vector<T>();
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(T)));
    };
    both([&] { return sort_with_indices(x, 1, {.descending = descending}); });
    both([&] { return topk(x, 20, 1, {.largest = descending}); });
  }
}

TEST(FastKernels, LongLinesAreSortedAsByTheReference) {
  std::mt19937 random(kSeed);
  sorts_as_the_reference<float>(random);
  sorts_as_the_reference<double>(random);
  sorts_as_the_reference<Float16>(random);
  sorts_as_the_reference<BFloat16>(random);
  sorts_as_the_reference<std::int8_t>(random);
  sorts_as_the_reference<std::uint8_t>(random);
  sorts_as_the_reference<std::int32_t>(random);
  sorts_as_the_reference<std::int64_t>(random);
}

/// Copies between windows whose axes are permuted, cut and reversed, of all element sizes: each element by its place.
TEST(FastKernels, TransposedCopies) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const DType dtype = std::array{DType::u8, DType::f16, DType::f32, DType::f64}[random() % 4];
    Dims shape;
    const int rank = 2 + static_cast<int>(random() % 3);
    for (int i = 0; i < rank; ++i) shape.push_back(1 + static_cast<std::int64_t>(random() % (rank == 2 ? 90 : 24)));
    std::vector<int> order(static_cast<std::size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Dims axes;
    for (const int axis : order) axes.push_back(axis);
    std::vector<double> numbers(static_cast<std::size_t>(shape.count()));
    std::iota(numbers.begin(), numbers.end(), 0.0);
    for (double& number : numbers) number = std::fmod(number, 251);
    const NDArray whole = from(numbers, shape).to(dtype), turned = whole.permute(axes);
    // The element of a place, from row-major order alone.
    std::vector<double> wanted(numbers.size());
    const Dims strides = row_major(shape);
    for (std::int64_t at = 0; at < shape.count(); ++at) {
      std::int64_t rest = at, from_place = 0;
      for (int i = rank - 1; i >= 0; --i) {
        const int axis = order[static_cast<std::size_t>(i)];
        from_place += rest % shape[axis] * strides[axis];
        rest /= shape[axis];
      }
      wanted[static_cast<std::size_t>(at)] = numbers[static_cast<std::size_t>(from_place)];
    }
    EXPECT_EQ(turned.contiguous().to(DType::f64).to_vector<double>(), wanted) << to_string(shape) << to_string(axes);
    NDArray back = zeros(shape, dtype);
    back.permute(axes).assign(turned.contiguous());  // writes into a window whose axes are permuted
    EXPECT_EQ(back.to(DType::f64).to_vector<double>(), numbers) << to_string(shape) << to_string(axes);
  }
}

TEST(FastKernels, ProductsOfHalvesAreRoundedOnce) {
  std::mt19937 random(kSeed);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns, DType dtype) {
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    for (float& v : values) v = std::uniform_real_distribution<float>(-1, 1)(random);
    return from(values, {rows, columns}).to(dtype);
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const double step = dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
    for (int round = 0; round < 40; ++round) {
      const auto size = [&] { return static_cast<std::int64_t>(random() % (round < 30 ? 20 : 300)); };
      const std::int64_t m = size(), n = size(), k = size();
      const bool turn_a = random() % 2 != 0, turn_b = random() % 2 != 0;
      const NDArray a = turn_a ? matrix(k, m, dtype).transpose() : matrix(m, k, dtype);
      const NDArray b = turn_b ? matrix(n, k, dtype).transpose() : matrix(k, n, dtype);
      const NDArray bias = matrix(1, n, dtype).reshape({n});
      const NDArray wide_a = a.to(DType::f64), wide_b = b.to(DType::f64);
      const auto compare = [&](const NDArray& got, const NDArray& wanted) {
        ASSERT_EQ(got.dtype(), dtype);
        const auto g = got.to(DType::f64).to_vector<double>(), w = wanted.to_vector<double>();
        for (std::size_t i = 0; i < g.size(); ++i) {
          ASSERT_NEAR(g[i], w[i], 0.6 * step * std::fabs(w[i]) + 1e-6 * static_cast<double>(k + 1))
              << m << 'x' << k << 'x' << n << ' ' << turn_a << turn_b;
        }
      };
      const NDArray product = matmul(wide_a, wide_b);
      compare(matmul(a, b), product);
      // A stack of them, with operands that broadcast; the larger are split within each matrix.
      const NDArray stack_a = stack({a, -a, a}), stack_b = stack({b, b, b * 0.5});
      compare(matmul(stack_a, stack_b), stack({product, -product, product * 0.5}));
      compare(matmul(stack_a, b), stack({product, -product, product}));
      compare(matmul(stack({a, -a}, 2).permute({2, 0, 1}), b), stack({product, -product}));
      compare(linear(a, b.transpose(), bias), product + bias.to(DType::f64));
    }
  }
}

/// Every f32 of a kind with its 8 lowest bits left out: against f64, in units of the last place.
template <class Fast, class Exact>
void within(double ulps, float low, float high, Fast fast, Exact exact) {
  for (std::uint32_t bits = 0; bits < 0xFFFFFF00U; bits += 0x101U) {
    const float x = std::bit_cast<float>(bits);
    if (!(x >= low && x <= high)) continue;
    const double wanted = exact(static_cast<double>(x));
    const float rounded = static_cast<float>(wanted), got = fast(x);
    if (rounded == got) continue;
    const float size = std::max(std::fabs(rounded), std::numeric_limits<float>::min());
    const double unit = static_cast<double>(std::nextafter(size, INFINITY)) - static_cast<double>(size);
    ASSERT_LE(std::fabs(static_cast<double>(got) - wanted), ulps * unit) << x << ": " << got << ", not " << rounded;
  }
}

TEST(FastKernels, FunctionsInVectorsAreNear) {
  constexpr float all = std::numeric_limits<float>::infinity();
  within(
      3, -150, 88.7F, [](float x) { return fast_exp(x); }, [](double x) { return std::exp(x); });
  within(
      1, 1e-45F, 3.4e38F, [](float x) { return fast_log(x); }, [](double x) { return std::log(x); });
  within(
      2, -all, all, [](float x) { return fast_tanh(x); }, [](double x) { return std::tanh(x); });
  within(
      3, -all, all, [](float x) { return fast_erf(x); }, [](double x) { return std::erf(x); });
}

/// Those made of an exp or a quotient: against f64, relative to the larger of 1 and x.
template <class Fast, class Exact>
void near_enough(double bound, Fast fast, Exact exact) {
  for (std::uint32_t bits = 0; bits < 0xFFFFFF00U; bits += 0x101U) {
    const float x = std::bit_cast<float>(bits);
    if (!(std::fabs(x) <= 50)) continue;
    const double wanted = exact(static_cast<double>(x)), got = static_cast<double>(fast(x));
    ASSERT_LE(std::fabs(got - wanted), bound * std::max(1.0, std::fabs(static_cast<double>(x))))
        << x << ": " << got << ", not " << wanted;
    ASSERT_TRUE(std::fabs(x) > 0.001 || std::fabs(got - wanted) <= 0x1p-22 * std::fabs(wanted) + 1e-44)
        << x << ": " << got << ", not " << wanted;
  }
}

TEST(FastKernels, ActivationsInVectorsAreNear) {
  const auto normal = [](double x) { return std::erfc(-x / std::sqrt(2)) / 2; };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto of_tanh = [](double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); };
  near_enough(0x1.4p-22, FastGelu{}, [&](double x) { return x * normal(x); });
  near_enough(
      0x1p-21, [](float x) { return FastGeluGrad{}(1.0F, x); },
      [&](double x) { return normal(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); });
  near_enough(0x1p-21, FastGeluTanh{}, [&](double x) { return x * sigmoid(of_tanh(x)); });
  near_enough(
      0x1p-21, [](float x) { return FastGeluTanhGrad{}(1.0F, x); },
      [&](double x) {
        const double u = of_tanh(x), slope = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        return sigmoid(u) * (1 + x * sigmoid(-u) * slope);
      });
  near_enough(0x1p-22, FastSilu{}, [&](double x) { return x * sigmoid(x); });
  near_enough(
      0x1p-22, [](float x) { return FastSiluGrad{}(1.0F, x); },
      [&](double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); });
}

TEST(FastKernels, FunctionsInVectorsAtTheEnds) {
  constexpr float inf = INFINITY, nan = NAN;
  EXPECT_EQ(fast_log(0.0F), -inf);
  EXPECT_EQ(fast_log(-0.0F), -inf);
  EXPECT_EQ(fast_log(inf), inf);
  EXPECT_EQ(fast_log(1.0F), 0.0F);
  for (const float x : {-1.0F, -1e-45F, -inf, nan}) EXPECT_TRUE(std::isnan(fast_log(x))) << x;
  EXPECT_TRUE(std::isnan(fast_tanh(nan)) && std::isnan(fast_erf(nan)) && std::isnan(fast_exp(nan)));
  EXPECT_TRUE(std::signbit(fast_tanh(-0.0F)) && std::signbit(fast_erf(-0.0F)));
  EXPECT_EQ(FastGelu{}(inf), inf);
  EXPECT_EQ(FastGelu{}(-inf), 0.0F);
  EXPECT_EQ(FastGeluGrad{}(2.0F, inf), 2.0F);
  EXPECT_EQ(FastGeluGrad{}(2.0F, -inf), 0.0F);
  EXPECT_TRUE(std::isnan(FastGelu{}(nan)) && std::isnan(FastGeluGrad{}(1.0F, nan)));
  for (const float x : {-inf, -100.0F, -5.51F}) EXPECT_EQ(FastGelu{}(x), 0.0F) << x;
  for (const float x : {inf, 100.0F, 5.51F}) EXPECT_EQ(FastGelu{}(x), x) << x;
  EXPECT_EQ(FastGeluTanh{}(inf), inf);
  EXPECT_EQ(FastGeluTanh{}(-inf), 0.0F);
  EXPECT_EQ(FastGeluTanhGrad{}(2.0F, inf), 2.0F);
  EXPECT_EQ(FastGeluTanhGrad{}(2.0F, -inf), 0.0F);
  EXPECT_EQ(FastSilu{}(inf), inf);
  EXPECT_EQ(FastSilu{}(-inf), 0.0F);
  EXPECT_EQ(FastSiluGrad{}(2.0F, inf), 2.0F);
  EXPECT_EQ(FastSiluGrad{}(2.0F, -inf), 0.0F);
  for (const float y : {FastGeluTanh{}(nan), FastGeluTanhGrad{}(1.0F, nan), FastSilu{}(nan), FastSiluGrad{}(1.0F, nan)})
    EXPECT_TRUE(std::isnan(y));
}

/// A reduction finds the first of equal elements, and NaN, wherever they are in a long line.
TEST(FastKernels, TheFirstLargestOfLongLines) {
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const std::size_t n = 1 + random() % 2000;
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(random() % 50);
    if (round % 3 == 0) values[random() % n] = NAN;
    if (round % 5 == 0) std::fill(values.begin(), values.end(), random() % 2 == 0 ? -INFINITY : 0.0F);
    std::size_t largest = 0, smallest = 0;
    for (std::size_t i = 1; i < n; ++i) {
      if (!std::isnan(values[largest]) && (values[i] > values[largest] || std::isnan(values[i]))) largest = i;
      if (!std::isnan(values[smallest]) && (values[i] < values[smallest] || std::isnan(values[i]))) smallest = i;
    }
    const NDArray x = from(values, {static_cast<std::int64_t>(n)});
    EXPECT_EQ(argmax(x, 0).item<std::int64_t>(), static_cast<std::int64_t>(largest));
    EXPECT_EQ(argmin(x, 0).item<std::int64_t>(), static_cast<std::int64_t>(smallest));
    const float top = max(x).item<float>(), wanted = values[largest];
    EXPECT_TRUE(top == wanted || (std::isnan(top) && std::isnan(wanted)));
    const float bottom = min(stack({x, x}, 1), 0).to_vector<float>()[1], least = values[smallest];
    EXPECT_TRUE(bottom == least || (std::isnan(bottom) && std::isnan(least)));
  }
}

}  // namespace
}  // namespace sluice::testing
