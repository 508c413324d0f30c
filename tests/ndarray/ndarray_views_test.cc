// Handles, views, elements in and out, printing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <list>
#include <ranges>
#include <sstream>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Ints = std::vector<std::int64_t>;

Ints elements(const NDArray& x) { return x.to_vector<std::int64_t>(); }

TEST(Views, IndexingIsNumPys) {
  const NDArray x = arange(0, 24).reshape({2, 3, 4});
  EXPECT_EQ(elements(x(1, 2)), (Ints{20, 21, 22, 23}));
  EXPECT_EQ(elements(x(-1, 0, -1)), (Ints{15}));
  EXPECT_EQ(x(-1, 0, -1).shape(), Dims{});
  EXPECT_EQ(elements(x(all, 1, slice(1, 3))), (Ints{5, 6, 17, 18}));
  EXPECT_EQ(elements(x(0, slice(0, 3, 2), 0)), (Ints{0, 8}));
  EXPECT_EQ(elements(x(0, 0, reversed())), (Ints{3, 2, 1, 0}));
  EXPECT_EQ(elements(x(0, 0, slice(-1, 0, -2))), (Ints{3, 1}));
  EXPECT_EQ(elements(x(0, 0, slice(-100, 100))), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(x(all, slice(2, 1)).shape(), (Dims{2, 0, 4}));
  EXPECT_EQ(elements(x(std::size_t{1}, 2U, static_cast<short>(1))), (Ints{21}));  // any integer, but no bool
  static_assert(!std::is_constructible_v<Index, bool> && !std::is_constructible_v<Axes, bool>);
  EXPECT_EQ(sum(x, std::size_t{2}).shape(), (Dims{2, 3}));
  EXPECT_THROW(x(2), ArrayError);
  EXPECT_THROW(x(0, 0, 0, 0), ArrayError);
  EXPECT_THROW(x(slice(0, 1, 0)), ArrayError);
}

/// Every slice of a short array, and every window on it, by walking along.
TEST(Views, SlicesAndWindowsAreWhatAWalkFinds) {
  constexpr std::int64_t n = 5;
  const NDArray x = arange(0, n);
  for (std::int64_t begin = -8; begin <= 8; ++begin) {
    for (std::int64_t end = -8; end <= 8; ++end) {
      for (const std::int64_t step : {-3, -2, -1, 1, 2, 3}) {
        // Where the walk begins and what it does not come to: a place, the one behind the last, or the one before the
        // first.
        const auto place = [&](std::int64_t bound) {
          const std::int64_t at = bound < 0 ? bound + n : bound;
          return step > 0 ? std::min(std::max<std::int64_t>(at, 0), n)
                          : std::min(std::max<std::int64_t>(at, -1), n - 1);
        };
        Ints wanted;
        for (std::int64_t at = place(begin); step > 0 ? at < place(end) : at > place(end); at += step) {
          wanted.push_back(at);
        }
        ASSERT_EQ(elements(x(slice(begin, end, step))), wanted) << begin << " to " << end << " by " << step;
      }
    }
  }
  for (std::int64_t size = 1; size <= n; ++size) {
    for (std::int64_t step = 1; step <= n; ++step) {
      Ints wanted;
      for (std::int64_t first = 0; first + size <= n; first += step) {
        for (std::int64_t at = first; at < first + size; ++at) wanted.push_back(at);
      }
      ASSERT_EQ(elements(x.unfold(0, size, step)), wanted) << "windows of " << size << " by " << step;
    }
  }
}

TEST(Views, ArraysAreMadeOfAnyRange) {
  std::vector<std::int64_t> list{1, 2, 3};
  const std::int64_t plain[] = {1, 2, 3};
  for (const NDArray& x :
       {from(list, {3}), from(std::span(list), {3}), from(plain, {3}), from(std::list(list.begin(), list.end()), {3}),
        from(std::array<std::int64_t, 3>{1, 2, 3}, {3}), from(std::vector(list), {3})}) {
    EXPECT_EQ(elements(x), (Ints{1, 2, 3}));
  }
  const NDArray counted = from(std::views::iota(0, 6), {2, 3});
  EXPECT_EQ(counted.dtype(), DType::i32);
  EXPECT_EQ(counted.to_string(), "[[0 1 2]\n [3 4 5]]");
  auto odd = list | std::views::filter([](std::int64_t n) { return n % 2 != 0; });
  EXPECT_EQ(elements(from(odd, {2})), (Ints{1, 3}));
  const auto flags = list | std::views::transform([](std::int64_t n) { return n > 1; });
  EXPECT_EQ(from(flags, {3}).to_vector<bool>(), (std::vector<bool>{false, true, true}));
  EXPECT_THROW(from(std::views::iota(0, 6), {2, 2}), ArrayError);
}

TEST(Views, ShapesDtypesAndDevicesArePrinted) {
  const NDArray x = zeros({2, 3}, DType::i32);
  std::ostringstream out;
  out << x.shape() << " " << x.dtype() << " " << cpu(1) << " " << 5 << " " << Dims{};
  EXPECT_EQ(out.str(), "(2, 3) i32 cpu(1) 5 ()");
}

TEST(Views, ShapesChangeWithoutCopiesWhereTheyCan) {
  const NDArray x = arange(0, 24).reshape({2, 3, 4});
  EXPECT_TRUE(x.same_array(x.transpose()));
  EXPECT_EQ(x.transpose().shape(), (Dims{4, 3, 2}));
  EXPECT_EQ(elements(x.transpose())[1], 12);
  EXPECT_EQ(elements(x.permute({1, 0, 2})(0)), (Ints{0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_TRUE(x.reshape({-1, 4}).same_array(x));
  EXPECT_TRUE(x(all, all, slice(0, 2)).reshape({6, 2}).same_array(x));  // rows step evenly
  EXPECT_FALSE(x.transpose().reshape({24}).same_array(x));
  EXPECT_EQ(elements(x.transpose().reshape({4, 6})(1)), (Ints{1, 13, 5, 17, 9, 21}));
  EXPECT_TRUE(x(all, 1).reshape({2, 2, 2}).same_array(x));
  EXPECT_EQ(elements(x(all, 1).reshape({2, 2, 2})), (Ints{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(x.flatten(1).shape(), (Dims{2, 12}));
  EXPECT_EQ(x.unsqueeze(0).squeeze(0).shape(), x.shape());
  EXPECT_EQ(elements(arange(0, 2).unsqueeze(1).broadcast_to({2, 3})), (Ints{0, 0, 0, 1, 1, 1}));
  EXPECT_THROW(x.reshape({5, 5}), ArrayError);
  EXPECT_THROW(x.reshape({-1, 5}), ArrayError);
  EXPECT_THROW(x.permute({0, 0, 1}), ArrayError);
  EXPECT_THROW(x.broadcast_to({2, 3, 5}), ArrayError);
  EXPECT_THROW(x.squeeze(0), ArrayError);
  EXPECT_THROW(x.strided({25}, {1}, 0), ArrayError);
  EXPECT_EQ(x.size(-1), 4);
  EXPECT_THROW(x.size(3), ArrayError);
}

TEST(Elements, ItemChecksKindCountAndRange) {
  EXPECT_EQ(from({2.5F}, {}).item<double>(), 2.5);
  EXPECT_EQ(from({7}, {1, 1}).item<std::int64_t>(), 7);
  EXPECT_EQ(arange(300, 301).item<int>(), 300);
  EXPECT_TRUE(less(from({1.0F}, {}), 2).item<bool>());
  EXPECT_THROW(arange(300, 301).item<float>(), ArrayError);
  EXPECT_THROW(from({2.5F}, {}).item<int>(), ArrayError);
  EXPECT_THROW(arange(300, 301).item<std::int8_t>(), ArrayError);
  EXPECT_THROW(arange(0, 2).item<int>(), ArrayError);
  EXPECT_THROW(arange(0, 2).item<bool>(), ArrayError);
  EXPECT_THROW(arange(0, 2).to_vector<float>(), ArrayError);
  EXPECT_THROW(from({1.0F}, {2}), ArrayError);
  EXPECT_THROW(NDArray().wait(), ArrayError);
  EXPECT_EQ(from({0.5F, -3.0F}, {2}).to(DType::f16)(1).item<float>(), -3);
  EXPECT_EQ(from({0.5F, -3.0F}, {2}).to(DType::bf16)(0).item<float>(), 0.5F);
}

TEST(Elements, HalfPrecisionRoundsToNearestEven) {
  const std::vector<float> values{1.0F, 65504.0F, 65520.0F, 6e-8F, 2.9802322e-8F, 1.00048828125F, -0.0F, 0.333333F};
  const auto back = from(values, {8}).to(DType::f16).to(DType::f32).to_vector<float>();
  EXPECT_EQ(back, (std::vector<float>{1.0F, 65504.0F, INFINITY, 5.9604645e-8F, 0.0F, 1.0F, -0.0F, 0.33325195F}));
}

TEST(Printing, LooksLikeNumPy) {
  const auto text = [](const NDArray& x) { return x.to_string(); };
  EXPECT_EQ(text(arange(0, 6).reshape({2, 3})), "[[0 1 2]\n [3 4 5]]");
  EXPECT_EQ(text(from({1.0F, 2.5F, -3.25F}, {3})), "[ 1.    2.5  -3.25]");
  EXPECT_EQ(text(zeros({2})), "[0. 0.]");
  EXPECT_EQ(text(from({1e-5, 1.0}, {2})), "[1.e-05 1.e+00]");
  EXPECT_EQ(text(from({1.0 / 3, 100.0}, {2})), "[  0.33333333 100.        ]");
  EXPECT_EQ(text(from({1.0F / 3}, {1})), "[0.33333334]");
  EXPECT_EQ(text(from({123456789.0, 0.5}, {2})), "[1.23456789e+08 5.00000000e-01]");
  EXPECT_EQ(text(from({double{NAN}, 1.0, double{INFINITY}}, {3})), "[nan  1. inf]");
  EXPECT_EQ(text(less(arange(0, 2), 1)), "[ True False]");
  EXPECT_EQ(text(from({2.0F}, {})), "2.0");
  EXPECT_EQ(text(arange(7, 8).reshape({})), "7");
  EXPECT_EQ(text(zeros({0, 3})), "[]");
  EXPECT_EQ(text(arange(0, 1001)), "[   0    1    2 ...  998  999 1000]");
  EXPECT_EQ(text(arange(0, 8).reshape({2, 2, 2})), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
  EXPECT_EQ(text(arange(0, 30)),
            "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n 24 25 26 27 28 29]");
  EXPECT_EQ(text(zeros({100, 100})),
            "[[0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n ...\n"
            " [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]\n [0. 0. 0. ... 0. 0. 0.]]");
  std::ostringstream out;
  out << from({1, 2}, {2});
  EXPECT_EQ(out.str(), "[1 2]");
}

TEST(Files, ArraysComeBack) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "sluice_ndarray_views_test";
  std::filesystem::create_directories(folder);
  const NDArray x = arange(0, 6, 1, DType::f32).reshape({2, 3});
  save_npy(folder / "x.npy", x.transpose());
  const NDArray back = read_npy(folder / "x.npy");
  EXPECT_EQ(back.shape(), (Dims{3, 2}));
  EXPECT_EQ(back.to_vector<float>(), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  save_arrays(folder / "m.safetensors", {{"x", x}, {"label", arange(0, 2)}}, {{"made by", "a test"}});
  LoadedArrays loaded = load_arrays(folder / "m.safetensors");
  EXPECT_EQ(loaded.arrays.at("x").to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(elements(loaded.arrays.at("label")), (Ints{0, 1}));
  EXPECT_EQ(loaded.metadata.at("made by"), "a test");
  loaded.arrays.at("x") += 1;
  EXPECT_EQ(loaded.arrays.at("x").to_vector<float>()[0], 1);
  std::filesystem::remove_all(folder);
}

TEST(Transfers, ArraysMoveBetweenThem) {
  TestEngine test(2, 2);
  const NDArray x = arange(0, 4, 1, DType::f32);
  const NDArray y = x.to(test::device(1));
  EXPECT_EQ(y.device(), test::device(1));
  EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ((y + 1).device(), test::device(1));
  EXPECT_THROW(x + y, ArrayError);
  {
    const DeviceScope scope(test::device(1));
    EXPECT_EQ(zeros({2}).device(), test::device(1));
  }
  const NDArray z = zeros({4});
  z.assign(y * 2);
  EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{0, 2, 4, 6}));
}

TEST(Random, DrawsDoNotDependOnThreadsOrSplits) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 4}) {
    TestEngine test(threads);
    RandomStream stream(7, 3);
    const NDArray u = uniform({100, 100}, stream), n = normal({100, 100}, stream);
    results.push_back(concat(std::vector<NDArray>{u, n}).to_vector<float>());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  RandomStream again(7, 3);
  const RandomStream::State state = again.state();
  const std::vector<float> whole = uniform({10}, again).to_vector<float>();
  again.restore(state);
  const std::vector<float> part = uniform({4}, again, 0, 1, DType::f32, 6).to_vector<float>();
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 6, whole.end()));
  for (float v : whole) EXPECT_TRUE(v >= 0 && v < 1);
}

TEST(Views, ArrayOperationsAreRefusedInsideACapture) {
  const NDArray x = arange(0, 4);
  EXPECT_THROW(Engine::instance().capture([&] { x.fill(1); }), ArrayError);
  EXPECT_EQ(elements(x), (Ints{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sluice::testing
