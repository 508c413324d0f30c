// Draws of arrays are those of resources/philox.h, element by element, wherever a window begins and ends.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "operators_test_support.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/uniform_range.h"
#include "sluice/resources/philox.h"

namespace sluice {
namespace {

template <class T, class One>
void expect_draw(const char* row, const RandomAttributes& a, One one) {
  const NDArray y = apply(Registry::instance().get(row), {}, a);
  const std::vector<T> got = y.to_vector<T>();
  const DrawWindow window(a);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const T wanted = one(window(static_cast<std::int64_t>(i)));
    ASSERT_EQ(got[i], wanted) << row << " of " << got.size() << " from " << a.first << " by " << a.piece << ": " << i;
  }
}

TEST(Draws, AreThoseOfEachElement) {
  const RandomKey key{3, 5, 7};
  const ElementKey of(key);
  const auto from_element = [&](std::uint64_t first) {
    RandomAttributes a;
    a.seed = key.seed;
    a.stream = key.stream;
    a.draw = key.draw;
    a.first = first;
    return a;
  };
  std::vector<RandomAttributes> list;
  for (const std::int64_t n : {1, 15, 16, 31, 32, 33, 63, 64, 65, 200, 5000, 40000}) {
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{30}, std::uint64_t{63},
                                      (std::uint64_t{1} << 34) - 5, ~std::uint64_t{0} - 40}) {
      RandomAttributes a = from_element(first);
      a.shape = {n};
      list.push_back(a);
    }
  }
  for (const std::int64_t piece : {1, 3, 16, 40, 64, 100}) {
    RandomAttributes a = from_element(11);
    a.shape = {4 * piece + piece / 2};
    a.piece = piece;
    a.stride = 3 * piece + 1;
    list.push_back(a);
  }
  for (RandomAttributes a : list) {
    a.dtype = DType::f32;
    expect_draw<float>("uniform", a, [&](std::uint64_t e) { return uniform01_f32(of, e); });
    expect_draw<float>("normal", a, [&](std::uint64_t e) { return 0.0F + 1.0F * normal_f32(of, e); });
    a.dtype = DType::f64;
    expect_draw<double>("uniform", a, [&](std::uint64_t e) { return uniform01_f64(of, e); });
    expect_draw<double>("normal", a, [&](std::uint64_t e) { return 0.0 + 1.0 * normal_f64(of, e); });
  }
}

TEST(Draws, IntegersAreThoseOfEachElement) {
  for (const std::int64_t n : {1, 31, 32, 33, 100, 20001}) {
    RandomStream stream(9, 4);
    const ElementKey of(stream.state());
    const std::vector<std::int64_t> got = randint({n}, stream, -5, 1000000007, DType::i64).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], uniform_int(of, i, -5, 1000000007)) << i;
  }
}

}  // namespace
}  // namespace sluice
