// Shapes that no memory can hold are refused at the call, each with one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kHuge = std::int64_t{1} << 32, kMost = std::numeric_limits<std::int64_t>::max();

/// The call throws ArrayError: one line, which names the operator, this file and the values.
void refused(const char* operation, const std::string& values, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << operation << " took " << values;
  } catch (const ArrayError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("[" + std::string(operation) + "]"), HasSubstr("sizes_test.cc"),
                                HasSubstr(values), Not(HasSubstr("\n"))));
  } catch (const std::exception& e) {
    ADD_FAILURE() << operation << " of " << values << ": " << e.what();
  }
}

TEST(Sizes, CountsThatOverflowAreRefusedWhereArraysAreMade) {
  TestEngine test(1);
  const std::string square = "(4294967296, 4294967296)";
  RandomStream random(1);
  refused("zeros", square, [] { zeros({kHuge, kHuge}); });
  refused("full", square, [] { full({kHuge, kHuge}, 3, DType::u8); });
  refused("ones", "(-1, 3)", [] { ones({-1, 3}); });
  refused("zeros", "(0, 4294967296, 4294967296)", [] { zeros({0, kHuge, kHuge}); });
  refused("zeros", "(2305843009213693952,) f32", [] { zeros({kHuge << 29}); });  // its bytes are 2^63
  refused("arange", "(8000000000000000000,)", [] { arange(0, 8e18); });
  refused("empty", square, [] { empty({kHuge, kHuge}); });
  refused("empty", "(2, -7)", [] { empty({2, -7}, DType::i8, test::device(0)); });
  refused("uniform", square, [&] { uniform({kHuge, kHuge}, random); });
  refused("normal", "(-2,)", [&] { normal({-2}, random); });
  refused("from", "(3, 6148914691236517206)", [] { from(std::vector<float>(2), {3, 6148914691236517206}); });
  refused("from", "(-1, -2)", [] { from(std::vector<float>(2), {-1, -2}); });
  float here[2] = {};
  refused("from_memory", "(3, 6148914691236517206)", [&] {
    from_memory(here, nullptr, {3, 6148914691236517206}, DType::f32, cpu(0));
  });
  const auto parts = [](std::vector<std::int64_t> sizes, const Dims& row) {
    return [sizes, row] { partitioned(sizes, row, DType::f32, test::device(0)); };
  };
  refused("partitioned", "(4294967296, 4294967296)", parts({1, kHuge}, {kHuge}));
  refused("partitioned", "(6442450944, 16384)", parts({kHuge / 2, kHuge / 2, kHuge / 2}, {1 << 14}));
  refused("partitioned", "(-1,)", parts({1, -1}, {}));
  refused("partitioned", "(1, -1)", parts({1, 1}, {-1}));
}

TEST(Sizes, CountsThatOverflowAreRefusedInViewsAndOperators) {
  TestEngine test(1);
  const NDArray x = zeros({3}), none = zeros({0}), labels = zeros({3}, DType::i64);
  refused("one_hot", "(3, 4611686018427387904)", [&] { one_hot(labels, std::int64_t{1} << 62); });
  refused("reshape", "(4294967296, 4294967296)", [&] { none.reshape({kHuge, kHuge}); });
  refused("reshape", "(3, 6148914691236517206)", [&] { zeros({2}).reshape({3, 6148914691236517206}); });
  refused("reshape", "(-3, -1)", [&] { x.reshape({-3, -1}); });
  refused("reshape", "(0, 4294967296, 4294967296)", [&] { none.reshape({0, kHuge, kHuge}); });
  refused("broadcast_to", "(-1, 3)", [&] { x.broadcast_to({-1, 3}); });
  refused("broadcast_to", "(-5,)", [] { zeros({1}).broadcast_to({-5}); });
  refused("broadcast_to", "(4294967296, 4294967296)", [] { zeros({1}).broadcast_to({kHuge, kHuge}); });
  refused("strided", "(-1, 3)", [&] { x.strided({-1, 3}, {1, 1}, 0); });
  refused("strided", "(4294967296, 4294967296)", [&] { x.strided({kHuge, kHuge}, {0, 0}, 0); });
  refused("strided", "(3,)", [&] { x.strided({3}, {kMost}, 0); });
  refused("strided", "(2, 2)", [&] { x.strided({2, 2}, {kMost, kMost}, 0); });
  refused("strided", "(3,)", [&] { x.strided({3}, {1}, kMost); });
  refused("strided", "(3,)", [&] { x.strided({3}, {1}, -kMost); });
  EXPECT_EQ(x.strided({0}, {1}, kMost).to_vector<float>().size(), 0U);
  const NDArray wide = zeros({1}).broadcast_to({kHuge << 28});
  refused("concat", "(1152921504606846976,)", [&] { concat(std::vector<NDArray>(8, wide)); });
  const NDArray long_row = zeros({1, 1}).broadcast_to({1, kHuge});
  refused("matmul", "(4294967296, 4294967296)", [&] { matmul(long_row, long_row, {.transpose_a = true}); });
  const NDArray image = zeros({1, 1, 3, 3}), weight = zeros({1, 1, 2, 2});
  refused("conv2d", "4611686018427387904", [&] { conv2d(image, weight, {}, {.padding = std::int64_t{1} << 62}); });
  refused("max_pool2d", "4611686018427387904", [&] { max_pool2d(image, kMost, 1, std::int64_t{1} << 62); });
}

TEST(Sizes, SlicesTakeAnyStep) {
  TestEngine test(1);
  const NDArray x = arange(0, 5);
  using Ints = std::vector<std::int64_t>;
  EXPECT_EQ(x(slice_from(1, kMost)).to_vector<std::int64_t>(), Ints{1});
  EXPECT_EQ(x(slice(3, -100, -kMost - 1)).to_vector<std::int64_t>(), Ints{3});
  EXPECT_EQ(x(slice(-kMost, kMost, 3)).to_vector<std::int64_t>(), (Ints{0, 3}));
  EXPECT_EQ(x(slice(4, 1, -2)).to_vector<std::int64_t>(), (Ints{4, 2}));
}

}  // namespace
}  // namespace sluice::testing
