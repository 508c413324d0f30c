// Random numbers on the CUDA backend are the CPU's: integers and uniforms bit for bit, normals to 2 ulp in f32 and to 6
// in f64, because a card's logarithm, sine and cosine are not the C library's.
#include <cmath>
#include <cstring>

#include "support.h"
#ifndef SLUICE_ON_CARD
#include "random_kernels.h"
#endif

namespace sluice::testing {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
/// Most are no multiples of 4, which is what one block of the generator gives.
constexpr std::int64_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 255, 257, 1023, 4098};
constexpr std::uint64_t kFirst[] = {0, 1, 2, 3, 6, (1ULL << 33) + 5};

using Draw = NDArray (*)(const Dims& shape, RandomStream& stream, double a, double b, DType dtype, std::uint64_t first,
                         std::source_location where);

/// Calls check(on the GPU, on the CPU, what it is) for draws of all dtypes, sizes and first elements.
template <class Check>
void for_all(Draw draw, double a, double b, Check check) {
  const OnCuda on;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t size : kSizes) {
      for (const std::uint64_t first : kFirst) {
        const auto run = [&](Device device) {
          const DeviceScope scope(device);
          RandomStream stream(99, 4);
          (void)draw({3}, stream, a, b, dtype, 0, std::source_location::current());  // not the stream's first draw
          return draw({size}, stream, a, b, dtype, first, std::source_location::current()).to_bytes();
        };
        check(run(gpu(0)), run(cpu(0)),
              std::string(name_of(dtype)) + ", " + std::to_string(size) + " from " + std::to_string(first), dtype);
      }
    }
  }
}

TEST(CudaRandom, UniformsHaveTheBitsOfTheCpu) {
  for (const auto& [low, high] : {std::pair(0.0, 1.0), std::pair(-3.0, 5.5)}) {
    for_all(uniform, low, high, [](const auto& got, const auto& want, const std::string& what, DType) {
      ASSERT_TRUE(got == want) << what;
    });
  }
}

TEST(CudaRandom, DropoutHasTheBitsOfTheCpu) {
  const auto dropped = [](const Dims& shape, RandomStream& stream, double p, double, DType dtype, std::uint64_t first,
                          std::source_location) {
    return dropout((arange(shape.count()).to(DType::f64) * 0.37 + 0.5).to(dtype), p, stream, {.first = first});
  };
  for (const double p : {0.1, 1.0}) {
    for_all(dropped, p, 0, [](const auto& got, const auto& want, const std::string& what, DType) {
      ASSERT_TRUE(got == want) << what;
    });
  }
}

/// A floating number's place among all of its dtype.
std::int64_t place_of(const std::byte* number, DType dtype) {
  std::int64_t bits = 0;
  std::memcpy(&bits, number, size_of(dtype));
  const std::int64_t sign = std::int64_t{1} << (8 * size_of(dtype) - 1);
  const bool negative = (bits & sign) != 0;
  return negative ? -(bits & ~sign) : bits;
}

TEST(CudaRandom, NormalsAreWithinAFewUlpOfTheCpus) {
  for (const double deviation : {1.0, 3.0}) {
    for_all(normal, 0, deviation, [](const auto& got, const auto& want, const std::string& what, DType dtype) {
      ASSERT_EQ(got.size(), want.size()) << what;
      for (std::size_t at = 0; at < got.size(); at += size_of(dtype)) {
        const std::int64_t distance = place_of(&got[at], dtype) - place_of(&want[at], dtype);
        ASSERT_LE(std::abs(distance), dtype == DType::f64 ? 6 : 2) << what << ", element " << at / size_of(dtype);
      }
    });
  }
}

#ifndef SLUICE_ON_CARD
TEST(CudaRandom, IntegersHaveTheBitsOfTheCpu) {
  const OnCuda on;
  const ElementKey key(kIntegersOf);
  for (const std::int64_t size : kSizes) {
    const DeviceScope scope(gpu(0));
    const NDArray words = zeros({size}, DType::i64), numbers = zeros({size}, DType::i64);
    push_op(fill_with_random_integers, {}, {words, numbers}, {.name = "integers"});
    const auto got_words = words.to_vector<std::int64_t>(), got_numbers = numbers.to_vector<std::int64_t>();
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(got_words[at], key.word32(at)) << i << " of " << size;
      ASSERT_EQ(got_numbers[at], uniform_int(key, at, kLowest, kHighest)) << i << " of " << size;
    }
  }
}
#endif

}  // namespace
}  // namespace sluice::testing
