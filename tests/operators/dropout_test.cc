// The row dropout: the bits of the operators that it stands for, with nothing kept for backward.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/devices.h"
#include "../support/halves.h"
#include "operators_test_support.h"
#include "sluice/autograd/halves.h"
#include "sluice/operators/attributes.h"

namespace sluice::testing {
namespace {

const std::vector<DType> kDTypes{DType::f32, DType::f64, DType::f16, DType::bf16};

NDArray composed(const NDArray& x, double p, RandomStream& stream, std::uint64_t first) {
  const DeviceScope scope(x.device());
  const NDArray kept = uniform(x.shape(), stream, 0, 1, DType::f32, first) >= static_cast<float>(p);
  return where(kept, x * (p < 1 ? 1 / (1 - p) : 0), 0);
}

/// Numbers, and among them NaN, infinities and -0.
NDArray numbers(const Dims& shape, DType dtype) {
  RandomStream stream(3);
  NDArray x = normal(shape, stream, 0, 1, DType::f64).to(dtype);
  const NDArray flat = x.reshape({x.count()});
  const double special[] = {std::nan(""), INFINITY, -INFINITY, -0.0, 1e-7, 60000};
  for (std::int64_t i = 0; i < x.count() && i < 60; ++i) flat.narrow(0, i, i + 1).fill(special[i % 6]);
  return x;
}

/// The result, its gradient and the gradient of that for an x that `view` makes: both ways, bit by bit.
template <class View>
void expect_composed(const Dims& shape, DType dtype, double p, std::uint64_t first, View view) {
  const auto run = [&](auto function) {
    const NDArray leaf = numbers(shape, dtype).with_grad();
    RandomStream stream(9, 4);
    const NDArray y = function(view(leaf), p, stream, first), weight = numbers(y.shape(), dtype).with_grad();
    const NDArray g = grad({y}, {weight}, {leaf}, {.create_graph = true})[0];
    const NDArray second = grad({g}, {numbers(g.shape(), dtype)}, {weight})[0];
    EXPECT_EQ(stream.state().draw, 1U);
    return std::vector{y.detach().to_bytes(), g.detach().to_bytes(), second.to_bytes()};
  };
  const auto row = [](const NDArray& x, double q, RandomStream& stream, std::uint64_t from) {
    return dropout(x, q, stream, {.first = from});
  };
  const std::string what = to_string(shape) + " " + std::string(name_of(dtype)) + " p " + std::to_string(p) +
                           " first " + std::to_string(first);
  EXPECT_TRUE(run(row) == run(composed)) << what;
  const KernelRankLimit reference_only(0);
  EXPECT_TRUE(run(row) == run(composed)) << what << ", the reference";
}

constexpr auto whole = [](const NDArray& x) { return x; };

TEST(DropoutRow, HasTheBitsOfItsOperators) {
  for (const DType dtype : kDTypes) {
    for (const double p : {1e-9, 0.1, 0.5, 0.999, 1.0}) {
      for (const Dims& shape : {Dims{}, Dims{0}, Dims{3, 0}, Dims{1}, Dims{7, 5}, Dims{64}, Dims{63, 65}}) {
        expect_composed(shape, dtype, p, 0, whole);
      }
      for (const std::uint64_t first : {std::uint64_t{1}, std::uint64_t{62}, (std::uint64_t{1} << 34) - 5,
                                        ~std::uint64_t{0} - 40, ~std::uint64_t{0} - 2000}) {
        expect_composed({3001}, dtype, p, first, whole);
      }
    }
  }
}

TEST(DropoutRow, OfViews) {
  for (const DType dtype : kDTypes) {
    expect_composed({33, 70}, dtype, 0.4, 5, [](const NDArray& x) { return x.transpose(); });
    expect_composed({33, 70}, dtype, 0.4, 5, [](const NDArray& x) { return x.narrow(1, 3, 68); });
    expect_composed({70}, dtype, 0.4, 5, [](const NDArray& x) { return x.broadcast_to({40, 70}); });
  }
}

/// Of large arrays, by any number of threads, and wherever a thread's part begins.
TEST(DropoutRow, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto results = [](int threads) {
    const test::DefaultEngine engine({.mode = EngineMode::threaded, .mode_given = true, .threads = threads});
    std::vector<std::vector<std::byte>> bytes;
    for (const DType dtype : kDTypes) {
      RandomStream values(1), stream(2), same(2);
      const NDArray x = uniform({(1 << 20) + 4097}, values, -1, 1, dtype).with_grad();
      const NDArray y = dropout(x, 0.3, stream, {.first = 77});
      EXPECT_TRUE(y.detach().to_bytes() == composed(x.detach(), 0.3, same, 77).to_bytes()) << name_of(dtype);
      sum(y).backward();
      for (const NDArray& each : {y.detach(), x.grad()}) bytes.push_back(each.to_bytes());
    }
    return bytes;
  };
  const auto one = results(1);
  for (const int threads : {2, 4}) EXPECT_TRUE(one == results(threads)) << threads;
}

/// A window in the draw of a whole, as a place of a mesh has it.
TEST(DropoutRow, OfAPartOfTheDraw) {
  for (const DType dtype : kDTypes) {
    const NDArray x = numbers({40, 100}, dtype);
    RandomStream stream(5);
    const RandomKey key = stream.state();
    const NDArray y = dropout(x, 0.4, stream, {.first = 9});
    const DropoutAttributes part{key.seed, key.stream, key.draw, 9 + 100 + 13, 0.4, 70, 100};
    const NDArray own = x.narrow(0, 1, 40).narrow(1, 13, 83).copy();
    for (const int rank : {KernelRankLimit::current(), 0}) {
      const KernelRankLimit limit(rank);
      const NDArray made = apply(Registry::instance().get("dropout"), {&own}, part);
      EXPECT_TRUE(made.to_bytes() == y.narrow(0, 1, 40).narrow(1, 13, 83).copy().to_bytes()) << name_of(dtype);
    }
  }
}

TEST(DropoutRow, KeepsNothing) {
  const NDArray x = ones({300, 70}).with_grad();
  RandomStream stream(5), same(5);
  const NDArray y = dropout(x * 1, 0.5, stream);
  EXPECT_TRUE(kept_memory({y}, {}).empty());
  EXPECT_EQ(shapes_of([&] { return dropout(x, 0.5, stream); }).kept_bytes, 0U);
  sum(y).backward();
  EXPECT_TRUE(x.grad().to_bytes() == dropout(x.detach(), 0.5, same).to_bytes());
}

TEST(DropoutRow, IsRecomputedWithTheSameMask) {
  const auto gradient = [](bool recompute) {
    RandomStream stream(5);
    const NDArray x = numbers({50, 9}, DType::f64).with_grad();
    const auto f = [&](const NDArray& a) { return square(dropout(square(a), 0.5, stream)); };
    const NDArray y = recompute ? checkpoint(f, x) : f(x);
    sum(dropout(y, 0.2, stream)).backward();
    EXPECT_EQ(stream.state().draw, 2U);
    return x.grad().to_bytes();
  };
  EXPECT_TRUE(gradient(true) == gradient(false));
}

/// An owner that does not know the draw's elements gets the operators.
TEST(DropoutRow, OfAnOwnersArray) {
  const NDArray x = numbers({30, 7}, DType::f32);
  RandomStream stream(5), same(5);
  const NDArray y = dropout(Halves::split(x), 0.4, stream, {.first = 3});
  EXPECT_TRUE(Halves::join(y).to_bytes() == dropout(x, 0.4, same, {.first = 3}).to_bytes());
}

/// The number of the draw is found by name, so that a replay may put another in its place.
TEST(DropoutRow, ItsDrawIsASlot) {
  const Attributes a = DropoutAttributes{1, 2, 3, 4, 0.5};
  EXPECT_EQ(a.with("draw", std::uint64_t{8}), Attributes(DropoutAttributes{1, 2, 8, 4, 0.5}));
  int slots = 0;
  for (const AttributeField& field : a.fields()) slots += field.slot && std::string_view(field.name) == "draw";
  EXPECT_EQ(slots, 1);
}

}  // namespace
}  // namespace sluice::testing
